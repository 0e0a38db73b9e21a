"""The cost of a round by the number of columns it scores, in plain rounds."""

from bisect import bisect_left, bisect_right
from statistics import median, median_low

_KEPT = 9
SLOPE = 0.08
"""Plain rounds that one more column is taken to cost before anything is measured."""

_OUTLIER = 3.0  # times the estimate from other sizes


class CostCurve:
    """Seconds of rounds by columns scored, as ratios to a plain round, which scores one column.

    Medians of the last rounds, so that single slow rounds have no effect. Before three rounds of a size are measured, the estimate from
    other sizes takes part, and rounds far above it are left out; without any, it is 1 + 0.08 a draft token.

    Args:
        ratios: what is known, by columns above 1; written to.
    """

    def __init__(self, ratios: dict[int, list[float]] | None = None):
        self.ratios = {} if ratios is None else ratios
        self.plain: list[float] = []  # seconds of the last plain rounds

    @property
    def widest(self) -> int:
        """Largest number of columns measured, 1 or more."""
        return max(list(self.ratios), default=1)

    def add(self, columns: int, seconds: float) -> float:
        """Record a round.

        Args:
            columns: columns it scored, draft tokens and one more.
            seconds: wall-clock time.

        Returns:
            Its cost in plain rounds; estimated from `columns` while no plain round has been recorded.
        """
        if columns == 1:
            self.plain = [*self.plain, seconds][-_KEPT:]
            return 1.0
        if not self.plain:
            return self.at(columns)
        ratio = seconds / median_low(self.plain)
        self.ratios[columns] = [*self.ratios.get(columns, ()), ratio][-_KEPT:]
        return ratio

    def at(self, columns: int) -> float:
        """Estimate the cost of a round.

        Args:
            columns: columns it scores.

        Returns:
            Plain rounds.
        """
        if columns == 1:
            return 1.0
        seen = list(self.ratios.get(columns, ()))
        if len(seen) > 2:
            return median(seen)
        near = self._between(columns)
        plausible = [ratio for ratio in seen if ratio <= _OUTLIER * near]
        return plausible[0] if len(plausible) == 1 else median_low([*plausible, near])

    def _between(self, columns: int) -> float:
        """The line through the nearest measured sizes; beyond the widest, the prior slope or the curve's own, whichever is steeper."""
        sizes = [1, *sorted(size for size in list(self.ratios) if size != columns)]
        costs = [1.0, *(median(self.ratios[size]) for size in sizes[1:])]
        above = bisect_left(sizes, columns)
        left, right = above - 1, above
        if above == len(sizes):
            base = max(0, bisect_right(sizes, (sizes[-1] + 1) // 2) - 1)  # far enough below that noise does not set the slope
            own = (costs[-1] - costs[base]) / (sizes[-1] - sizes[base]) if len(sizes) > 1 else 0.0
            return costs[-1] + max(own, SLOPE if len(sizes) < 4 else SLOPE / 4) * (columns - sizes[-1])
        share = (columns - sizes[left]) / (sizes[right] - sizes[left])
        return costs[left] + share * (costs[right] - costs[left])
