"""A job: records in, outputs out, in shards that are finished or not, so that it can be killed at any moment and started again.

The contract with the worker: `work(batch of (index, record))` gives one output a record, in order, and an output follows from its index
and record alone. Whatever is random draws with seed + index. Then outputs depend neither on shard size, batch size nor
the number of processes, and a job that was killed and resumed ends with the same bytes as one that was left alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from mmspec.jobs.folder import JobFolder, Stopped
from mmspec.jobs.processes import Processes
from mmspec.jobs.progress import bar
from mmspec.jobs.records import Reject, Source
from mmspec.jobs.sinks import Sink

Batch = list[tuple[int, Any]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to do. `model`, `options`, the input and the shard size make two jobs the same; batch size and processes may change."""

    source: Source
    sink: Sink
    work: Callable[[Batch], Iterable[Any]]  # outputs as the sink takes them, or a `Reject`
    out: Path
    model: Mapping[str, Any]  # what tells one model from another, such as {"weights": weights(module)}; ready for JSON
    options: Mapping[str, Any]  # everything else that shows in the outputs, the seed included
    check: Callable[[Any], Any] = lambda record: record  # the record as `work` takes it; ValueError says why it is rejected
    batch_size: int = 8
    shard_size: int = 256
    about: Mapping[str, Any] = field(default_factory=dict)  # provenance; kept beside the timing
    measures: Callable[[], Mapping[str, float]] = dict  # running totals of the worker, such as tokens; summed into the timing

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', ' ')} is {getattr(self, name)}: give at least 1")


@dataclass(frozen=True)
class Report:
    """How a finished job went."""

    records: int
    outputs: int
    rejects: int
    shards: int
    resumed: int  # shards that were finished before this run
    seconds: float  # of work, summed over shards, whenever and wherever they ran
    measures: dict[str, float]
    out: Path

    def __str__(self) -> str:
        rejected = f"{self.rejects} rejects (reasons in {self.out / 'rejects.jsonl'})" if self.rejects else "no rejects"
        return f"{self.records} records: {self.outputs} outputs, {rejected}; {self.shards} shards, {self.resumed} of them from before"


