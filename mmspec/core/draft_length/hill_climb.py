"""Hill climbing over the length of a draft window: the length that commits the most values per second.

`core.draft_length.throughput` extrapolates from acceptance by position, which holds where every round drafts anew. In a window that is
refined from round to round, acceptance rises with refinement rounds. So lengths are compared by their measured values and seconds only.
Costs are those of the batch at hand, guidance included.
"""

from dataclasses import dataclass

from mmspec.core.records import Committed

LADDER = (0, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127)
"""Lengths that are tried: draft tokens a round, the committed value before them not counted."""


@dataclass(frozen=True)
class HillClimb:
    """Go up or down the `ladder` from the length nearest to `first` while values per second grow; try neighbours again ever less often.

    Args:
        first: length to start near.
        ladder: lengths to try, rising.
        rounds: rounds a length is measured for.
        warm_up: the first of those, which do not count.
        least: relative gain needed to take a step, since clocks are noisy.

    Raises:
        ValueError: for a ladder that does not rise, or no rounds that count.
    """

    first: int = 15
    ladder: tuple[int, ...] = LADDER
    rounds: int = 6
    warm_up: int = 2
    least: float = 0.03

    def __post_init__(self):
        if not self.ladder or list(self.ladder) != sorted(set(self.ladder)) or self.ladder[0] < 0:
            raise ValueError(f"ladder is {self.ladder}: give rising numbers of draft tokens")
        if not 0 <= self.warm_up < self.rounds:
            raise ValueError(f"rounds is {self.rounds} and warm_up {self.warm_up}: some rounds must count")

    def begin(self) -> "HillClimbSession":
        return HillClimbSession(self)


class HillClimbSession:
    """One generation's search: `here` is the best rung known, `trying` the one being measured.

    Args:
        plan: the settings.
    """

    def __init__(self, plan: HillClimb):
        self.plan = plan
        ladder = plan.ladder
        self.here = self.trying = min(range(len(ladder)), key=lambda rung: abs(ladder[rung] - plan.first))
        self.direction = 1
        self.rates: dict[int, float] = {}  # values a row per second, by rung, as last seen
        self.started = False
        self.idle = 0  # rounds to stay before looking around again
        self.patience = 2 * plan.rounds
        self.missed = 0  # directions without gain since the last step
        self._epoch()

    def length(self) -> int:
        return self.plan.ladder[self.trying]

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        rows = [len(values) for values in committed.values if values]
        if not self.started:  # the first round holds the prefill
            self.started = True
            return
        if not rows:
            return
        self.seen += 1
        if self.seen > self.plan.warm_up:
            self.values += sum(rows) / len(rows)
            self.seconds += seconds
        if self.seen == self.plan.rounds:
            self._judge()

    def _epoch(self) -> None:
        self.seen, self.values, self.seconds = 0, 0.0, 0.0

    def _judge(self) -> None:
        """A rung has had its rounds: take the step, reverse direction, or stay for a while."""
        self.rates[self.trying] = self.values / max(self.seconds, 1e-12)
        self._epoch()
        if self.trying != self.here:
            if self.rates[self.trying] > self.rates[self.here] * (1 + self.plan.least):
                self.here, self.missed, self.patience = self.trying, 0, 2 * self.plan.rounds
            else:
                self.direction, self.missed = -self.direction, self.missed + 1
        elif self.idle > 0:
            self.idle -= self.plan.rounds
        if self.missed >= 2 or self.idle > 0:
            if self.missed >= 2:
                self.idle, self.patience, self.missed = self.patience, 2 * self.patience, 0
            self.trying = self.here
            return
        step = self.here + self.direction
        if not 0 <= step < len(self.plan.ladder):
            self.direction, self.missed = -self.direction, self.missed + 1
            step = self.here + self.direction
        self.trying = step if 0 <= step < len(self.plan.ladder) and self.missed < 2 else self.here


def in_flight(rows: int, cuda: bool) -> int:
    """Estimate the window length to start with.

    A forward that reads all weights can take about 200 tokens on a large GPU at little extra cost (its FLOP/byte ratio), and far fewer on a
    CPU.

    Args:
        rows: rows that share them, both rows of a guided pair counted.
        cuda: the model runs on a GPU.

    Returns:
        Draft tokens a row.
    """
    return max(1, (200 if cuda else 32) // rows)
