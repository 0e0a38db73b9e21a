"""Running a job: find the missing shards, let an engine do them, and write the end state.

An engine is a context manager over (job or its builder, processes). It yields the job, possibly without its worker, and a function that
does shards; every shard is written by `finish`, so every engine writes the same bytes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from mmspec.jobs.engine.folder import JobFolder, Stopped
from mmspec.jobs.engine.job import Job, finish
from mmspec.jobs.engine.lease import ended_by_sigterm, free, leased
from mmspec.jobs.engine.processes import Processes
from mmspec.jobs.engine.progress import bar
from mmspec.jobs.engine.records import place_of

Tick = Callable[[int], None]
Doing = Callable[[JobFolder, Sequence[int], int, Tick], None]  # (folder, shards to do, records of the input, tick)


@dataclass(frozen=True)
class Report:
    """Summary of a finished job.

    Attributes:
        records: records of the input, rejects included.
        outputs: records with an output.
        rejects: records without one; reasons are in rejects.jsonl.
        shards: number of shards.
        resumed: shards that were finished before this run.
        seconds: seconds of work, summed over shards and processes.
        measures: totals of the worker's measures.
        out: the output folder.
        unit: name of the records.
        rate: records a second of wall-clock time in this run, over all processes; 0 if nothing was left to do.
    """

    records: int
    outputs: int
    rejects: int
    shards: int
    resumed: int  # shards that were finished before this run
    seconds: float  # of work, summed over shards, whenever and wherever they ran
    measures: dict[str, float]
    out: Path
    unit: str = "records"
    rate: float = 0.0  # records a second by the clock, all processes together, of what this run did; 0 where nothing was left

    def __str__(self) -> str:
        rejected = f"{self.rejects} rejects (reasons in {self.out / 'rejects.jsonl'})" if self.rejects else "no rejects"
        return f"{self.records} {self.unit}: {self.outputs} outputs, {rejected}; {self.shards} shards, {self.resumed} of them from before"


def run(job: Job | Callable[[], Job], engine: str = "local", processes: Processes | None = None, patience: float = 3600.0) -> Report | None:
    """Run the missing shards of a job. The first process waits for the others and returns the report.

    Args:
        job: the job, or a function that builds it. The "ray" engine calls the function once in each worker, so that a model is loaded
            where it is used; a job itself is sent there pickled.
        engine: "local" or "ray".
        processes: this process among those of the launch; read from the environment by default.
        patience: seconds the first process waits without a shard being finished by others.

    Returns:
        The report in the first process, None in the others.

    Raises:
        ValueError: for bad input, or a folder that holds another job.
        Stopped: when the disk is full, the input changed, or other processes are gone.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; valid: {', '.join(ENGINES)}")
    processes = processes or Processes.here()
    with ENGINES[engine](job, processes) as (known, do):
        facts = known.source.facts()
        if not facts.records:
            raise ValueError("the input holds no record: give at least one")
        _check_apart(known)
        folder, shards = JobFolder(known.out, processes.rank), -(-facts.records // known.shard_size)
        identity = {
            "input": {"records": facts.records, "fingerprint": facts.fingerprint},
            "model": known.model,
            "options": known.options,
            "shard_size": known.shard_size,
            "sink": repr(known.sink),
        }
        if (manifest := folder.finished(identity, shards, partial(place_of, known.source))) is not None:
            return None if processes.rank else _report(known, folder, manifest["counts"], shards, rate=0.0)
        with leased(folder.path, processes.rank), ended_by_sigterm(folder.path):
            return _run(known, do, folder, identity, (shards, facts.records), processes, patience)


def _run(
    known: Job, do: Doing, folder: JobFolder, identity: dict[str, Any], size: tuple[int, int], processes: Processes, patience: float
) -> Report | None:
    """Do the missing shards of this process. The first waits for the others and closes the folder."""
    shards, records = size
    folder.claim(identity)
    start = time.perf_counter()
    missing = [shard for shard in range(shards) if folder.marker(shard) is None]
    todo = [shard for shard in missing if processes.owns(shard)]
    try:
        with bar(known.unit, sum(known.length(shard, records) for shard in todo), processes) as tick:
            do(folder, todo, records, tick)
        if processes.rank:
            return None
        _wait(folder, [shard for shard in missing if shard not in set(todo)], patience)
        done = sum(known.length(shard, records) for shard in missing)
        return _close(known, folder, shards, resumed=shards - len(missing), rate=done / (time.perf_counter() - start))
    finally:
        if not processes.rank:
            folder.sweep(partial(free, folder.path))


def _check_apart(job: Job) -> None:
    """Raise ValueError for an output folder inside the folder that is read."""
    source, out = getattr(job.source, "path", None), job.out.resolve()
    if source is not None and (home := Path(source).resolve()).is_dir() and out.is_relative_to(home):
        raise ValueError(f"the output folder {job.out} is inside the input folder {source}: give one outside it")


@contextmanager
def _local(job: Job | Callable[[], Job], processes: Processes) -> Iterator[tuple[Job, Doing]]:
    """The engine that is this process."""
    job = job if isinstance(job, Job) else job()
    yield job, partial(_in_order, job, processes)


def _in_order(job: Job, processes: Processes, folder: JobFolder, todo: Sequence[int], records: int, tick: Tick) -> None:
    """Shards in order, from one pass over the source."""
    wanted, where = set(todo), {"process": processes.rank, "processes": processes.world}
    stream = job.source.read(lambda index: index // job.shard_size in wanted)
    finished = 0
    for shard, part in groupby(stream, key=lambda pair: pair[0] // job.shard_size):
        finish(job, folder, shard, part, job.length(shard, records), where, tick)
        finished += 1
    if finished != len(todo):
        raise Stopped("the input changed while it was read: restore it and start the same command again")


@contextmanager
def _ray(job: Job | Callable[[], Job], processes: Processes) -> Iterator[tuple[Job, Doing]]:
    """Loaded when it is asked for: ray is an extra."""
    from mmspec.jobs.engine.ray import ray_engine

    with ray_engine(job, processes) as engine:
        yield engine


ENGINES = {"local": _local, "ray": _ray}


def _wait(folder: JobFolder, shards: Sequence[int], patience: float) -> None:
    """Wait until other processes have finished `shards`."""
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


def _close(job: Job, folder: JobFolder, shards: int, resumed: int, rate: float) -> Report:
    """Write rejects, timing and manifest, and return the report."""
    timing = _timing(folder, shards)
    counts = folder.close(shards, timing, partial(place_of, job.source))["counts"]
    return _report(job, folder, counts, resumed, rate, timing)


def _timing(folder: JobFolder, shards: int) -> dict[str, Any]:
    """Seconds, measures and provenance of all shards."""
    seconds, measures, abouts = 0.0, {}, []
    for timing in folder.timings(shards):
        seconds += timing["seconds"]
        for key, value in timing["measures"].items():
            measures[key] = measures.get(key, 0) + value
        if timing["about"] not in abouts:
            abouts.append(timing["about"])
    return {"seconds": seconds, "measures": measures, "about": abouts}


def _report(job: Job, folder: JobFolder, counts: dict[str, int], resumed: int, rate: float, timing: dict[str, Any] | None = None) -> Report:
    timing = timing or _timing(folder, counts["shards"])
    went = {"seconds": timing["seconds"], "measures": timing["measures"], "unit": job.unit, "rate": rate}
    return Report(**counts, resumed=resumed, out=folder.path, **went)
