"""Text of tokens that arrive one by one, in pieces that end between characters."""

from collections.abc import Callable, Iterable, Iterator

_HELD = "\N{REPLACEMENT CHARACTER}"  # what decoding gives for a part of a character


class TextPieces:
    """Decodes tokens as they are added; all pieces together are the text of all tokens.

    Args:
        decode: maps ids to text, such as a tokenizer's `decode`.
    """

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode = decode
        self.ids: list[int] = []
        self.start = self.end = 0  # the tokens of the last piece, which are decoded again: the next ones may join them

    def add(self, token: int) -> str:
        """Add a token and return the text that is complete with it; empty within a character."""
        self.ids.append(token)
        before, text = self.decode(self.ids[self.start : self.end]), self.decode(self.ids[self.start :])
        if len(text) <= len(before) or text.endswith(_HELD):
            return ""
        self.start, self.end = self.end, len(self.ids)
        return text[len(before) :]

    @property
    def context(self) -> list[int]:
        """The tokens that are decoded again with the next one."""
        return self.ids[self.start :]

    def rest(self) -> str:
        """Return the text behind the last piece, for the end: a part of a character, or nothing."""
        before, text = self.decode(self.ids[self.start : self.end]), self.decode(self.ids[self.start :])
        return text[len(before) :]


def text_pieces(tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Decode tokens as they arrive.

    Args:
        tokens: token ids.
        decode: maps ids to text, such as a tokenizer's `decode`.

    Yields:
        Pieces, none of them empty, that together are the text of all tokens.
    """
    pieces = TextPieces(decode)
    for token in tokens:
        if piece := pieces.add(token):
            yield piece
    if piece := pieces.rest():
        yield piece
