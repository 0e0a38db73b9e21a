"""Cost model: chooses plain or speculative search, whichever is faster on this machine.

A draft trades rounds for columns. Where a forward is bound by memory, columns are nearly free and drafting is faster; where it is bound by
arithmetic (a CPU, a large batch), plain search may be faster. The seconds of a round are fitted as

    seconds = fixed + per column * columns of the whole batch + per level * levels drafted,

the acceptance of each level is a running mean, and both together predict the seconds of a search.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from mmspec.core.control import ControlSession
from mmspec.core.records import Committed
from mmspec.utils.strict import strict

OPENING = (True, False, True, False)
"""Does each of the first calls at a batch size draft? The very first one's seconds are not believed: it warms up what others find warm."""
FADE = 0.9
"""What an observation is worth one call later."""


@dataclass(frozen=True, slots=True)
class SearchSize:
    """Size of one call: `rows` histories of up to `prompt` tokens, `k` beams, `width` draft tokens a level, `levels` levels."""

    rows: int = 1
    prompt: int = 1
    k: int = 1
    width: int = 1
    levels: int = 64

    def columns(self, turn: int, drafted: int) -> int:
        """Return the columns that round `turn` scores in the whole batch, with `drafted` levels of draft tokens."""
        return self.rows * ((self.k if turn else self.prompt) + self.width * drafted)


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of one call: levels drafted a round (0: plain search), and the reason in one sentence."""

    levels: int  # drafted a round: 0 is plain
    why: str


@strict
class CostModel:
    """Control of `recommend` that chooses for each search whether to draft all levels or none, separately for every batch size.

    Batch sizes are grouped by powers of two. Both ways are measured first. Then the faster one is used, and the slower one is tried again
    after `patience` calls, then after twice as many, and so on. In modes that return plain search's items the choice does not change the
    result. `choice` is the last one.

    Args:
        patience: calls before the slower way is tried again, at least 1.

    Raises:
        ValueError: if `patience` is below 1.
    """

    def __init__(self, patience: int = 8):
        if patience < 1:
            raise ValueError(f"patience is {patience}: wait at least 1 call before the slower way is tried again")
        self.patience = patience
        self.sizes: dict[int, Size] = {}
        self.choice = Choice(0, "nothing was searched yet")
        self.search = SearchSize()

    def at(self, search: SearchSize) -> "CostModel":
        """Set the size of the next search.

        Args:
            search: its size.

        Returns:
            This object.
        """
        self.search = search
        return self

    def begin(self) -> ControlSession:
        """Open the control session of one search."""
        size = self.sizes.setdefault(self.search.rows.bit_length(), Size(self.patience))
        self.choice = size.choose(self.search)
        return _Call(size, self.search, self.choice.levels)


class _Call:
    """One search under way."""

    def __init__(self, size: "Size", search: SearchSize, levels: int):
        self.size, self.search, self.levels = size, search, levels
        self.done = [0] * search.rows  # levels committed
        self.turn, self.total = 0, 0.0

    def length(self) -> int:
        return self.levels

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.done += [0] * (len(committed.values) - len(self.done))
        ways = self.size.ways[length > 0]
        drafted = min(length, self.search.levels - 1 - self.turn) if self.turn else max(committed.drafted)  # some draft no first round
        if self.size.warm:
            ways.rounds.append(((1.0, self.search.columns(self.turn, drafted), drafted), seconds))
        for row, (values, accepted) in enumerate(zip(committed.values, committed.accepted, strict=True)):
            if length and values:
                self.size.held.saw(self.done[row], accepted, self.search.levels)
            self.done[row] += len(values)
        self.turn, self.total = self.turn + 1, self.total + seconds
        if all(committed.ended):
            self.size.finished(self.search, length > 0, self.total)


@dataclass
class Fading:
    """A mean in which older observations count for less, from call to call."""

    total: float = 0.0
    weight: float = 0.0
    last: int = 0

    def add(self, value: float, call: int, weight: float = 1.0) -> None:
        """Add `value`, observed in `call`, with `weight`."""
        fade = FADE ** (call - self.last)
        self.total, self.weight, self.last = fade * self.total + weight * value, fade * self.weight + weight, call

    def mean(self, prior: float, worth: float) -> float:
        """Return the mean, with `prior` counted as an observation of weight `worth`."""
        return (self.total + prior * worth) / (self.weight + worth)


@dataclass
class Held:
    """Acceptance of each level's draft tokens, given that the levels before were accepted."""

    call: int = 0
    levels: dict[int, Fading] = field(default_factory=dict)

    def saw(self, start: int, accepted: int, levels: int) -> None:
        """Record a row with `start` levels committed whose next `accepted` levels of draft tokens were right."""
        for level in range(start, min(start + accepted + 1, levels - 1)):
            self.levels.setdefault(level, Fading()).add(float(level < start + accepted), self.call)

    def share(self, level: int) -> float:
        """Return the estimated acceptance of `level`."""
        return self.levels[level].mean(0.5, 0.1) if level in self.levels else 0.5

    def going(self, search: SearchSize) -> list[float]:
        """Return the probability that a batch needs a first round, a second, ...; it continues until all rows have ended."""
        levels = search.levels
        within = [0.0] * levels + [1.0]  # by levels committed: the chance that a row ends in the rounds looked at so far
        chances: list[float] = []
        for _ in range(levels):
            chances.append(1 - within[0] ** search.rows)
            within = [self._after(start, within, levels) for start in range(levels)] + [1.0]
        return chances

    def _after(self, start: int, within: list[float], levels: int) -> float:
        """Probability that a row ends after one more round."""
        reach, total = 1.0, 0.0
        for level in range(start, levels - 1):
            share = self.share(level)
            total += reach * (1 - share) * within[level + 1]
            reach *= share
        return total + reach


