"""Draft lengths, tokens and devices of a service as its batches fill."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from mmspec.bench.schedules.chain import ChainSchedule
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.measured import checked_rates
from mmspec.bench.schedules.planning import LENGTHS


@dataclass(frozen=True)
class BatchPoint:
    """A batch size with its best draft length.

    Attributes:
        rows: rows of the batch.
        length: draft tokens a round; 0 where no length pays.
        plain: tokens a second of plain decoding, over all rows.
        tokens_per_second: tokens a second with `length` draft tokens, over all rows.
    """

    rows: int
    length: int
    plain: float
    tokens_per_second: float

    @property
    def speed(self) -> float:
        """How many times the tokens of plain decoding."""
        return self.tokens_per_second / self.plain


@dataclass(frozen=True)
class Capacity:
    """What a load needs where each row has to be fast enough.

    Attributes:
        rows: rows of every batch, as many as the speed of a row allows.
        length: draft tokens a round.
        tokens_per_device: tokens a second of one device.
        devices: devices for the load.
    """

    rows: int
    length: int
    tokens_per_device: float
    devices: int


def batch_point(machine: PlannedMachine, acceptance: float | Sequence[float], rows: int) -> BatchPoint:
    """Find the best draft length of a batch.

    Args:
        machine: seconds of target and drafter; its rows are replaced.
        acceptance: chance that a draft token is accepted: one, or one for each position.
        rows: rows of the batch.

    Returns:
        The best length and its tokens a second.

    Raises:
        ValueError: for chances or rows out of range.
    """
    rates, batch = checked_rates(acceptance), replace(machine, rows=rows)
    found = {length: ChainSchedule(length).expect(batch, rates).tokens_per_second for length in (0, *LENGTHS)}
    best = max(found, key=found.__getitem__)
    return BatchPoint(rows, best, found[0], found[best])


def capacity(
    machine: PlannedMachine, acceptance: float | Sequence[float], load: float, least: float, *, plain: bool = False, most: int = 512
) -> Capacity | None:
    """Find how many devices serve a load, if every row is to be given `least` tokens a second.

    Batches are as large as that speed allows, since fuller batches give more tokens a device. Each device, or each group of a machine's
    stages, serves one batch.

    Args:
        machine: seconds of target and drafter; its rows are replaced.
        acceptance: as in `batch_point`.
        load: tokens a second of the service.
        least: tokens a second of every row.
        plain: nothing is drafted.
        most: largest batch.

    Returns:
        The batch and the devices; None where not even a single row is fast enough.
    """
    best = None
    for rows in range(1, most + 1):
        point = batch_point(machine, acceptance, rows)
        rate = point.plain if plain else point.tokens_per_second
        each = rate / machine.stages
        if rate / rows >= least and (best is None or each > best.tokens_per_device):
            best = Capacity(rows, 0 if plain else point.length, each, ceil(load / each))
    return best