def run(job: Job, engine: str = "local", processes: Processes | None = None, patience: float = 3600.0) -> Report | None:
    """Do what is not done yet. The first process waits for the others and reports; the others return None.

    `patience` is how many seconds it waits without seeing a shard finished. ValueError for bad input and for a folder that holds
    another job; `Stopped` when the disk is full, the input changes or others are gone. Both are one line.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; valid: {', '.join(ENGINES)}")
    processes, facts = processes or Processes.here(), job.source.facts()
    if not facts.records:
        raise ValueError("the input holds no record: give at least one")
    folder = JobFolder(job.out, processes.rank)
    folder.claim(
        {
            "input": {"records": facts.records, "fingerprint": facts.fingerprint},
            "model": job.model,
            "options": job.options,
            "shard_size": job.shard_size,
            "sink": repr(job.sink),
        }
    )
    shards = -(-facts.records // job.shard_size)
    missing = [shard for shard in range(shards) if folder.marker(shard) is None]
    todo = [shard for shard in missing if processes.owns(shard)]
    with bar("records", sum(_length(job, facts.records, shard) for shard in todo), processes) as tick:
        ENGINES[engine](job, folder, todo, facts.records, processes, tick)
    if processes.rank:
        return None
    _wait(folder, [shard for shard in missing if shard not in set(todo)], patience)
    return _close(job, folder, shards, resumed=shards - len(missing))


def _length(job: Job, records: int, shard: int) -> int:
    return min(job.shard_size, records - shard * job.shard_size)


def _local(job: Job, folder: JobFolder, todo: Sequence[int], records: int, processes: Processes, tick: Callable[[int], None]) -> None:
    """The engine that is this process: shards in order, from one pass over the source."""
    wanted = set(todo)
    stream = job.source.read(lambda index: index // job.shard_size in wanted)
    finished = 0
    for shard, part in groupby(stream, key=lambda pair: pair[0] // job.shard_size):
        finish(job, folder, shard, part, _length(job, records, shard), processes, tick)
        finished += 1
    if finished != len(todo):
        raise Stopped("the input changed while it was read: restore it and start the same command again")


ENGINES = {"local": _local}


def finish(
    job: Job,
    folder: JobFolder,
    shard: int,
    records: Iterable[tuple[int, Any]],
    length: int,
    processes: Processes,
    tick: Callable[[int], None],
) -> None:
    """One shard from its `length` records to its marker: what every engine does, wherever it does it."""
    start, before = time.perf_counter(), dict(job.measures())
    ledger = _Ledger(tick)
    with folder.place() as place:
        job.sink.write(_outputs(job, records, ledger), place, f"part-{shard:05d}")
        if ledger.outputs + len(ledger.rejects) != length:
            raise Stopped(f"shard {shard} has {ledger.outputs + len(ledger.rejects)} records instead of {length}: did the input change?")
        measures = {key: value - before.get(key, 0) for key, value in job.measures().items()}
        timing = {"seconds": time.perf_counter() - start, "process": processes.rank, "processes": processes.world}
        timing |= {"batch_size": job.batch_size, "measures": measures, "about": job.about}
        marker = {"records": length, "outputs": ledger.outputs, "rejects": sorted(ledger.rejects)}
        folder.publish(place, shard, marker, timing)


class _Ledger:
    """What became of the records of one shard."""

    def __init__(self, tick: Callable[[int], None]) -> None:
        self.rejects: list[tuple[int, str]] = []
        self.outputs = 0
        self._tick = tick

    def reject(self, index: int, reason: str) -> None:
        self.rejects.append((index, " ".join(reason.split())))
        self._tick(1)

    def output(self) -> None:
        self.outputs += 1
        self._tick(1)


def _outputs(job: Job, records: Iterable[tuple[int, Any]], ledger: _Ledger) -> Iterator[tuple[int, Any]]:
    """(index, output) for every record that is not rejected, in order."""
    for batch in _batches(_checked(job, records, ledger), job.batch_size):
        found = list(job.work(batch))
        if len(found) != len(batch):
            raise RuntimeError(f"the worker gave {len(found)} outputs for {len(batch)} records: it must give one each, or a Reject")
        for (index, _), output in zip(batch, found, strict=True):
            if isinstance(output, Reject):
                ledger.reject(index, output.reason)
            else:
                ledger.output()
                yield index, output


def _checked(job: Job, records: Iterable[tuple[int, Any]], ledger: _Ledger) -> Iterator[tuple[int, Any]]:
    for index, record in records:
        if isinstance(record, Reject):
            ledger.reject(index, record.reason)
            continue
        try:
            checked = job.check(record)
        except ValueError as error:
            ledger.reject(index, str(error))
        else:
            yield index, checked


def _batches(records: Iterable[tuple[int, Any]], size: int) -> Iterator[Batch]:
    batch: Batch = []
    for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _wait(folder: JobFolder, shards: Sequence[int], patience: float) -> None:
    """Until other processes have finished `shards`."""
    left, seen = set(shards), time.monotonic()
    while left:
        finished = {shard for shard in left if folder.marker(shard) is not None}
        left -= finished
        seen = time.monotonic() if finished else seen
        if left and time.monotonic() - seen > patience:
            raise Stopped(
                f"{len(left)} shards of other processes are missing, and none was finished for {patience:.0f} s: if those have ended, "
                "start the same command again"
            )
        if left:
            time.sleep(0.2)


def _close(job: Job, folder: JobFolder, shards: int, resumed: int) -> Report:
    """End the job: rejects, timing, manifest; and what to tell."""
    seconds, measures, abouts = 0.0, {}, []
    for timing in folder.timings(shards):
        seconds += timing["seconds"]
        for key, value in timing["measures"].items():
            measures[key] = measures.get(key, 0) + value
        if timing["about"] not in abouts:
            abouts.append(timing["about"])
    counts = folder.close(shards, {"seconds": seconds, "measures": measures, "about": abouts}, job.source.unit)["counts"]
    return Report(**counts, resumed=resumed, seconds=seconds, measures=measures, out=folder.path)
