"""Log-probabilities of tokens in OpenAI's shapes, released with the text that they belong to."""

from collections.abc import Callable, Sequence
from typing import Any

from mmspec.core.processors.reported import TokenLogprob

_HELD = "\N{REPLACEMENT CHARACTER}"  # what decoding gives for a part of a character


class LogprobEntries:
    """The log-probabilities of one output's tokens, each with its place in the text.

    There is an entry for every token that begins within the text: the end token, and tokens behind a stop string, have none.

    Args:
        decode: maps ids to text.
    """

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode = decode
        self._waiting: list[dict[str, Any]] = []

    def add(self, context: Sequence[int], token: int, start: int, found: TokenLogprob) -> None:
        """Add a token.

        Args:
            context: ids before it, from a place on at which the text can be cut.
            token: its id.
            start: characters of the output's text before it.
            found: its log-probabilities.
        """
        before = list(context)
        top = [self._entry(before, each, value) for each, value in found.top]
        self._waiting.append(self._entry(before, token, found.logprob) | {"top_logprobs": top, "start": start})

    def take(self, length: int) -> list[dict[str, Any]]:
        """Return the entries not returned before, of tokens that begin within the first `length` characters of the text.

        Args:
            length: characters of the output's text that have been given out.
        """
        count = sum(entry["start"] < length for entry in self._waiting)
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    def _entry(self, context: list[int], token: int, logprob: float) -> dict[str, Any]:
        """A token's text behind the ids of `context`; its bytes are None where it is a part of a character."""
        before, text = self.decode(context), self.decode([*context, token])
        own = text[len(before) :] if text.startswith(before) else self.decode([token])
        return {"token": own, "logprob": logprob, "bytes": None if _HELD in own else list(own.encode())}


def chat_logprobs(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return entries as `/v1/chat/completions` has them.

    Args:
        entries: of `LogprobEntries.take`.
    """
    return {"content": [{name: value for name, value in entry.items() if name != "start"} for entry in entries], "refusal": None}


def completion_logprobs(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return entries as `/v1/completions` has them.

    Args:
        entries: of `LogprobEntries.take`.
    """
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [_by_text(entry["top_logprobs"]) for entry in entries],
        "text_offset": [entry["start"] for entry in entries],
    }


def _by_text(top: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of tokens with the same text the most likely one."""
    return {each["token"]: each["logprob"] for each in reversed(top)}
