"""How long a window to draft: the length that commits the most values per second, found by trying.

`control.Throughput` extrapolates from acceptance by position, which holds where every round drafts anew. Draft tokens that live on from
round to round ripen: how often the tenth is accepted depends on how long it has been in the window. So lengths are compared by what
they were seen to bring and to cost, nothing else. Costs are those of the batch at hand, guidance included.
"""

from dataclasses import dataclass

from mmspec.core.records import Committed

LADDER = (0, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127)
"""Lengths that are tried: draft tokens a round, the committed value before them not counted."""


@dataclass(frozen=True)
class HillClimb:
    """Go up or down the `ladder` from the length nearest to `first` while values per second grow; look around again ever less often.

    A length is judged by `rounds` rounds, of which the first `ripening` do not count. A step must gain `least` (a share) to be taken,
    as clocks are noisy.
    """

    first: int = 15
    ladder: tuple[int, ...] = LADDER
    rounds: int = 6
    ripening: int = 2
    least: float = 0.03

    def __post_init__(self):
        if not self.ladder or list(self.ladder) != sorted(set(self.ladder)) or self.ladder[0] < 0:
            raise ValueError(f"ladder is {self.ladder}: give rising numbers of draft tokens")
        if not 0 <= self.ripening < self.rounds:
            raise ValueError(f"rounds is {self.rounds} and ripening {self.ripening}: some rounds must count")

    def begin(self) -> "HillClimbSession":
        return HillClimbSession(self)


class HillClimbSession:
    """One generation's search: `here` is the best rung known, `trying` the one under way."""

    def __init__(self, plan: HillClimb):
        self.plan = plan
        ladder = plan.ladder
        self.here = self.trying = min(range(len(ladder)), key=lambda rung: abs(ladder[rung] - plan.first))
        self.direction = 1
        self.rates: dict[int, float] = {}  # values a row per second, by rung, as last seen
        self.begun = False
        self.idle = 0  # rounds to stay before looking around again
        self.patience = 2 * plan.rounds
        self.missed = 0  # directions in vain since the last step
        self._epoch()

    def length(self) -> int:
        return self.plan.ladder[self.trying]

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        rows = [len(values) for values in committed.values if values]
        if not self.begun:  # the first round holds the prefill
            self.begun = True
            return
        if not rows:
            return
        self.seen += 1
        if self.seen > self.plan.ripening:
            self.values += sum(rows) / len(rows)
            self.seconds += seconds
        if self.seen == self.plan.rounds:
            self._judge()

    def _epoch(self) -> None:
        self.seen, self.values, self.seconds = 0, 0.0, 0.0

    def _judge(self) -> None:
        """One rung has had its rounds: take the step, turn round, or stay for a while."""
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
    """Where to start: a forward that reads the weights once may as well take about 200 tokens on a large GPU (its FLOP/byte ratio), and
    far fewer on a CPU; `rows` rows share them, both rows of a guided pair counted."""
    return max(1, (200 if cuda else 32) // rows)
