"""What simulated schedules draw from: seconds of calls, constant or replayed from measurements, and acceptance from a seeded generator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random

from mmspec.bench.schedules.cycles import rate_at
from mmspec.bench.schedules.machine import PlannedMachine


@dataclass(frozen=True)
class MeasuredLatencies:
    """Measured seconds of calls, in the order in which they were made.

    Args:
        target: seconds of forwards of the target over one column a row.
        draft: seconds of drafter steps, each for one draft token.

    Raises:
        ValueError: for an empty list, and for seconds that are not above 0.
    """

    target: tuple[float, ...]
    draft: tuple[float, ...]

    def __post_init__(self):
        for name in ("target", "draft"):
            values = getattr(self, name)
            if not values or not all(0 < value < float("inf") for value in values):
                raise ValueError(f"latencies of {name!r} are no list of seconds above 0: measure at least one call")


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulated schedule did.

    Attributes:
        tokens: committed tokens, over all rows.
        seconds: simulated seconds.
        calls: forwards of the target.
    """

    tokens: int
    seconds: float
    calls: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all rows together."""
        return self.tokens / self.seconds


class SimulatedCalls:
    """Seconds of successive calls, and whether draft tokens are accepted.

    Args:
        machine: constant seconds, and how they grow with the columns.
        rates: acceptance by position in the draft; the last holds for all later positions.
        seed: of the acceptance, and of the places where replayed lists begin.
        latencies: measured seconds that replace the constant ones; the lists are repeated from their beginning.
    """

    def __init__(self, machine: PlannedMachine, rates: Sequence[float], seed: int = 0, latencies: MeasuredLatencies | None = None):
        self.machine, self.rates, self.random = machine, rates, Random(seed)
        self.seconds = 0.0
        self.tokens = self.calls = 0
        targets, drafts = (machine.score(1),), (machine.step(),)
        if latencies is not None:
            targets, drafts = latencies.target, latencies.draft
        self._targets, self._drafts = self._endless(targets), self._endless(drafts)

    def _endless(self, values: Sequence[float]) -> Iterator[float]:
        first = self.random.randrange(len(values))
        return cycle([*values[first:], *values[:first]])

    def score(self, columns: int) -> float:
        """Return the seconds of the next forward of the target, over `columns` of each row."""
        self.calls += 1
        return next(self._targets) * self.machine.score(columns) / self.machine.score(1)

    def step(self) -> float:
        """Return the seconds of the drafter's next step."""
        return next(self._drafts)

    def steps(self, count: int) -> float:
        """Return the seconds of the drafter's next `count` steps."""
        return sum(self.step() for _ in range(count))

    def accepted(self, count: int, first: int = 0) -> int:
        """Draw how many of `count` draft tokens are accepted before the first rejection.

        Args:
            count: draft tokens.
            first: position of the first of them in the draft.

        Returns:
            Accepted ones, 0 to `count`.
        """
        for number in range(count):
            if self.random.random() >= rate_at(self.rates, first + number):
                return number
        return count

    def run(self) -> SimulatedRun:
        """Return what was simulated so far."""
        return SimulatedRun(self.tokens, self.seconds, self.calls)
