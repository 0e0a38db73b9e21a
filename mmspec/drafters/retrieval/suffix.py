"""Suffix decoding (Oliaro et al. 2024) on suffix automata (SAM decoding, Hu et al. 2024): any match length, most frequent continuation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, token_chain, unread_by

_REACH = 64  # contexts counted per token: bounds the work on long runs of one token, where every shorter run is a context


@dataclass(frozen=True)
class Suffix:
    """Suffix decoding (Oliaro et al. 2024; SAM decoding, Hu et al. 2024): the most frequent continuation of the longest suffix seen before.

    Args:
        corpus: token ids of texts like the expected ones, shared by all rows and kept in memory; used where its match is longer than the
            one in the row's own text. For more than some million tokens use a datastore.
        factor: largest number of draft tokens per matched token.
        min_match: shortest match in tokens.
        min_chance: drafting ends where the estimated probability falls below this.

    Raises:
        ValueError: for values out of range.
    """

    corpus: Sequence[Sequence[int]] | None = None
    factor: float = 1.0
    min_match: int = 1
    min_chance: float = 0.1

    def __post_init__(self):
        if self.factor <= 0:
            raise ValueError(f"factor is {self.factor}: give the draft tokens per matched token, a number above 0")
        if self.min_match < 1:
            raise ValueError(f"min_match is {self.min_match}: a match needs at least 1 token")
        if not 0 <= self.min_chance <= 1:
            raise ValueError(f"min_chance is {self.min_chance}: give a probability between 0 and 1")

    @cached_property
    def automaton(self) -> "Automaton":
        """Automaton of the corpus, built once."""
        automaton = Automaton()
        for text in self.corpus or ():
            automaton.last = 0
            for token in text:
                automaton.append(int(token))
        return automaton

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        return HostSession(prompt, lambda row, text: SuffixRow(self, text), unread=unread_by(session))


class Automaton:
    """A suffix automaton (Blumer et al. 1985), grown token by token. State 0 is the empty context.

    A state stands for the contexts that occur at the same places; its link is the longest shorter context that occurs at more.
    """

    def __init__(self):
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length = [-1], [0]
        self.count, self.seen = [0], [0]  # how often, and when last
        self.last, self.clock = 0, 0

    def append(self, token: int) -> None:
        """Append a token to the text."""
        self.last = state = self._grow(token)
        self.clock += 1
        for _ in range(_REACH):
            if state == 0:
                break
            self.count[state] += 1
            self.seen[state] = self.clock
            state = self.link[state]

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Return the state of the longest known suffix after reading `token`, and its length."""
        while state > 0 and token not in self.next[state]:
            state = self.link[state]
            matched = self.length[state]
        if token in self.next[state]:
            return self.next[state][token], matched + 1
        return 0, 0

    def follow(self, state: int, limit: int, shortest: int, min_chance: float) -> list[int]:
        """Return the most frequent continuation of a state's context, greedily, while the context has at least `shortest` tokens."""
        draft_tokens, chance = [], 1.0
        while len(draft_tokens) < limit:
            while state > 0 and not self.next[state]:  # the end of a text: a shorter context was seen elsewhere
                state = self.link[state]
            if self.length[state] < shortest:
                break
            ways = self.next[state]
            token = max(ways, key=lambda way: (self.count[ways[way]], self.seen[ways[way]]))
            chance *= self.count[ways[token]] / sum(self.count[way] for way in ways.values())
            if chance < min_chance:
                break
            draft_tokens.append(token)
            state = ways[token]
        return draft_tokens

    def _grow(self, token: int) -> int:
        """The state of the whole text with `token` behind it."""
        at, known = self.last, self.next[self.last].get(token)
        if known is not None:  # only in a corpus, whose texts all start in state 0
            return known if self.length[known] == self.length[at] + 1 else self._split(at, token, known)
        new = self._add({}, self.length[at] + 1, 0, 0, 0)
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = new
            at = self.link[at]
        if at >= 0:
            known = self.next[at][token]
            self.link[new] = known if self.length[known] == self.length[at] + 1 else self._split(at, token, known)
        return new

    def _split(self, at: int, token: int, known: int) -> int:
        """Separate the contexts of `known` that now occur at more places from the others."""
        part = self._add(dict(self.next[known]), self.length[at] + 1, self.link[known], self.count[known], self.seen[known])
        self.link[known] = part
        while at >= 0 and self.next[at].get(token) == known:
            self.next[at][token] = part
            at = self.link[at]
        return part

    def _add(self, ways: dict[int, int], length: int, link: int, count: int, seen: int) -> int:
        self.next.append(ways)
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        self.seen.append(seen)
        return len(self.next) - 1


class SuffixRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: Suffix, text: list[int]):
        self.plan, self.own, self.corpus = plan, Automaton(), plan.automaton
        self.state, self.matched = 0, 0  # in the corpus
        self.extend(text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            self.own.append(token)
            self.state, self.matched = self.corpus.step(self.state, self.matched, token)

    def match(self) -> int:
        """Return the length of the match that the next draft tokens continue; see `MatchingRow.match`."""
        size = max(self.own.length[max(0, self.own.link[self.own.last])], self.matched)
        return size if size >= self.plan.min_match else 0

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        own = max(0, self.own.link[self.own.last])  # the longest suffix that also occurs elsewhere
        match, state, matched = self.own.length[own], self.state, self.matched
        for token in behind:
            own, match = self.own.step(own, match, token)
            state, matched = self.corpus.step(state, matched, token)
        book, state, match = (self.corpus, state, matched) if matched > match else (self.own, own, match)
        if match < self.plan.min_match:
            return [], []
        return token_chain(book.follow(state, min(limit, int(self.plan.factor * match)), self.plan.min_match, self.plan.min_chance))