@dataclass
class SearchCosts:
    """Observations of searches that draft, or of those that do not."""

    rounds: deque[tuple[tuple[float, float, float], float]] = field(default_factory=lambda: deque(maxlen=48))  # (features, seconds)
    beside: Fading = field(default_factory=Fading)  # seconds measured over those expected, in logarithms: what the line leaves out
    ran: int = 0  # the last call that went this way


class Size:
    """Everything measured at one batch size."""

    def __init__(self, patience: int):
        self.patience = self.wait = patience
        self.call = 0
        self.held = Held()
        self.ways = {True: SearchCosts(), False: SearchCosts()}
        self.best: bool | None = None
        self.retry = False

    @property
    def warm(self) -> bool:
        """True once both ways have been measured."""
        return self.call > 1

    def choose(self, search: SearchSize) -> Choice:
        """Return the choice for the next search."""
        self.call += 1
        self.held.call = self.call
        at, self.retry = f"at {search.rows} user{'s' * (search.rows != 1)}", False
        if self.call <= len(OPENING) or not all(way.beside.weight for way in self.ways.values()):
            drafts = OPENING[(self.call - 1) % len(OPENING)]
            why = f"{_name(drafts)}, as both ways are measured first {at} (call {self.call})"
        else:
            drafts, why = self._faster(search)
            why = f"{why} {at}"
        self.ways[drafts].ran = self.call
        return Choice((search.levels - 1) * drafts, why)

    def _faster(self, search: SearchSize) -> tuple[bool, str]:
        seconds = {way: self.expected(search, way) for way in (False, True)}
        best = seconds[True] < seconds[False]
        if best is not self.best:
            self.best, self.wait = best, self.patience
        fast, slow = (1000 * seconds[way] / search.rows for way in (best, not best))
        told = f"{fast:.3g} ms a user against {slow:.3g} ms {_name(not best)}"
        idle = self.call - 1 - self.ways[not best].ran
        self.retry = idle >= self.wait * min(slow / max(fast, 1e-9), 32)
        if self.retry:
            self.wait = min(2 * self.wait, 32 * self.patience)
            return not best, f"{_name(not best)}, tried again after {idle} calls {_name(best)} ({told})"
        return best, f"{_name(best)}: {told}"

    def finished(self, search: SearchSize, drafts: bool, seconds: float) -> None:
        """Record the seconds of a search."""
        if self.warm and seconds > 0:
            expected = self._by_line(search, drafts)
            self.ways[drafts].beside.add(float(np.log(seconds / expected)), self.call)

    def expected(self, search: SearchSize, drafts: bool) -> float:
        """Return the predicted seconds of a search."""
        return self._by_line(search, drafts) * float(np.exp(self.ways[drafts].beside.mean(0.0, 0.0)))

    def _by_line(self, search: SearchSize, drafts: bool) -> float:
        line = self.line()
        chances = self.held.going(search) if drafts else [1.0] * search.levels
        total = 0.0
        for turn, chance in enumerate(chances):
            drafted = max(0, search.levels - 1 - turn) * drafts
            total += chance * float(line @ (1.0, search.columns(turn, drafted), drafted))
        return max(total, 1e-9)

    def line(self) -> np.ndarray:
        """Coefficients [3] in seconds: fixed, per column, per level drafted; none below 0. Fitted to relative errors, so that long rounds
        do not dominate.
        """
        seen = [entry for way in self.ways.values() for entry in way.rounds]
        features, seconds = np.array([entry[0] for entry in seen]), np.array([entry[1] for entry in seen]).clip(1e-9)
        scale = np.abs(features).max(0).clip(1e-9)
        table, kept = features / scale / seconds[:, None], [0, 1, 2]
        while kept:
            found = np.linalg.lstsq(table[:, kept], np.ones(len(table)), rcond=1e-6)[0]
            if (found >= 0).all():
                break
            kept.pop(int(found.argmin()))
        line = np.zeros(3)
        line[kept] = found
        return line / scale


def _name(drafts: bool) -> str:
    return "drafting" if drafts else "plain"
