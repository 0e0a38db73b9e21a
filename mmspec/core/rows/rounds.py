"""Rows of a generation under way that leave it, and those of another one that join it, between two rounds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from mmspec.core.rows.changes import ChangesRows, KeepsRoots, ManyRoots, changes_rows, refuse_fixed_rows
from mmspec.core.rows.pending import joined_pending, pending_rows

if TYPE_CHECKING:
    from mmspec.core.accept_rule import AcceptRule
    from mmspec.core.noise import Noise
    from mmspec.core.protocols import DraftSession, StoppingCriteria, TargetSession
    from mmspec.core.records import Draft


class RoundRows:
    """The part of `core.decode.Rounds` that changes its rows."""

    session: "TargetSession"
    proposer: "DraftSession"
    stopping: "StoppingCriteria"
    accept: "AcceptRule"
    pending: "Draft"
    noise: "Noise"
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
        if changes_rows(self.accept):
            self.accept = self.accept.take_rows(rows)  # type: ignore[attr-defined]
        self._pack_roots()

    def join_rows(self, other: Self) -> None:
        """Append the rows of another generation with the same target, drafter and rule; between rounds. See `ChangesRows`.

        Args:
            other: the generation, not used afterwards.
        """
        other._pack_roots()
        most = max(self.pending.roots, other.pending.roots)
        for each in (self, other):
            if each.pending.roots < most:
                each._move_roots(each.pending.aux.widened(each.pending, most))
        for part, more in zip(self._parts(), other._parts(), strict=True):
            part.join_rows(more)
        self.pending, self.noise, self.fixed = joined_pending(self.pending, other.pending), self.noise.join_rows(other.noise), False
        if changes_rows(self.accept):
            self.accept = self.accept.join_rows(other.accept)  # type: ignore[attr-defined]

    def refuse_fixed_rows(self) -> None:
        """Refuse what cannot let rows join and leave.

        Raises:
            ValueError: naming the target or the drafter.
        """
        for part in self._parts():
            _ = part.joinable

    def _pack_roots(self) -> None:
        """Drop columns of the pending draft that no row uses, where it is a tree of many roots."""
        if self.pending.roots > 1:
            aux: ManyRoots = self.pending.aux
            self._move_roots(aux.packed(self.pending))

    def _move_roots(self, pending: "Draft") -> None:
        """Take `pending`, whose roots stand in other columns, and tell the parts that count these."""
        by = pending.roots - self.pending.roots
        for part in (self.session, self.proposer):
            if by and isinstance(part, KeepsRoots):
                part.shift_roots(by)
        self.pending = pending

    def _parts(self) -> tuple[ChangesRows, ...]:
        """What holds state by row. ValueError if a part cannot let rows join."""
        named: dict[str, Any] = {"the target": self.session, "the drafter": self.proposer, "stopping": self.stopping}
        for role, part in named.items():
            refuse_fixed_rows(part, role)
        return tuple(named.values())
