"""Which committed values were draft tokens, position by position."""

from collections.abc import Sequence

from mmspec.core.records import Step

DRAFTED, OWN = "drafted", "own"
"""Marks of a value that was an accepted draft token, and of one that the target chose itself."""


class Marks:
    """Records the values of row 0 and their marks.

    Attributes:
        values: what was committed, in order of position.
        marks: `DRAFTED` or `OWN` for each value.
    """

    def __init__(self) -> None:
        self.values: list[object] = []
        self.marks: list[str] = []

    def add(self, step: Step) -> None:
        """Take in a round.

        Args:
            step: the round.
        """
        values, accepted = step.committed.values[0], step.committed.accepted[0]
        self.values += values
        self.marks += round_marks(values, accepted)


def round_marks(values: Sequence[object], accepted: int) -> list[str]:
    """Return the marks of one round.

    Args:
        values: what it committed: the accepted draft tokens, then the target's own, if the row did not end before it.
        accepted: draft tokens that were accepted.
    """
    drafted = min(accepted, len(values))
    return [DRAFTED] * drafted + [OWN] * (len(values) - drafted)
