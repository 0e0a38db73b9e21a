"""Incremental detokenization, and a generation as its rounds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mmspec.core.records import Step

Decode = Callable[[list[int]], str]


class Pieces:
    """Incremental detokenizer. Incomplete characters are held back."""

    def __init__(self, decode: Decode):
        self.decode = decode
        self.ids: list[int] = []
        self.shown = self.before = 0  # ids shown, and where the window that gives them their context begins

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` add."""
        self.ids += ids
        return self._take(last=False)

    @property
    def context(self) -> list[int]:
        """The ids that are decoded again with the next ones."""
        return self.ids[self.before :]

    def rest(self) -> str:
        """Return the text held back, incomplete characters included."""
        return self._take(last=True)

    def _take(self, last: bool) -> str:
        old = self.decode(self.ids[self.before : self.shown])
        new = self.decode(self.ids[self.before :])
        if new.endswith("\ufffd") and not last:
            return ""
        if len(new) > len(old):  # ids without text give no context to the ids behind them
            self.before = self.shown
        self.shown = len(self.ids)
        return new[len(old) :]


def text_pieces(tokens: Iterable[int], decode: Decode) -> Iterator[str]:
    """Decode tokens as they arrive.

    Args:
        tokens: token ids.
        decode: maps ids to text, such as a tokenizer's `decode`.

    Yields:
        Pieces, none of them empty, that together are the text of all tokens.
    """
    pieces = Pieces(decode)
    for token in tokens:
        if piece := pieces.push([token]):
            yield piece
    if piece := pieces.rest():
        yield piece


@dataclass(frozen=True)
class TextRound:
    """One round of one row: draft tokens scored, draft tokens accepted, and the text of every committed token."""

    drafted: int
    accepted: int
    pieces: list[str]  # the accepted draft tokens, then the target's own token, if the row did not end before it


@dataclass
class TextRounds:
    """An `on_step` callback that records the rounds of row 0."""

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
