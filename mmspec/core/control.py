"""Controllers of the draft length: the protocol, a fixed length, and the length of a round. Adaptive ones are in `core.draft_length`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from mmspec.core.protocols import CostlyStart, DraftSession, InProcesses, Matches, StoppingCriteria, TargetSession
from mmspec.core.records import Committed, Draft
from mmspec.utils.renamed import old_names

_LEAD = 16  # values by which a row is far ahead of the slowest one
MOST_DRAFTED = 4096
"""The most draft tokens a round: more would be scored in one forward of the target."""


def is_whole(value: Any) -> TypeGuard[int]:
    """True for integers; False for bools and everything else.

    Args:
        value: any object.

    Returns:
        Whether `value` is an int and not a bool.
    """
    return isinstance(value, int) and not isinstance(value, bool)


class ControlSession(Protocol):
    """The controller of one generation: chooses a length before each round and observes the outcome after it."""

    def length(self) -> int:
        """Choose the length of the coming round.

        Returns:
            Draft tokens to draft, 0 or more.
        """
        ...

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        """Record the outcome of a round.

        Args:
            length: draft tokens that were requested.
            committed: what the round committed.
            seconds: wall-clock time of the round.
        """
        ...


@runtime_checkable
class Charged(Protocol):
    """A control session that accounts for the cost of starting the drafter."""

    def charge(self, seconds: float) -> None:
        """Record the drafter's start-up time, once, in the round of its first draft tokens.

        `observe` follows for the same round, whose `seconds` include these.

        Args:
            seconds: time the drafter took for its own encoder and prompt before its first draft tokens.
        """
        ...


@runtime_checkable
class PutsOff(Protocol):
    """A control session that puts off the drafter's start until it is expected to pay."""

    def expect_start(self, seconds: float, step: float, values: float) -> None:
        """Record the estimated cost of the drafter's start, before the first round.

        Args:
            seconds: estimated time of the drafter's own encoder.
            step: estimated cost of a draft token in plain rounds.
            values: values that a row of the request is expected to commit.
        """
        ...


@runtime_checkable
class ReadsMatches(Protocol):
    """A control session that reads the lengths of matches before it chooses the length of a round."""

    def read_matches(self, matches: list[int | None] | None) -> None:
        """Record the matches of the coming round; `length` follows.

        Args:
            matches: as returned by `core.protocols.Matches.matches`; None also for rows that are far ahead of the slowest one.
        """
        ...


@runtime_checkable
class ReadsRows(Protocol):
    """A control session that reads the number of rows before it chooses the length of a round."""

    def read_rows(self, rows: int) -> None:
        """Record the rows of the coming round; `length` follows.

        Args:
            rows: rows that generate.
        """
        ...


class Control(Protocol):
    """A controller, passed to the public calls as `draft_length=`."""

    def begin(self) -> ControlSession:
        """Open a session for one generation.

        Returns:
            A session of its own.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """The same number of draft tokens every round.

    Args:
        draft_tokens: how many; 0 decodes without a draft.

    Raises:
        ValueError: when `draft_tokens` is negative.
    """

    draft_tokens: int

    def __post_init__(self):
        if not is_whole(self.draft_tokens) or not 0 <= self.draft_tokens <= MOST_DRAFTED:
            raise ValueError(
                f"draft_length is {self.draft_tokens}: give 0 or more draft tokens (at most {MOST_DRAFTED}), 'auto' or 'thompson'"
            )

    def begin(self) -> "Fixed":
        return self

    def length(self) -> int:
        return self.draft_tokens

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        pass


def chosen_once(target: Any, control: Control) -> tuple[Control, Callable[[int], int] | None]:
    """Let one process choose the draft lengths of a target that runs in several.

    Lengths that are chosen by measured time differ between processes, each of which has a clock of its own, and forwards of different
    widths cannot be computed together.

    Args:
        target: the target of the generation.
        control: chooses the lengths.

    Returns:
        The control of this process, and what exchanges the length of every round. None for targets in one process, and for a fixed length,
        which needs no exchange.
    """
    one = target.one_choice() if isinstance(target, InProcesses) and not isinstance(control, Fixed) else None
    if one is None:
        return control, None
    return control if one.leads else Fixed(0), one.agree


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
    read_rows = getattr(controller, "read_rows", None)  # of `ReadsRows`; looked up in every round, where `isinstance` of a protocol is slow
    if read_rows is not None:
        read_rows(len(stopping.outputs))
    read_matches = getattr(controller, "read_matches", None)
    if read_matches is None or not isinstance(proposer, Matches):
        return controller.length()
    matches = proposer.matches(pending)
    read_matches(_of_slow_rows(matches, stopping.outputs) if fixed else matches)
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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
