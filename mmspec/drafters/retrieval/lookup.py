"""Prompt lookup decoding (PLD, Saxena 2023), and LLMA (Yang et al. 2023) with reference texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, token_chain, unread_by

_END = -1  # stands between references; no token has this id
_KEY = 3  # n-grams of up to this size are indexed; longer matches are found by comparing the tokens before them
_LONGEST = 64  # tokens of the longest match that is told from longer ones
_PLACES = 64  # occurrences that are compared


@dataclass(frozen=True)
class Lookup:
    """Prompt lookup (PLD, Saxena 2023; with references LLMA, Yang et al. 2023): copies what followed the longest match of the text's end.

    The row's own prompt and output are searched first, then `references`; of equally long matches the latest is copied.

    Args:
        max_ngram: longest n-gram looked up; None for no bound.
        min_ngram: shortest n-gram looked up.
        references: token ids of texts that the output may quote, shared by all rows.

    Raises:
        ValueError: unless 1 <= `min_ngram` <= `max_ngram`.
    """

    max_ngram: int | None = None
    min_ngram: int = 1
    references: Sequence[Sequence[int]] = ()

    def __post_init__(self):
        if not 1 <= self.min_ngram <= (self.min_ngram if self.max_ngram is None else self.max_ngram):
            raise ValueError(f"min_ngram is {self.min_ngram} and max_ngram {self.max_ngram}: give 1 <= min_ngram <= max_ngram")

    @cached_property
    def index(self) -> "Index":
        """Index of the references' n-grams, built once."""
        index = Index(self.min_ngram, self.max_ngram)
        for reference in self.references:
            index.extend([int(token) for token in reference])
            index.extend([_END])
        return index

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        return HostSession(prompt, lambda row, text: LookupRow(self, text), unread=unread_by(session))


class Occurrence(NamedTuple):
    """An earlier occurrence of the end of a text."""

    size: int
    """Matching tokens; 0 for no match."""
    place: int
    """Position of the token behind the occurrence."""


class Index:
    """Occurrences of each n-gram of a text, latest first (the hash chains of LZ77). Grows token by token."""

    def __init__(self, shortest: int, longest: int | None):
        self.shortest, self.longest = shortest, max(_LONGEST, shortest) if longest is None else longest
        self.key = min(max(_KEY, shortest), self.longest)
        self.tokens: list[int] = []
        self.behind: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token behind its latest occurrence
        self.earlier: list[int] = []  # by position: the one behind the occurrence before of the `key` tokens before it, 0 for none

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            end, before = len(self.tokens), 0
            # an n-gram is entered when its continuation is known, so the text's own last n-gram never finds itself
            for size in range(self.shortest, min(self.key, end) + 1) if token != _END else ():
                ngram = tuple(self.tokens[end - size :])
                before = self.behind.get(ngram, 0)
                self.behind[ngram] = end
            self.tokens.append(token)
            self.earlier.append(before if end >= self.key else 0)

    def end(self, behind: Sequence[int] = ()) -> list[int]:
        """Return the tokens at the text's end that a match may hold, as if it continued with `behind`."""
        return [*self.tokens[-self.longest :], *behind][-self.longest :]

    def find(self, end: Sequence[int]) -> Occurrence:
        """Return the latest occurrence of the longest suffix of `end`, among the latest occurrences of its last tokens."""
        for size in range(min(self.key, len(end)), self.shortest - 1, -1):
            place = self.behind.get(tuple(end[-size:]), 0)
            if place:
                return Occurrence(size, place) if size < self.key else self._longest(place, end)
        return Occurrence(0, 0)

    def _longest(self, place: int, end: Sequence[int]) -> Occurrence:
        best = Occurrence(0, 0)
        for _ in range(_PLACES):
            size = self._common(place, end)
            best = max(best, Occurrence(size, place), key=lambda match: match.size)
            place = self.earlier[place]
            if size == len(end) or place == 0:
                break
        return best

    def _common(self, place: int, end: Sequence[int]) -> int:
        most = min(place, len(end))
        return next((n for n in range(self.key, most) if self.tokens[place - 1 - n] != end[-1 - n]), most)


class LookupRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: Lookup, text: list[int]):
        self.own, self.references = Index(plan.min_ngram, plan.max_ngram), plan.index
        self.extend(text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        self.own.extend(tokens)

    def match(self) -> int:
        """Return the length of the match that the next draft tokens continue; see `MatchingRow.match`."""
        own, reference = self._found(())
        return max(own.size, reference.size)

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        own, reference = self._found(behind)
        if reference.size > own.size:
            copied = self.references.tokens[reference.place : reference.place + limit]
            return token_chain(copied[: copied.index(_END)] if _END in copied else copied)
        return token_chain(self._repeat(own.place, limit, behind)) if own.size else ([], [])

    def _found(self, behind: Sequence[int]) -> tuple[Occurrence, Occurrence]:
        end = self.own.end(behind)
        return self.own.find(end), self.references.find(end) if self.references.tokens else Occurrence(0, 0)

    def _repeat(self, start: int, limit: int, behind: Sequence[int]) -> list[int]:
        """The text followed by `behind`, from `start` on. A copy that reaches the end continues with what it has copied."""
        copied = [*self.own.tokens[start : start + limit], *behind][:limit]
        return [copied[i % len(copied)] for i in range(limit)]
