"""The window of a Jacobi draft by measured cost: the length that commits the most values for its seconds, or 0 where none pays.

A window is refined from round to round, so the acceptance of its first rounds says little, and a single round is no trial. Two things are
measured instead. The cost of a round by the columns it scores is a curve in plain rounds (`core.draft_length.cost_curve`). The values of
rounds of one length tell those of shorter ones: a round that committed c values would have committed about min(c, m + 1) with m draft
tokens. For longer ones, and before anything is measured, values are taken to grow with the power 0.6 of the length, which is optimistic: a
window is tried where it could pay.

Everything a window loses against plain decoding is booked in an account (`core.draft_length.break_even`). While it is overdrawn, rounds
are plain. So the loss is at most `head` values, a share `share` of the plain ones, and one round.
"""

from collections import deque
from dataclasses import dataclass
from statistics import mean

from mmspec.core.draft_length.break_even import Account
from mmspec.core.draft_length.cost_curve import CostCurve
from mmspec.core.records import Committed

LADDER = (0, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127)
"""Lengths to choose from: draft tokens a round, the committed value before them not counted."""
_GROWTH = 0.6
_DOUBT = 1.15  # expected rates are divided by it, measured ones are not
_REACH = 2  # rungs of the ladder that one step may take
_PLAIN = 2  # plain rounds measured at the start


@dataclass(frozen=True)
class WindowCost:
    """Choose the window by the measured cost of a round and the values it commits.

    Args:
        first: length of the first trial, if the cost of its first round does not speak against it.
        ladder: lengths to choose from, rising, 0 among them.
        rounds: rounds that a trial counts.
        warm_up: rounds before those, in which a window of new length fills.
        least: relative gain needed to change the length, since clocks are noisy.
        share: allowance for losses, as a share of the values of plain rounds, in [0, 1).
        head: allowance at the start, in values.

    Raises:
        ValueError: for a ladder that does not rise from 0, no rounds that count, or an allowance out of range.
    """

    first: int = 15
    ladder: tuple[int, ...] = LADDER
    rounds: int = 4
    warm_up: int = 2
    least: float = 0.05
    share: float = 0.02
    head: float = 4.0

    def __post_init__(self):
        if not self.ladder or list(self.ladder) != sorted(set(self.ladder)) or self.ladder[0] != 0:
            raise ValueError(f"ladder is {self.ladder}: give rising numbers of draft tokens, beginning with 0")
        if self.rounds < 1 or self.warm_up < 0:
            raise ValueError(f"rounds is {self.rounds} and warm_up {self.warm_up}: give 1 or more rounds that count, 0 or more before")
        if not 0 <= self.share < 1 or self.head < 0:
            raise ValueError(f"share is {self.share} and head {self.head}: give a share from 0 to below 1, and 0 or more values")

    def begin(self) -> "WindowCostSession":
        return WindowCostSession(self)


class WindowCostSession:
    """The measurements of one generation.

    Args:
        plan: the settings.
    """

    def __init__(self, plan: WindowCost):
        self.plan, self.curve, self.account = plan, CostCurve(), Account(plan.head)
        self.current = self.last = self.age = self.seen = 0  # `last`: the length drafted last
        self.counts: deque[list[int]] = deque(maxlen=4 * plan.rounds)  # values by row, of rounds of the current length that count
        self.known: tuple[int, list[list[int]]] | None = None  # the length last measured, and its counts
        self.rates: dict[int, float] = {}  # values for a plain round's seconds, by length, as measured
        self.patience = 32 * plan.rounds  # rounds at one length until other lengths may be tried again
        self.lost = 0.0  # by the drafting since the last plain round: what another trial would cost

    def length(self) -> int:
        return self.current

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        values = [len(row) for row in committed.values if row]
        self.seen += 1
        if self.seen == 1 or not values:  # the first round holds the prompt
            return
        cost = self.curve.add(length + 1, seconds)
        self.age += 1
        if self.age >= self.patience:
            self._forget()
        if length == 0:
            self.account.book(self.plan.share, self.lost)
            if self.seen > _PLAIN and not self.account.closed:
                self._move(self._best())
            return
        self.lost = max(self.lost + cost - mean(values), 0.0)
        self.account.book(mean(values) - cost, self.lost)
        if self.account.closed:
            self.rates, self.known = {}, None  # a later trial begins anew
            self._move(0)
        else:
            self._judge(values)

    def _forget(self) -> None:
        """Let other lengths be tried again; after plain rounds, as at the start."""
        self.rates, self.age, self.patience = {}, self.plan.warm_up + 1, 2 * self.patience
        if self.current == 0:
            self.known = None
            self.curve.ratios.clear()

    def _move(self, length: int) -> None:
        if length == self.current:
            return
        if self.current == 0:
            self.lost = 0.0
        self.current, self.last, self.age = length, length or self.current, 0
        self.counts.clear()

    def _judge(self, values: list[int]) -> None:
        """Count a round, and decide: after the first one of a trial by its cost, after every `rounds` by cost and values."""
        plan = self.plan
        if self.age == 1 and self.current not in self.rates:
            self._move(min(self._best(), self.current))
            return
        if self.age <= plan.warm_up:
            return
        self.counts.append(values)
        if self.age % plan.rounds or len(self.counts) < plan.rounds:
            return
        self.known = self.current, list(self.counts)
        self.rates[self.current] = self.expected(self.current) / self._cost(self.current)
        best = self._best()
        if self._rate(best) > self.rates[self.current] * (1 + plan.least):
            self._move(best)

    def _best(self) -> int:
        """The length of the highest rate, measured or expected, not far from the current one; `first` before the first trial."""
        ladder = self.plan.ladder
        if not self.curve.ratios:
            return min(ladder[1:], default=0, key=lambda length: abs(length - self.plan.first))
        if self.known is None:
            return max((length for length in ladder if length < self.curve.widest), key=self._rate)
        here = self.current or self.last
        near = [n for n, rung in enumerate(ladder) if rung <= here][-1]
        return max({0, *ladder[max(0, near - _REACH) : near + _REACH + 1]}, key=self._rate)

    def _rate(self, length: int) -> float:
        """Values for the seconds of a plain round; less where they are not measured."""
        if length == 0:
            return 1.0
        return self.rates.get(length) or self.expected(length) / self._cost(length) / _DOUBT

    def _cost(self, length: int) -> float:
        """Plain rounds of a round: measured, or beyond the longest measured the line through that one and a plain round."""
        widest = self.curve.widest
        if length < widest:
            return self.curve.at(length + 1)
        return 1 + max(self.curve.at(widest) - 1, 0.0) * length / (widest - 1)

    def expected(self, length: int) -> float:
        """Estimate the values that a row commits in a round.

        Args:
            length: draft tokens in the round.

        Returns:
            Values, 1 or more; an optimistic guess while nothing is measured.
        """
        if self.known is None:
            return float(length + 1) ** _GROWTH
        measured, counts = self.known
        reached = min(length, measured) + 1
        values = mean(mean(min(value, reached) for value in row) for row in counts)
        return values * ((length + 1) / (measured + 1)) ** _GROWTH if length > measured else values


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
