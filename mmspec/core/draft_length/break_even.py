"""The break-even gate: stops a drafter that costs more than it brings, whatever chooses the draft length.

A round of n draft tokens pays when it commits more values than plain rounds would in its time: tau > (n t_q + t_p(n + 1)) / t_p(1). Both
sides are measured as one number, the round's gain: its values minus its seconds in plain rounds. So drafters that slow down as their cache
grows, drafts of no use and batches that fill the machine need no model of their own.

The gate is an account in values. It opens with `head`. Rounds with draft tokens add their gain, plain rounds add `share`; the balance is
limited to a few heads, so that a run of rejections does not stop a drafter that pays. When overdrawn, the account is closed: no draft
tokens. When it can pay for a trial again, which is the recent loss of a round with draft tokens, it allows one, and more while they gain.
So against plain decoding a drafter loses at most `head` values, a share `share` of the plain ones, its start and one round; a drafter that
improves late is found, the sooner the less a trial costs.

A start whose cost is known beforehand (a drafter that has to encode a recording) is put off until plain rounds have been measured, and made
only if it costs at most `head` values and what draft tokens are expected to save on the values still expected. A drafter that is not
started encodes nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import mean, median_low

from mmspec.core.control import Charged, Control, ControlSession
from mmspec.core.draft_length.cost_curve import SLOPE
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.records import Committed

_HELD = 4  # heads
_LONGEST = 16  # draft tokens


class Account:
    """Values that drafting may still lose. Closed when overdrawn, until the balance covers a trial.

    Args:
        head: opening balance, in values.
    """

    def __init__(self, head: float):
        self.head = self.balance = head
        self.closed = False

    def book(self, gain: float, price: float) -> None:
        """Add one round.

        Args:
            gain: values gained, negative for a loss.
            price: values a trial costs.
        """
        self.balance = min(self.balance + gain, max(_HELD * self.head, price))
        self.closed = self.balance < (price if self.closed else 0.0)


@dataclass
class DrafterAccounting:
    """What is known of one drafter for one target and one kind of request, shared by consecutive requests. They write to it.

    Requests that share it start from what the last one measured. They also share a second account, to which the drafter's starts are
    charged (its encoding and its prompt): where a drafter does not earn back its start, as with short answers, it is not started until the
    plain values of later requests have paid for another trial. The first start is free.

    Args:
        plain: seconds of the last plain rounds.
        losses: losses of the last rounds with draft tokens, in values.
        rounds: the account of rounds; None before the first request.
        starts: the account of starts; None before the first request.
        entry: cost of the last start, in values.
        chooser: the session of the inner controller.
    """

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    rounds: Account | None = None
    starts: Account | None = None
    entry: float | None = None
    chooser: ControlSession | None = None


def expected_saving(acceptance: float, step: float) -> float:
    """Estimate what draft tokens save with the best fixed draft length of up to 16.

    Args:
        acceptance: probability that a draft token is accepted after accepted ones.
        step: cost of making a draft token, in plain rounds. Scoring one is taken to cost 0.08.

    Returns:
        Plain rounds a value, from 0 to below 1.
    """
    values, best = 1.0, 1.0
    for length in range(1, _LONGEST + 1):
        values += acceptance**length
        best = max(best, values / (1 + length * (step + SLOPE)))
    return 1 - 1 / best


@dataclass(frozen=True)
class BreakEven:
    """A gate around another controller: no draft tokens while drafting loses more than the allowance. Token-exact outputs do not depend on
    it.

    Args:
        control: the controller that chooses the length.
        share: allowance as a share of the plain values, in [0, 1).
        head: allowance at the start, in values.
        books: accounting that requests share; None for one of its own each.
        acceptance: that a draft token is expected to have before there are any, in [0, 1]; read where the start has to pay.

    Raises:
        ValueError: for numbers out of range.
    """

    control: Control = field(default_factory=Throughput)
    share: float = 0.05
    head: float = 2.0
    books: DrafterAccounting | None = None
    acceptance: float = 0.85

    def __post_init__(self):
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f"acceptance is {self.acceptance}: give a probability, 0 to 1")
        if not 0 <= self.share < 1 or self.head < 0:
            raise ValueError(f"share is {self.share} and head {self.head}: give a share from 0 to below 1, and 0 or more values")

    def begin(self) -> "BreakEvenSession":
        return BreakEvenSession(self, DrafterAccounting() if self.books is None else self.books)


class BreakEvenSession:
    """The gate of one request.

    Args:
        plan: the settings.
        books: the accounting to use.
    """

    def __init__(self, plan: BreakEven, books: DrafterAccounting):
        self.plan, self.books = plan, books
        self.new = books.chooser is None
        self.chooser = books.chooser = books.chooser or plan.control.begin()
        self.gate = books.rounds = books.rounds or Account(plan.head)
        self.starts = books.starts = books.starts or Account(plan.head)
        self.shut = self.starts.closed  # for the whole request: a later start has less time to pay
        self.rounds = 0
        self.start: float | None = None  # seconds of the drafter's start, not booked yet
        self.since_plain, self.patience = 0, 32  # rounds since a plain one; after `patience` of them there is another
        self.ahead: tuple[float, float, float] | None = None  # of a start not made yet, as told to `expect_start`
        self.passed = 0.0  # values of a row so far

    def length(self) -> int:
        unknown = self.rounds > 0 and not self.books.plain
        if self.shut or self.gate.closed or unknown or self.since_plain >= self.patience or not self._worth_starting():
            return 0
        return self.chooser.length()

    def expect_start(self, seconds: float, step: float, values: float) -> None:
        self.ahead = (seconds, step, values)

    def _worth_starting(self) -> bool:
        """True for a drafter that has started, and for one whose start is expected to be earned back."""
        if self.ahead is None:
            return True
        (seconds, step, values), books = self.ahead, self.books
        if books.entry is None and not books.plain:
            return False
        entry = seconds / median_low(books.plain) if books.entry is None else books.entry
        return entry <= self.plan.head + expected_saving(self.plan.acceptance, step) * max(0.0, values - self.passed)

    def charge(self, seconds: float) -> None:
        self.start, self.ahead = seconds, None
        if isinstance(self.chooser, Charged):
            self.chooser.charge(seconds)

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.rounds += 1
        usual = self.rounds > 1 and (self.start is None or length == 0)  # its seconds hold neither the prompt nor the drafter's start
        values = [len(row) for row in committed.values if row]
        self.passed += mean(values) if values else 0.0
        if usual and values:
            self._book(length, mean(values), seconds)
        if self.start is not None and self.books.plain:
            self._enter(self.start / median_low(self.books.plain))
        if usual or (self.new and self.rounds == 1):  # controllers take their first round for the prompt's
            self.chooser.observe(length, committed, seconds)

    def _book(self, length: int, values: float, seconds: float) -> None:
        books = self.books
        if length == 0:
            books.plain.append(seconds)
            gain = self.plan.share
            self.patience = min(2 * self.patience, 256) if self.since_plain >= self.patience else self.patience
            self.since_plain = 0
        else:
            gain = values - seconds / median_low(books.plain)
            books.losses.append(-gain)
            self.since_plain += 1
        self.gate.book(gain, max(0.0, mean(books.losses)) if books.losses else 0.0)
        self.starts.book(gain, books.entry or 0.0)

    def _enter(self, values: float) -> None:
        first, self.books.entry, self.start = self.books.entry is None, values, None
        if not first:
            self.starts.book(-values, values)
