"""A job: records in, outputs out, in shards that are finished or not, so that it can be killed at any moment and started again.

The contract with the worker: `work(batch of (index, record))` gives one output a record, in order, and an output follows from its index
and record alone. Whatever is random draws with seed + index. Then outputs depend neither on shard size, batch size nor
the number of processes, and a job that was killed and resumed ends with the same bytes as one that was left alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.jobs.engine.folder import JobFolder, Stopped
from mmspec.jobs.engine.records import Reject, Source
from mmspec.jobs.engine.sinks import Sink

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
    unit: str = "records"  # what people call them: "users", for a bar that shows users/s
    about: Mapping[str, Any] = field(default_factory=dict)  # provenance; kept beside the timing
    measures: Callable[[], Mapping[str, float]] = dict  # running totals of the worker, such as tokens; summed into the timing

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', ' ')} is {getattr(self, name)}: give at least 1")

    def length(self, shard: int, records: int) -> int:
        """How many of the input's `records` belong to a shard."""
        return min(self.shard_size, records - shard * self.shard_size)


def finish(
    job: Job,
    folder: JobFolder,
    shard: int,
    records: Iterable[tuple[int, Any]],
    length: int,
    where: Mapping[str, Any],
    tick: Callable[[int], None],
) -> None:
    """One shard from its `length` records to its marker: what every engine does; `where` it did it is kept with the timing."""
    start, before = time.perf_counter(), dict(job.measures())
    ledger = _Ledger(tick)
    with folder.place() as place:
        job.sink.write(_outputs(job, records, ledger), place, f"part-{shard:05d}")
        if ledger.outputs + len(ledger.rejects) != length:
            raise Stopped(f"shard {shard} has {ledger.outputs + len(ledger.rejects)} records instead of {length}: did the input change?")
        measures = {key: value - before.get(key, 0) for key, value in job.measures().items()}
        timing = {"seconds": time.perf_counter() - start, **where, "batch_size": job.batch_size, "measures": measures, "about": job.about}
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
