"""Acceptance of draft tokens by the length of the match that they continue and their position in the draft."""

from bisect import bisect_right

LEAST = (0, 1, 2, 3, 4, 6, 10, 20)
"""The shortest match of each class of matches, in tokens; the first class is for lengths that are not known."""
POSITIONS = 4
"""Positions told apart; the last stands for all later ones."""
_PRIOR = (
    (0.45, 0.6, 0.7, 0.75),
    (0.35, 0.55, 0.75, 0.85),
    (0.4, 0.7, 0.8, 0.88),
    (0.6, 0.75, 0.85, 0.9),
    (0.7, 0.85, 0.9, 0.92),
    (0.8, 0.9, 0.93, 0.95),
    (0.9, 0.94, 0.96, 0.97),
    (0.95, 0.97, 0.98, 0.98),
)
_WEIGHT = 4.0  # trials that the prior, or what earlier requests saw, stands for
_DECAY, _DECAY_KNOWN = 0.93, 0.98  # of one request's counts, and of those kept for later ones

Counts = list[list[list[float]]]
"""[class of matches][position] -> [accepted, judged]."""


def match_class(match: int | None) -> int:
    """Return the class of a match of `match` tokens.

    Args:
        match: tokens, 1 or more; None if not known.

    Returns:
        Index into `LEAST`.
    """
    return 0 if match is None else bisect_right(LEAST, match) - 1


def no_counts() -> Counts:
    """Return counts of nothing.

    Returns:
        Zeros.
    """
    return [[[0.0, 0.0] for _ in range(POSITIONS)] for _ in LEAST]


class AcceptanceByMatch:
    """Chances that a draft token is accepted when those before it were. Recent rounds count more.

    Args:
        known: counts of earlier requests, where this one starts; written to.
    """

    def __init__(self, known: Counts | None = None):
        self.known = no_counts() if known is None else known
        self.start = [
            [_mixed(counts, prior) for counts, prior in zip(seen, priors, strict=True)]
            for seen, priors in zip(self.known, _PRIOR, strict=True)
        ]
        self.own = no_counts()

    def add(self, match: int, accepted: int, judged: int) -> None:
        """Record one row of a round.

        Args:
            match: class of its match.
            accepted: draft tokens accepted.
            judged: draft tokens judged: the accepted ones and the rejected one, if any.
        """
        for position in range(judged):
            column = min(position, POSITIONS - 1)
            for counts, decay in ((self.own[match][column], _DECAY), (self.known[match][column], _DECAY_KNOWN)):
                counts[0] = decay * counts[0] + (position < accepted)
                counts[1] = decay * counts[1] + 1

    def values(self, match: int, length: int) -> float:
        """Estimate the values that a row commits in a round.

        Args:
            match: class of its match.
            length: draft tokens.

        Returns:
            Values, 1 or more.
        """
        chances = [_mixed(counts, start) for counts, start in zip(self.own[match], self.start[match], strict=True)]
        total = reach = 1.0
        for position in range(length):
            reach *= chances[min(position, POSITIONS - 1)]
            total += reach
        return total


def _mixed(counts: list[float], prior: float) -> float:
    accepted, judged = counts
    return (accepted + _WEIGHT * prior) / (judged + _WEIGHT)
