"""The draft length of highest expected throughput, from measured acceptance and cost."""

from collections import deque
from dataclasses import dataclass

from mmspec.core.records import Committed


@dataclass(frozen=True)
class Throughput:
    """Maximise expected values per second, from acceptance by position and seconds per round, both measured online.

    Costs are measured at the batch size at hand, so a batch that fills the machine gets short drafts or none. Zero is always tried early;
    while it stays the best, drafting is tried again at growing intervals.

    Args:
        lengths: lengths to choose from.
        first: length of the first rounds.
    """

    lengths: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    first: int = 4

    def begin(self) -> "ThroughputSession":
        return ThroughputSession(self)


class ThroughputSession:
    """The running estimates of one generation.

    Args:
        plan: the settings.
    """

    def __init__(self, plan: Throughput):
        self.plan = plan
        most = max(*plan.lengths, plan.first)
        self.hits = [0.0] * most  # by position: draft tokens accepted, with a weak prior below
        self.tries = [0.0] * most
        self.seconds: dict[int, deque[float]] = {}
        self.rounds = 0
        self.current = plan.first
        self.idle = 8  # rounds of zero before drafting is tried again
        self.zeros = 0

    def length(self) -> int:
        opening = (self.plan.first, 0, self.plan.first)
        if self.rounds < len(opening):
            self.current = opening[self.rounds]
        elif self.current == 0 and self.zeros >= self.idle:
            self.current, self.zeros, self.idle = self.plan.first, 0, min(2 * self.idle, 256)
        else:
            self.current = self._best()
        return self.current

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.rounds += 1
        self.zeros = self.zeros + 1 if length == 0 else 0
        if self.rounds > 1:  # the first round holds the prefill
            self.seconds.setdefault(length, deque(maxlen=9)).append(seconds)
        self._count(length, committed)

    def _count(self, length: int, committed: Committed) -> None:
        """Take in which draft tokens were accepted."""
        for accepted, values in zip(committed.accepted, committed.values, strict=True):
            if length and values:  # positions beyond the current length decay, too, or stale estimates would stay
                self.tries, self.hits = [0.98 * n for n in self.tries], [0.98 * n for n in self.hits]
            for position in range(min(length, accepted + 1) if values else 0):  # a draft token that was not made counts as a miss
                self.tries[position] += 1
                self.hits[position] += position < accepted

    def expected(self, length: int) -> float:
        """Estimate the values a row commits in a round.

        Args:
            length: draft tokens in the round.

        Returns:
            Values, 1 or more.
        """
        total, reach, last = 1.0, 1.0, 0.5
        for position in range(length):
            last = (self.hits[position] + 2 * last) / (self.tries[position] + 2)  # with little data, close to the position before
            reach *= last
            total += reach
        return total

    def cost(self, length: int) -> float:
        """Estimate the seconds of a round: the median measured, or the line through the nearest lengths measured.

        Args:
            length: draft tokens in the round.

        Returns:
            Seconds.
        """
        seen = {n: sorted(times)[len(times) // 2] for n, times in self.seconds.items()}
        if length in seen:
            return seen[length]
        below = [n for n in seen if n < length]
        above = [n for n in seen if n > length]
        near = sorted([*sorted(below)[-2:], *sorted(above)[:2]], key=lambda n: abs(n - length))[:2]
        if len(near) < 2:
            return seen[near[0]]
        a, b = near
        slope = max(0.0, (seen[b] - seen[a]) / (b - a))
        return max(1e-9, seen[a] + slope * (length - a))

    def _best(self) -> int:
        furthest = 2 * max(self.seconds) + 2  # costs are not extrapolated far
        usable = [n for n in self.plan.lengths if n <= furthest]
        return max(usable, key=lambda n: self.expected(n) / self.cost(n))
