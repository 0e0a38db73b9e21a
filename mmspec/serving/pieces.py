"""Text of tokens that arrive one by one, in pieces that end between characters."""

from collections.abc import Callable, Iterable, Iterator

_HELD = "\N{REPLACEMENT CHARACTER}"  # what decoding gives for a part of a character


def text_pieces(tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Decode tokens as they arrive.

    Args:
        tokens: token ids.
        decode: maps ids to text, such as a tokenizer's `decode`.

    Yields:
        Pieces, none of them empty, that together are the text of all tokens.
    """
    ids: list[int] = []
    start = end = 0  # the tokens of the last piece, which are decoded again: the next ones may join them
    for token in tokens:
        ids.append(token)
        before, text = decode(ids[start:end]), decode(ids[start:])
        if len(text) > len(before) and not text.endswith(_HELD):
            yield text[len(before) :]
            start, end = end, len(ids)
    before, text = decode(ids[start:end]), decode(ids[start:])
    if len(text) > len(before):
        yield text[len(before) :]
