"""Rows of a generation under way that leave it, and those of another one that join it, between two rounds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from mmspec.core.noise import Noise
from mmspec.core.records import Draft
from mmspec.core.rows.changes import ChangesRows, KeepsRoots, refuse_fixed_rows
from mmspec.core.rows.pending import joined_pending, pending_rows, shifted_roots, unused_roots

if TYPE_CHECKING:
    from mmspec.core.protocols import DraftSession, StoppingCriteria, TargetSession


class RoundRows:
    """The part of `core.decode.Rounds` that changes its rows."""

    session: "TargetSession"
    proposer: "DraftSession"
    stopping: "StoppingCriteria"
    pending: Draft
    noise: Noise
    fixed: bool

    @property
    def joinable(self) -> bool:
        """True once rows can be taken and joined: target and drafter have run their prompts."""
        return all(part.joinable for part in self._parts())

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows, in a new order; between rounds. See `ChangesRows`.

        Args:
            rows: numbers of the rows that stay.
        """
        for part in self._parts():
            part.take_rows(rows)
        self.pending, self.noise, self.fixed = pending_rows(self.pending, rows), self.noise.take_rows(rows), False
        self._shift_roots(-unused_roots(self.pending))

    def join_rows(self, other: Self) -> None:
        """Append the rows of another generation with the same target, drafter and rule; between rounds. See `ChangesRows`.

        Args:
            other: the generation, not used afterwards.
        """
        most = max(self.pending.roots, other.pending.roots)
        for each in (self, other):
            each._shift_roots(most - each.pending.roots)
        for part, more in zip(self._parts(), other._parts(), strict=True):
            part.join_rows(more)
        self.pending, self.noise, self.fixed = joined_pending(self.pending, other.pending), self.noise.join_rows(other.noise), False

    def refuse_fixed_rows(self) -> None:
        """Refuse what cannot let rows join and leave.

        Raises:
            ValueError: naming the target or the drafter.
        """
        for part in self._parts():
            _ = part.joinable

    def _shift_roots(self, by: int) -> None:
        """Move the roots of the pending draft to other columns, wherever a part keeps them."""
        if by == 0:
            return
        for part in (self.session, self.proposer):
            if isinstance(part, KeepsRoots):
                part.shift_roots(by)
        self.pending = shifted_roots(self.pending, by)

    def _parts(self) -> tuple[ChangesRows, ...]:
        """What holds state by row. ValueError if a part cannot let rows join."""
        named: dict[str, Any] = {"the target": self.session, "the drafter": self.proposer, "stopping": self.stopping}
        for role, part in named.items():
            refuse_fixed_rows(part, role)
        return tuple(named.values())
