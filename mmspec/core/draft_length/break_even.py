"""The break-even gate: whatever chooses the draft length, a drafter that costs more than it brings is stopped.

A round of n draft tokens pays when it commits more values than plain rounds would in its time: tau > (n t_q + t_p(n + 1)) / t_p(1). Both
sides are measured as one figure, the round's gain: its values minus its seconds in plain rounds. So a drafter that slows down as its cache
grows, one that draft tokens blindly and a batch that fills the machine need no model of their own.

The gate is an account in values. It opens with `head`. Rounds with draft tokens book their gain, plain rounds add `share`; gains are held
up to a few heads, so that a run of bad luck does not stop a drafter that pays. Overdrawn, the account is closed: no draft tokens. When it
can pay for a trial again, which is what rounds of draft tokens lost lately, it lets one through, and more while they gain. So against plain
decoding a drafter loses `head` values at most, a share `share` of the plain ones, its start and one round, whatever it does; and one that
gets good late is found, the sooner the less a trial costs.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import mean, median_low

from mmspec.core.control import Charged, Control, ControlSession
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.records import Committed

_HELD = 4  # heads


class Account:
    """Values that drafting may still lose. Closed when overdrawn, until it holds a trial's price again."""

    def __init__(self, head: float):
        self.head = self.balance = head
        self.closed = False

    def book(self, gain: float, price: float) -> None:
        self.balance = min(self.balance + gain, max(_HELD * self.head, price))
        self.closed = self.balance < (price if self.closed else 0.0)


@dataclass
class DrafterAccounting:
    """What requests know of a drafter: for one target, one drafter and requests of one kind, one after the other. Theirs to write in.

    Requests that share books start from what the last one knew, so none spends rounds on measuring. And they share a second account, on
    which the drafter's starts stand too (its encoding and its prompt): where what it brings to a request does not earn that back, as
    with short answers, it is not begun, until the plain values of later requests have paid for another trial. The first start is free.
    """

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=9))  # seconds of the last plain rounds
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=4))  # of the last rounds with draft tokens, in values
    rounds: Account | None = None
    starts: Account | None = None
    entry: float | None = None  # what the last start cost, in values
    chooser: ControlSession | None = None


@dataclass(frozen=True)
class BreakEven:
    """No draft tokens, whatever `control` asks for, while they lose more than `head` values and a share `share` of the plain ones.

    `books` are for requests to share. The output does not depend on it under token-exact rules.
    """

    control: Control = field(default_factory=Throughput)
    share: float = 0.05
    head: float = 2.0
    books: DrafterAccounting | None = None

    def __post_init__(self):
        if not 0 <= self.share < 1 or self.head < 0:
            raise ValueError(f"share is {self.share} and head {self.head}: give a share from 0 to below 1, and 0 or more values")

    def begin(self) -> "BreakEvenSession":
        return BreakEvenSession(self, DrafterAccounting() if self.books is None else self.books)


class BreakEvenSession:
    """One request at the gate."""

    def __init__(self, plan: BreakEven, books: DrafterAccounting):
        self.plan, self.books = plan, books
        self.new = books.chooser is None
        self.chooser = books.chooser = books.chooser or plan.control.begin()
        self.gate = books.rounds = books.rounds or Account(plan.head)
        self.starts = books.starts = books.starts or Account(plan.head)
        self.shut = self.starts.closed  # for the whole request: a start late in it has the less left to earn
        self.rounds = 0
        self.start: float | None = None  # seconds of the drafter's start, not booked yet
        self.always_accept, self.patience = 0, 32  # rounds since a plain one; after so many there is another

    def length(self) -> int:
        unknown = self.rounds > 0 and not self.books.plain
        if self.shut or self.gate.closed or unknown or self.always_accept >= self.patience:
            return 0
        return self.chooser.length()

    def charge(self, seconds: float) -> None:
        self.start = seconds
        if isinstance(self.chooser, Charged):
            self.chooser.charge(seconds)

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.rounds += 1
        usual = self.rounds > 1 and (self.start is None or length == 0)  # neither the prompt nor the drafter's start is in its seconds
        values = [len(row) for row in committed.values if row]
        if usual and values:
            self._book(length, mean(values), seconds)
        if self.start is not None and self.books.plain:
            self._enter(self.start / median_low(self.books.plain))
        if usual or (self.new and self.rounds == 1):  # choosers take the first round they see for the prompt's
            self.chooser.observe(length, committed, seconds)

    def _book(self, length: int, values: float, seconds: float) -> None:
        books = self.books
        if length == 0:
            books.plain.append(seconds)
            gain = self.plan.share
            self.patience = min(2 * self.patience, 256) if self.always_accept >= self.patience else self.patience
            self.always_accept = 0
        else:
            gain = values - seconds / median_low(books.plain)
            books.losses.append(-gain)
            self.always_accept += 1
        self.gate.book(gain, max(0.0, mean(books.losses)) if books.losses else 0.0)
        self.starts.book(gain, books.entry or 0.0)

    def _enter(self, values: float) -> None:
        first, self.books.entry, self.start = self.books.entry is None, values, None
        if not first:
            self.starts.book(-values, values)
