"""Prompt lookup decoding (PLD, Saxena 2023), and LLMA (Yang et al. 2023) with reference texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, token_chain, unread_by

_END = -1  # stands between references; no token has this id


@dataclass(frozen=True)
class Lookup:
    """Prompt lookup (PLD, Saxena 2023; with references LLMA, Yang et al. 2023): copies the continuation of the text's last n-gram.

    The row's own prompt and output are searched for the latest occurrence, longest n first, then `references`.

    Args:
        max_ngram: longest n-gram looked up.
        min_ngram: shortest n-gram looked up.
        references: token ids of texts that the output may quote, shared by all rows.

    Raises:
        ValueError: unless 1 <= `min_ngram` <= `max_ngram`.
    """

    max_ngram: int = 3
    min_ngram: int = 1
    references: Sequence[Sequence[int]] = ()

    def __post_init__(self):
        if not 1 <= self.min_ngram <= self.max_ngram:
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


class Index:
    """Position after the latest occurrence of each n-gram of a text. Grows token by token."""

    def __init__(self, shortest: int, longest: int):
        self.shortest, self.longest = shortest, longest
        self.tokens: list[int] = []
        self.behind: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token behind its latest occurrence

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            end = len(self.tokens)
            # an n-gram is entered when its continuation is known, so the text's own last n-gram never finds itself
            for size in range(self.shortest, min(self.longest, end) + 1) if token != _END else ():
                self.behind[tuple(self.tokens[end - size :])] = end
            self.tokens.append(token)


class LookupRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: Lookup, text: list[int]):
        self.own, self.references = Index(plan.min_ngram, plan.max_ngram), plan.index
        self.extend(text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        self.own.extend(tokens)

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        text = [*self.own.tokens[-self.own.longest :], *behind]
        for size in range(min(self.own.longest, len(text)), self.own.shortest - 1, -1):
            ngram = tuple(text[-size:])
            if ngram in self.own.behind:
                return token_chain(self._repeat(self.own.behind[ngram], limit, behind))
            if ngram in self.references.behind:
                start = self.references.behind[ngram]
                copied = self.references.tokens[start : start + limit]
                return token_chain(copied[: copied.index(_END)] if _END in copied else copied)
        return [], []

    def _repeat(self, start: int, limit: int, behind: Sequence[int]) -> list[int]:
        """The text followed by `behind`, from `start` on. A copy that reaches the end continues with what it has copied."""
        copied = [*self.own.tokens[start : start + limit], *behind][:limit]
        return [copied[i % len(copied)] for i in range(limit)]
