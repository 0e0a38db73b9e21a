"""How many guesses to draft: a fixed number, the one that maximises measured throughput, or one drawn by Thompson sampling."""

import random
from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mmspec.core.records import Settled


class ControlSession(Protocol):
    def length(self) -> int:
        """Guesses to draft in the coming round."""
        ...

    def observe(self, length: int, settled: Settled, seconds: float) -> None:
        """What a round of `length` guesses brought and cost."""
        ...


@runtime_checkable
class Charged(Protocol):
    """A control session that wants to know what a drafter costs before it has brought anything."""

    def charge(self, seconds: float) -> None:
        """The drafter made its first guesses: it took `seconds` to get there, its encoding and its prompt. `observe` follows, for the
        round they were made in, whose seconds hold these."""
        ...


class Control(Protocol):
    def begin(self) -> ControlSession: ...


@dataclass(frozen=True)
class Fixed:
    """The same number of guesses every round."""

    guesses: int

    def __post_init__(self):
        if self.guesses < 0:
            raise ValueError(f"draft_length is {self.guesses}: give 0 or more guesses, 'auto' or 'thompson'")

    def begin(self) -> "Fixed":
        return self

    def length(self) -> int:
        return self.guesses

    def observe(self, length: int, settled: Settled, seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Throughput:
    """Maximise expected values per second over `lengths`, from acceptance by position and seconds per round, both measured online.

    Costs are measured at the batch size at hand, so a batch that fills the machine ends up with short drafts or none. Zero is
    always tried early, and again at ever longer intervals while it stays the best.
    """

    lengths: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    first: int = 4

    def begin(self) -> "ThroughputSession":
        return ThroughputSession(self)


class ThroughputSession:
    """The running estimates of one generation."""

    def __init__(self, plan: Throughput):
        self.plan = plan
        most = max(*plan.lengths, plan.first)
        self.hits = [0.0] * most  # by position: guesses accepted, with a weak prior below
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

    def observe(self, length: int, settled: Settled, seconds: float) -> None:
        self.rounds += 1
        self.zeros = self.zeros + 1 if length == 0 else 0
        if self.rounds > 1:  # the first round holds the prefill
            self.seconds.setdefault(length, deque(maxlen=9)).append(seconds)
        for accepted, values in zip(settled.accepted, settled.values, strict=True):
            if length and values:  # what lies deeper than guesses now get is forgotten too, or it would be believed for ever
                self.tries, self.hits = [0.98 * n for n in self.tries], [0.98 * n for n in self.hits]
            for position in range(min(length, accepted + 1) if values else 0):  # a guess that was not made bought nothing: a miss
                self.tries[position] += 1
                self.hits[position] += position < accepted

    def expected(self, length: int) -> float:
        """Values a row settles in a round of `length` guesses."""
        total, reach, last = 1.0, 1.0, 0.5
        for position in range(length):
            last = (self.hits[position] + 2 * last) / (self.tries[position] + 2)  # little data leans on the position before
            reach *= last
            total += reach
        return total

    def cost(self, length: int) -> float:
        """Seconds of such a round: the median seen, or the line through the nearest lengths seen."""
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


@dataclass(frozen=True)
class Thompson:
    """EESD's Thompson sampling (Liu et al. 2024): each guess is followed by another with probability theta, drawn anew every time.

    theta comes from Beta(s + 1, f + 1), the posterior of a guess's acceptance after s accepted and f rejected ones, all positions
    and rows taken together. At least `least` and at most `most` guesses are made. Draws are the plan's own, by `seed`: they do not
    touch the generation's noise. It looks at acceptance only and never at costs, so it does not end up with no guesses at all.
    """

    most: int = 16
    least: int = 1
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.least <= self.most:
            raise ValueError(f"least is {self.least} and most {self.most}: give 0 <= least <= most guesses")

    def begin(self) -> "ThompsonSession":
        return ThompsonSession(self)


class ThompsonSession:
    """The posterior of one generation."""

    def __init__(self, plan: Thompson):
        self.plan, self.random = plan, random.Random(plan.seed)
        self.accepted = self.rejected = 0

    def length(self) -> int:
        length = self.plan.least
        while length < self.plan.most and self.random.random() < self.random.betavariate(self.accepted + 1, self.rejected + 1):
            length += 1
        return length

    def observe(self, length: int, settled: Settled, seconds: float) -> None:
        # guesses behind the first rejected one were not judged: they say nothing
        self.accepted += sum(settled.accepted)
        self.rejected += sum(settled.judged) - sum(settled.accepted)
