"""The draft length of a round, by the controller and what the drafter knows of the round."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from mmspec.core.control import ControlSession, PutsOff, ReadsMatches, ReadsRows
from mmspec.core.protocols import CostlyStart, DraftSession, Matches, StoppingCriteria, TargetSession
from mmspec.core.records import Draft

_LEAD = 16  # values by which a row is far ahead of the slowest one


def next_length(controller: ControlSession, proposer: DraftSession, pending: Draft, stopping: StoppingCriteria, fixed: bool = True) -> int:
    """Return the draft length of the coming round.

    Args:
        controller: chooses it; one that reads matches gets the drafter's.
        proposer: the drafter's session.
        pending: the pending tokens.
        stopping: where rows end.
        fixed: the rows began together, and the batch ends with its slowest row.

    Returns:
        Draft tokens; for a controller that reads matches, no more than the longest row can commit.
    """
    if isinstance(controller, ReadsRows):
        controller.read_rows(len(stopping.outputs))
    if not (isinstance(controller, ReadsMatches) and isinstance(proposer, Matches)):
        return controller.length()
    matches = proposer.matches(pending)
    controller.read_matches(_of_slow_rows(matches, stopping.outputs) if fixed else matches)
    length = controller.length()
    most = stopping.budget(length).most
    return length if most is None else most


def _of_slow_rows(matches: list[int | None] | None, outputs: Sequence[Sequence[Any]]) -> list[int | None] | None:
    """`matches` without rows that are far ahead: the batch ends with its slowest row, which pays for their columns."""
    if matches is None or len(matches) == 1:
        return matches
    sizes = [len(values) for values in outputs]
    least = min((size for size, match in zip(sizes, matches, strict=True) if match is not None), default=0)
    return [match if size <= least + _LEAD else None for size, match in zip(sizes, matches, strict=True)]


def expect_start(
    controller: PutsOff, drafter: CostlyStart, prompt: Any, session: TargetSession, encode: float, stopping: StoppingCriteria
) -> None:
    """Tell a controller what the drafter's start is expected to cost.

    Args:
        controller: puts off the start until it is expected to pay.
        drafter: the drafter.
        prompt: the request's prompt.
        session: the target's session.
        encode: seconds of the target's encoder.
        stopping: where rows end.
    """
    work = drafter.start_work(prompt, session)
    if work is not None:
        most = stopping.budget(ceil(work.values)).most
        controller.expect_start(work.encoder * encode, work.step, work.values if most is None else min(work.values, most + 1))
