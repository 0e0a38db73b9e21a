"""How many draft tokens to draft: a fixed number, the one that maximises measured throughput, or one drawn by Thompson sampling."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mmspec.core.records import Committed

MOST_DRAFTED = 4096
"""The most draft tokens a round: more would be scored in one forward of the target."""


def is_whole(value: Any) -> bool:
    """True for whole numbers; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


class ControlSession(Protocol):
    def length(self) -> int:
        """Draft tokens to draft in the coming round."""
        ...

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        """What a round of `length` draft tokens brought and cost."""
        ...


@runtime_checkable
class Charged(Protocol):
    """A control session that wants to know what a drafter costs before it has brought anything."""

    def charge(self, seconds: float) -> None:
        """The drafter made its first draft tokens: it took `seconds` to get there, its encoding and its prompt. `observe` follows, for the
        round they were made in, whose seconds hold these."""
        ...


class Control(Protocol):
    def begin(self) -> ControlSession: ...


@dataclass(frozen=True)
class Fixed:
    """The same number of draft tokens every round."""

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
