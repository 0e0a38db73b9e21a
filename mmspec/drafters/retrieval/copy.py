"""Shallow aggressive decoding (SAD, Sun et al. 2021): the input is the draft of an output that mostly repeats it."""

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import Tensor

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, token_chain, unread_by

_LONGEST = 16  # tokens compared to tell places apart
_NEAREST = 64  # places compared on either side of the expected one


@dataclass(frozen=True)
class Copy:
    """Copies a source text: for correction, rewriting and transcripts (SAD, Sun et al. 2021).

    After a mismatch, copying continues where the source holds the longest suffix of the output, at the nearest such place.

    Args:
        source: token ids that every row copies, or one sequence of ids per row; by default each row's own prompt.
    """

    source: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        return HostSession(prompt, lambda row, text: CopyRow(self._source(row, text)), unread=unread_by(session))

    def _source(self, row: int, text: list[int]) -> list[int]:
        if self.source is None:
            return text
        source: Any = self.source.tolist() if isinstance(self.source, Tensor) else self.source
        if all(isinstance(token, Integral) for token in source):
            return list(source)
        if row >= len(source):
            raise ValueError(f"source has {len(source)} texts, but there is a row {row}: give one text per row, or one for all")
        return [int(token) for token in source[row]]


class CopyRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, source: list[int]):
        self.source, self.next = source, 0  # next: what to copy
        self.output: list[int] = []
        self.places: dict[int, list[int]] = {}
        for place, token in enumerate(source):
            self.places.setdefault(token, []).append(place)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            self.output.append(token)
            expected = self.next < len(self.source) and self.source[self.next] == token
            self.next = self.next + 1 if expected else self._align(token)

    def match(self) -> int:
        """Return how many tokens before the place to copy are those of the output, 1 at least; see `MatchingRow.match`."""
        if self.next >= len(self.source):
            return 0
        agrees = self.next > 0 and self.output[-1:] == self.source[self.next - 1 : self.next]
        return self._agreement(self.next - 1) if agrees else 1

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        there = self
        if behind:
            there = copy(self)
            there.output = self.output[-_LONGEST:]
            there.extend(behind)
        return token_chain(self.source[there.next : there.next + limit])

    def _align(self, token: int) -> int:
        """The place to continue from after the unexpected `token`."""
        places = self.places.get(token, [])
        near = bisect_left(places, self.next)
        near_by = places[max(0, near - _NEAREST) : near + _NEAREST]
        if not near_by:
            return self.next + 1  # not in the source: assume that it replaces one token
        return 1 + max(near_by, key=lambda place: (self._agreement(place), -abs(place - self.next)))

    def _agreement(self, place: int) -> int:
        """How many of the output's last tokens end at `place` of the source."""
        most = min(_LONGEST, place + 1, len(self.output))
        return next((n for n in range(1, most) if self.source[place - n] != self.output[-1 - n]), most)
