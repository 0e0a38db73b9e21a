"""A job: records in, outputs out, in shards, so that it can be interrupted at any moment and resumed.

Contract of the worker: `work(batch of (index, record))` returns one output a record, in order, and an output depends on its index and
record only. Random workers draw with seed + index. Then outputs depend neither on shard size, batch size nor the number of processes, and
a resumed job writes the same bytes as an uninterrupted one.
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
    """A job to run. `model`, `options`, the input and the shard size identify it; batch size and processes may change between runs.

    Args:
        source: stream of records, such as `Lines` or `ParquetRows`.
        sink: writer of outputs, such as `JsonLines`, `NumberedFiles` or `ParquetTable`.
        work: maps a batch of (index, record) to one output or `Reject` each, as the sink takes them.
        out: output folder.
        model: what identifies the model, such as {"weights": weights(module)}; JSON data.
        options: everything else that the outputs depend on, the seed included; JSON data.
        check: returns the record as `work` takes it; its ValueError rejects the record.
        batch_size: records a call of `work`.
        shard_size: records a shard.
        unit: name of the records in progress bars.
        about: provenance, kept beside the timing.
        measures: running totals of the worker, summed into the timing.

    Raises:
        ValueError: for sizes below 1.
    """

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
        """Count the records of a shard.

        Args:
            shard: number of the shard, from 0.
            records: number of records in the input.

        Returns:
            How many of them belong to `shard`; `shard_size` except in the last one.
        """
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
    """Write one shard from its `length` records, up to its marker. Called by every engine; `where` describes the process and is kept with
    the timing.
    """
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
        count = 0
        for count, output in enumerate(job.work(batch), 1):  # one by one: a worker may give some while it still works on others
            if count > len(batch):
                break
            index = batch[count - 1][0]
            if isinstance(output, Reject):
                ledger.reject(index, output.reason)
            else:
                ledger.output()
                yield index, output
        if count != len(batch):
            shown = f"more than {len(batch)}" if count > len(batch) else count
            raise RuntimeError(f"the worker gave {shown} outputs for {len(batch)} records: it must give one each, or a Reject")


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
