"""Stopping criteria: a budget per row, end-of-sequence values, and stops evaluated on the host."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.protocols import StoppingCriteria
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import rows_of
from mmspec.utils.devices import to_device

FINISH_REASONS = (STOP, LENGTH) = ("stop", "length")
"""Why a row ended: at its end, or complete; or because it reached the longest length that the call allows."""
Stop = Callable[[int, list[Any]], bool]
"""(row, values the row has committed so far) -> True if the row ends here."""
EndTest = Callable[[Tensor], Tensor]
"""[B, L, *value] -> bool [B, L], True for values that end a row. For values that are not single ids."""


class DefaultStopping:
    """Stopping criteria for sequences: a maximum length, end values, and stops evaluated on the host.

    A row ends at its first end value, at its first stop, or after `most` values, whichever comes first. The end value stays in the output.

    Args:
        rows: number of rows.
        most: largest number of values per row.
        ends: end-of-sequence ids, or an `EndTest` for values that are not single ids.
        stops: functions of (row, values committed so far) that return True where the row should end; called after every value.
        device: device of the generation.
        full: the finish reason of rows that reach `most`, the last of `FINISH_REASONS`; the first for outputs of a fixed size.
        forced: an end value at `most` was forced by a processor, and is no reason to end.

    Attributes:
        finish_reasons: why each row ended, of `FINISH_REASONS`; None while it has not.

    Raises:
        ValueError: if `most` is below 1.
    """

    def __init__(
        self,
        rows: int,
        most: int,
        ends: Sequence[int] | EndTest = (),
        stops: Sequence[Stop] = (),
        device: torch.device | str = "cpu",
        *,
        full: str = LENGTH,
        forced: bool = False,
    ):
        if most < 1:
            raise ValueError(f"max_new_tokens is {most}: ask for at least 1")
        self.left = torch.full((rows,), most, device=device)
        self.remaining = [most] * rows
        self.outputs: list[list[Any]] = [[] for _ in range(rows)]
        self.finish_reasons: list[str | None] = [None] * rows
        self.full, self.forced = full, forced
        self.end_ids = frozenset() if callable(ends) else frozenset(ends)
        self.ends = ends if callable(ends) else _one_of(torch.tensor(list(ends), dtype=torch.long, device=device))
        self.stops: list[tuple[int, tuple[Stop, ...]]] = [(row, tuple(stops)) for row in range(rows)]  # by row: its number for stops

    @property
    def open(self) -> bool:
        return any(self.remaining)

    joinable = True

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.left = rows_of(self.left, rows)
        for name in ("remaining", "outputs", "stops", "finish_reasons"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])

    def join_rows(self, other: "DefaultStopping") -> None:
        """Append the rows of another one with the same end values; see `core.rows.changes`. Stops get their rows' former numbers."""
        self.left = torch.cat([self.left, other.left])
        for name in ("remaining", "outputs", "stops", "finish_reasons"):
            setattr(self, name, [*getattr(self, name), *getattr(other, name)])

    def budget(self, length: int) -> Budget:
        """Return the budget of a round of `length` draft tokens."""
        return Budget(self.left, length, max(0, min(length, max(self.remaining) - 1)))

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Cut `verdict` at every row's end and transfer the outcome to the host, the round's one synchronisation."""
        verdict = self._cut(verdict)
        committed = _fetch(draft, scored, verdict)
        if any(stops for _, stops in self.stops):
            verdict, committed = self._stop(verdict, committed)
        for row, values in enumerate(committed.values):
            self.outputs[row] += values
            self.remaining[row] -= len(values)
        return verdict, self._close(committed)

    def _cut(self, verdict: Verdict) -> Verdict:
        """Cut at end values inside the accepted run, on the device."""
        if verdict.values.shape[1] == 1:
            return self._cut_single(verdict)
        count = torch.minimum(verdict.count, self.left)
        if self.ends is not None:
            inside = torch.arange(verdict.values.shape[1], device=count.device) < count[:, None]
            ended = self.ends(verdict.values) & inside
            first = torch.where(ended.any(1), ended.long().argmax(1) + 1, count)
            self.left = torch.where(ended.any(1), 0, self.left - count)
            count = first
        else:
            self.left = self.left - count
        parents = torch.where((self.left > 0)[:, None], verdict.pending.parents, PAD)
        pending = replace(verdict.pending, parents=parents)
        accepted = torch.minimum(verdict.accepted, count)
        judged = verdict.judged - (verdict.accepted - accepted)  # draft tokens cut away were not rejected
        return replace(verdict, count=count, accepted=accepted, judged=judged, pending=pending)

    def _cut_single(self, verdict: Verdict) -> Verdict:
        """`_cut` for one value a row at most, no draft tokens accepted."""
        count = torch.minimum(verdict.count, self.left)
        left = self.left - count
        if self.ends is not None:
            left = left.masked_fill(self.ends(verdict.values)[:, 0] & (count > 0), 0)
        self.left = left
        parents = verdict.pending.parents.masked_fill((left <= 0)[:, None], PAD)
        return replace(verdict, count=count, pending=replace(verdict.pending, parents=parents))

    def _stop(self, verdict: Verdict, committed: Committed) -> tuple[Verdict, Committed]:
        """Cut rows where a host stop ends them."""
        values, stopped = [], []
        for row, new in enumerate(committed.values):
            whole, length, halts = list(self.outputs[row]), len(new), False
            for index, value in enumerate(new):
                whole.append(value)
                number, stops = self.stops[row]
                if any(stop(number, whole) for stop in stops):
                    length, halts = index + 1, True
                    break
            values.append(new[:length])
            stopped.append(halts)
            if halts:
                self.remaining[row] = length  # `commit` takes these off again
                self.finish_reasons[row] = STOP
        accepted = [min(now, len(kept)) for now, kept in zip(committed.accepted, values, strict=True)]
        judged = [seen - was + now for seen, was, now in zip(committed.judged, committed.accepted, accepted, strict=True)]
        ended = [before or now for before, now in zip(committed.ended, stopped, strict=True)]
        counts = to_device([[len(kept) for kept in values], accepted, judged], self.left.device)
        halt = to_device(stopped, self.left.device)
        self.left = torch.where(halt, 0, self.left)
        parents = torch.where(halt[:, None], PAD, verdict.pending.parents)
        pending = replace(verdict.pending, parents=parents)
        verdict = replace(verdict, count=counts[0], accepted=counts[1], judged=counts[2], pending=pending)
        places = committed.places and [found[:now] for found, now in zip(committed.places, accepted, strict=True)]
        return verdict, replace(committed, values=values, accepted=accepted, judged=judged, ended=ended, places=places)

    def _close(self, committed: Committed) -> Committed:
        """Set the remaining budget of ended rows to 0 on the host, and say why they ended."""
        if not any(committed.ended):
            return committed
        for row, ended in enumerate(committed.ended):
            if ended and self.finish_reasons[row] is None:
                whole = self.remaining[row] <= 0 and not self._at_end(row)
                self.finish_reasons[row] = self.full if whole else STOP
            if ended:
                self.remaining[row] = 0
        return replace(committed, finish_reasons=list(self.finish_reasons))

    def _at_end(self, row: int) -> bool:
        """True if the last value of a row that is as long as it may be is one that ends rows."""
        if self.ends is None or self.forced or not self.outputs[row]:
            return False
        last = self.outputs[row][-1]
        if self.end_ids:  # known on the host, which waits for nothing
            return last in self.end_ids
        values = last[None, None] if isinstance(last, Tensor) else torch.tensor([[last]])  # ids or frames of ids, on the host
        return bool(self.ends(values).any())


def check_health(stopping: StoppingCriteria, committed: Committed) -> None:
    """Check that the target's logits of a round hold no NaN or infinity.

    Args:
        stopping: the stopping criteria, which have taken the round in.
        committed: the round.

    Raises:
        FloatingPointError: naming the row and the output position.
    """
    for row, healthy in enumerate(committed.healthy):
        if not healthy and committed.values[row]:
            step = len(stopping.outputs[row]) - len(committed.values[row])
            raise FloatingPointError(
                f"the target's logits hold NaN or infinity in row {row} at output position {step}: "
                "check the weights and the dtype (float16 overflows where bfloat16 does not)"
            )


def _one_of(ends: Tensor) -> EndTest | None:
    return (lambda values: torch.isin(values, ends)) if len(ends) else None


def _fetch(draft: Draft, scored: Scored, verdict: Verdict) -> Committed:
    """Transfer the round's outcome to the host at once. Columns of several dtypes become one that holds ids and counts exactly.

    Vectors stay on the device.
    """
    rows, vectors = len(verdict.count), verdict.values.is_floating_point()
    drafted = draft.size > draft.roots
    columns = {
        "count": verdict.count,
        "pending": verdict.pending.parents[:, -1],
        "accepted": verdict.accepted if drafted else None,
        "judged": verdict.judged if drafted else None,
        "drafted": draft.valid[:, draft.roots :].sum(1) if drafted else None,
        "healthy": scored.healthy,
        "drafter_healthy": draft.drafter_healthy,
        "drift": _exact(verdict.drift),
        "expected": _exact(verdict.expected),
    }
    there = {name: column for name, column in columns.items() if column is not None}
    kept = verdict.keep[:, draft.roots : draft.roots + draft.height] if drafted and not draft.linear else verdict.keep[:, :0]
    figures = torch.cat([torch.stack(list(there.values()), 1), kept], 1)
    packed = (figures if vectors else torch.cat([figures, verdict.values.flatten(1)], 1)).tolist()
    found: dict[str, Sequence[Any]] = dict(zip(there, zip(*packed, strict=True), strict=False)) if packed else {}
    zeros = [0] * rows
    count = [int(number) for number in found.get("count", ())]
    books = verdict.values.shape[2] if verdict.values.dim() == 3 else None
    if vectors:
        values = [list(verdict.values[row, :length]) for row, length in enumerate(count)]
    else:
        values = [_values(line[figures.shape[1] :], length, books) for line, length in zip(packed, count, strict=True)]
    accepted = [int(number) for number in found.get("accepted", zeros)]
    return Committed(
        values=values,
        accepted=accepted,
        judged=[int(number) for number in found.get("judged", zeros)],
        drafted=[int(number) for number in found.get("drafted", zeros)],
        ended=[number == PAD for number in found.get("pending", ())],
        healthy=[bool(number) for number in found.get("healthy", [1] * rows)],
        drift=[float(number) for number in found.get("drift", zeros)],
        expected=[float(number) for number in found.get("expected", zeros)],
        drafter_healthy=[bool(number) for number in found.get("drafter_healthy", [1] * rows)],
        places=_places(packed, len(there), accepted, draft.roots) if kept.shape[1] else None,
    )


def _places(packed: list[list[float]], first: int, accepted: list[int], roots: int) -> list[list[int]]:
    """Return the accepted draft tokens' places, from each row's kept columns, which begin at `first`."""
    return [[int(number) - roots for number in line[first : first + count]] for line, count in zip(packed, accepted, strict=True)]


def _exact(figures: Tensor | None) -> Tensor | None:
    """In float64, which holds token ids too: float32 beside them would round them."""
    return None if figures is None else figures.to(torch.float64)


def _values(line: list[float], count: int, books: int | None) -> list[Any]:
    """Return the first `count` values of a row: integers, or lists of `books` integers."""
    numbers = [int(number) for number in line[: count * (books or 1)]]
    return numbers if books is None else [numbers[i : i + books] for i in range(0, len(numbers), books)]
