"""Token ids as text, piece by piece, and a generation as the rounds it was made in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmspec.core.records import Step

Decode = Callable[[list[int]], str]


class Pieces:
    """Text as it commits. The bytes of an unfinished character wait for the rest of it."""

    def __init__(self, decode: Decode):
        self.decode = decode
        self.ids: list[int] = []
        self.shown = self.before = 0  # ids shown, and where the window that gives them their context begins

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` add."""
        self.ids += ids
        return self._take(last=False)

    def rest(self) -> str:
        """What still waits, broken characters included."""
        return self._take(last=True)

    def _take(self, last: bool) -> str:
        old = self.decode(self.ids[self.before : self.shown])
        new = self.decode(self.ids[self.before :])
        if new.endswith("\ufffd") and not last:
            return ""
        if len(new) > len(old):  # ids that say nothing are no context for what follows
            self.before = self.shown
        self.shown = len(self.ids)
        return new[len(old) :]


@dataclass(frozen=True)
class TextRound:
    """One round of one row: draft tokens asked for, draft tokens accepted, and the text of everything it committed."""

    drafted: int
    accepted: int
    pieces: list[str]  # the accepted draft tokens, then the target's own token, if the row did not end before it


@dataclass
class TextRounds:
    """Pass it as `on_step`: it keeps the rounds of row 0."""

    decode: Decode
    found: list[TextRound] = field(default_factory=list)

    def __post_init__(self):
        self.pieces = Pieces(self.decode)

    def __call__(self, step: Step) -> None:
        """Record the round of row 0, if it committed anything."""
        values = step.committed.values[0]
        if values:
            texts = [self.pieces.push([value]) for value in values]
            self.found.append(TextRound(step.committed.drafted[0], step.committed.accepted[0], texts))
