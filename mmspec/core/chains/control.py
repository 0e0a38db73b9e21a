"""The number of states in a round of speculation inside a chain."""

from dataclasses import dataclass, field
from math import isqrt


def usual_draft_steps(steps: int) -> int:
    """Return the default number of drafted states beside the current one: 6 for 16 steps, 14 for 64, 20 for 128.

    Args:
        steps: steps of the chain.

    Returns:
        At least 1.
    """
    return max(1, min(30, 2 * isqrt(steps) - 2))


@dataclass(frozen=True)
class FixedSteps:
    """The same number of drafted states in every round.

    Args:
        draft_steps: states beside the current one, 0 or more.
    """

    draft_steps: int

    def length(self, rows: int, left: int) -> int:
        """Return the states of a round."""
        return self.draft_steps + 1

    def observe(self, length: int, left: list[int], kept: list[int], seconds: float) -> None:
        """Ignore a round."""


@dataclass
class MeasuredSteps:
    """Chooses the number of states that commits the most steps a second, from measured seconds and acceptance.

    A round of `length` states in each of R rows is expected to take c0 + c1 R length seconds, fitted by least squares with forgetting, and
    to commit 1 + a + a^2 + ... steps, with a the share of judged steps that were kept. The first rounds try several lengths.

    Args:
        first: lengths that are tried first.
        most: largest length.
        memory: share of the past that a round keeps.
    """

    first: tuple[int, ...] = (1, 4, 8, 16, 2, 6, 12, 4, 8)
    most: int = 24
    memory: float = 0.99
    rounds: int = 0
    kept: float = 4.0
    judged: float = 5.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # of 1, n, n^2, t, n t for n states in t seconds

    def length(self, rows: int, left: int) -> int:
        """Return the states of a round."""
        if self.rounds < len(self.first):
            return self.first[self.rounds]
        fixed, each = self.cost()
        share, steps, best, chosen = self.kept / self.judged, 0.0, 0.0, 1
        for length in range(1, min(self.most, left) + 1):
            steps += share ** (length - 1)
            rate = steps / (fixed + each * rows * length)
            if rate > best:
                best, chosen = rate, length
        return chosen

    def observe(self, length: int, left: list[int], kept: list[int], seconds: float) -> None:
        """Learn from a round."""
        self.rounds += 1
        if self.rounds > 1:  # the first makes tables and warms up
            states = len(kept) * length
            new = (1.0, states, states * states, seconds, states * seconds)
            self.sums = [self.memory * old + more for old, more in zip(self.sums, new, strict=True)]
        for had, done in zip(left, kept, strict=True):
            most = min(length, had)
            if most > 1:  # the last step of a window is not told apart from a refused one: it counts for nothing
                self.kept = self.memory * self.kept + min(done, most) - 1
                self.judged = self.memory * self.judged + min(done, most - 1)

    def cost(self) -> tuple[float, float]:
        """Return the seconds of a call, and of a state in it."""
        count, n, nn, t, nt = self.sums
        spread = count * nn - n * n
        each = (count * nt - n * t) / spread if spread > 1e-9 * nn * count else 0.0
        each = max(each, 1e-3 * t / n)
        return max((t - each * n) / count, 1e-9), each
