"""Draft length for drafters that copy earlier text: as many draft tokens as the length of the match is worth.

The drafter reports, before every round, how many of the text's last tokens its source shares (`core.protocols.Matches`). Acceptance is
estimated by the length of the match and the position in the draft, the cost of a round by the columns it scores, and the length of most
values per second is chosen; a round without a match is a plain one. Trials have at most 3 draft tokens; longer drafts follow longer matches
and drafts of the same class that were accepted.

Losses are bounded by two accounts in values, for short and for long matches, each of which opens with `head`: rounds with draft tokens
add their values minus their cost in plain rounds, plain rounds add `share`, and a round may risk no more than the account holds, or one
value more where that is too little for any draft and the first draft token is likely to be accepted. So a request loses against plain
decoding at most `head` twice, the share of its plain rounds, and a value for likely drafts that are rejected; and a long match is used
although short ones have failed.
"""

from collections import Counter
from dataclasses import dataclass, field

from mmspec.core.draft_length.acceptance import LEAST, AcceptanceByMatch, Counts, match_class, no_counts
from mmspec.core.draft_length.cost_curve import CostCurve
from mmspec.core.records import Committed

_TRIAL = 3  # draft tokens
_LIKELY, _LOAN = 0.8, 1.0  # chance of acceptance from which on a round may overdraw its account, and by how many values
_LEAST = 1.02  # expected values per second, relative to plain decoding, from which on there are draft tokens
_PATIENCE, _MOST_PATIENCE = 16, 256  # rounds with draft tokens after which a plain one is measured again
_LONG = 6  # tokens of a match from which on it has an account of its own


@dataclass
class MatchRecord:
    """What is known of one drafter for one target and one kind of request. Sessions of consecutive requests read it and write to it.

    Args:
        counts: draft tokens accepted and judged, by class of match and position.
        ratios: costs of rounds in plain rounds, by columns scored.
    """

    counts: Counts = field(default_factory=no_counts)
    ratios: dict[int, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ByMatch:
    """Maximise expected values per second, by the lengths of the drafter's matches.

    Args:
        lengths: lengths to choose from, rising; 0 is always one of them.
        share: loss allowed, as a share of the plain values, in [0, 1).
        head: loss allowed at the start for short and for long matches each, in values.
        record: what earlier requests found, shared with this one; None to start without.

    Raises:
        ValueError: for numbers out of range.
    """

    lengths: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10, 15, 23, 31)
    share: float = 0.01
    head: float = 0.6
    record: MatchRecord | None = None

    def __post_init__(self):
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 1:
            raise ValueError(f"lengths is {self.lengths}: give rising numbers of draft tokens, 1 or more")
        if not 0 <= self.share < 1 or self.head < 0:
            raise ValueError(f"share is {self.share} and head {self.head}: give a share from 0 to below 1, and 0 or more values")

    def begin(self) -> "ByMatchSession":
        return ByMatchSession(self, MatchRecord() if self.record is None else self.record)


class ByMatchSession:
    """The running estimates of one request.

    Args:
        plan: the settings.
        record: what is known.
    """

    def __init__(self, plan: ByMatch, record: MatchRecord):
        self.plan, self.record = plan, record
        self.costs, self.acceptance = CostCurve(record.ratios), AcceptanceByMatch(record.counts)
        self.balances = [plan.head, plan.head]  # of short and of long matches, in values
        self.reach = [0] * len(LEAST)  # longest accepted draft, by class of match
        self.matches: list[int | None] | None = None
        self.classes: list[int | None] = []  # class of each row's match; None where the row has ended or has none
        self.rounds, self.since_plain, self.patience = 0, 0, _PATIENCE

    def read_matches(self, matches: list[int | None] | None) -> None:
        self.matches = matches

    def length(self) -> int:
        rows = [None] if self.matches is None else [match for match in self.matches if match is not None]
        classes = Counter(match_class(match) for match in rows if match != 0)
        if not classes or self._measures_plain():
            return 0
        best = max(classes)
        most = min(max(_TRIAL, *(match or 0 for match in rows), 2 * self.reach[best]), max(_TRIAL, 2 * (self.costs.widest - 1)))
        lengths = [length for length in self.plan.lengths if length <= most]
        held = self.balances[_is_long(best)]
        likely = held >= 0 and self.acceptance.values(best, 1) - 1 >= _LIKELY
        usable = self._within(lengths, held) or (self._within(lengths, held + _LOAN) if likely else [])
        best_length = max(usable, key=lambda length: self._rate(classes, len(rows), length), default=0)
        return best_length if best_length and self._rate(classes, len(rows), best_length) >= _LEAST else 0

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        self.rounds += 1
        rows = range(len(committed.values))
        open_rows = [row for row in rows if committed.values[row]]
        if not open_rows:
            return
        columns = 1 + length if any(committed.drafted) else 1
        classes = self._classes(len(rows))
        for row in open_rows:
            at = classes[row]
            if at is not None and committed.drafted[row]:
                self.acceptance.add(at, committed.accepted[row], committed.judged[row])
                self.reach[at] = max(self.reach[at], committed.accepted[row])
        best = max((at for at in classes if at is not None), default=None)
        cost = self.costs.at(columns) if self.rounds == 1 else self._measured(columns, seconds)  # the first round holds the prompt
        if best is not None:
            values = sum(len(committed.values[row]) for row in open_rows) / len(open_rows)
            self.balances[_is_long(best)] += self.plan.share if columns == 1 else values - cost

    def _measured(self, columns: int, seconds: float) -> float:
        """Record the seconds of a round and return its cost in plain rounds."""
        if columns == 1 and self.since_plain >= self.patience:
            self.patience = min(2 * self.patience, _MOST_PATIENCE)
        self.since_plain = 0 if columns == 1 else self.since_plain + 1
        return self.costs.add(columns, seconds)

    def _measures_plain(self) -> bool:
        """True for rounds whose seconds are needed to know what a plain round costs."""
        return self.since_plain >= self.patience or (self.rounds > 0 and not self.costs.plain and not self.record.ratios)

    def _within(self, lengths: list[int], values: float) -> list[int]:
        """Return the lengths whose rounds lose at most `values` if every draft token is rejected."""
        return [length for length in lengths if self.costs.at(length + 1) - 1 <= values]

    def _rate(self, classes: Counter[int], rows: int, length: int) -> float:
        """Expected values a row per plain round's time; rows without a match commit one value."""
        values = rows - classes.total() + sum(count * self.acceptance.values(at, length) for at, count in classes.items())
        return values / rows / self.costs.at(length + 1)

    def _classes(self, rows: int) -> list[int | None]:
        if self.matches is None:
            return [0] * rows
        return [None if not match else match_class(match) for match in self.matches]


def _is_long(at: int) -> bool:
    return LEAST[at] >= _LONG
