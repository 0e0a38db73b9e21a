"""Draft length by the number of rows, for generations that rows join and leave: a full one pays more for every column than a lone row."""

from dataclasses import dataclass, field

from mmspec.core.control import Control, ControlSession, ReadsMatches
from mmspec.core.records import Committed


@dataclass(frozen=True)
class ByRows:
    """One controller for each class of row counts: 1, 2, 3 to 4, 5 to 8, and so on. Each measures its own seconds and acceptance.

    Args:
        control: makes them.
    """

    control: Control

    def begin(self) -> "ByRowsSession":
        matching = isinstance(self.control.begin(), ReadsMatches)
        return (ByRowsOfMatches if matching else ByRowsSession)(self.control)


@dataclass
class ByRowsSession:
    """The controllers of one generation.

    Args:
        control: makes them.
        rows: rows of the coming round.
        sessions: controllers by class, made when they are first needed.
    """

    control: Control
    rows: int = 1
    sessions: dict[int, ControlSession] = field(default_factory=dict)

    @property
    def current(self) -> ControlSession:
        """The controller of the coming round."""
        kind = max(0, self.rows - 1).bit_length()
        if kind not in self.sessions:
            self.sessions[kind] = self.control.begin()
        return self.sessions[kind]

    def read_rows(self, rows: int) -> None:
        self.rows = rows

    def length(self) -> int:
        return self.current.length()

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.current.observe(length, committed, seconds)


class ByRowsOfMatches(ByRowsSession):
    """The controllers of one generation, which read the lengths of matches."""

    def read_matches(self, matches: list[int | None] | None) -> None:
        self.current.read_matches(matches)  # type: ignore[attr-defined]
