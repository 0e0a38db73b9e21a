"""Adaptive n-grams (ANPD, Ou et al. 2024), combined with a table computed from the model's weights (The N-Grammys, Stewart et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, unread_by


@dataclass(frozen=True, eq=False)
class NGram:
    """Adaptive n-gram drafter (ANPD, Ou et al. 2024): drafts from the longest known context of the row's own text.

    Args:
        order: largest n; contexts have up to `order - 1` tokens.
        table: [V, k] each token's most likely successors, used where no context is known; see `bigram_table`.
        drafts: number of chains with different first tokens, those of the longest contexts first (The N-Grammys, Stewart et al. 2024).

    Raises:
        ValueError: for values out of range.
    """

    order: int = 4
    table: Tensor | None = None
    drafts: int = 1

    def __post_init__(self):
        if self.order < 2:
            raise ValueError(f"order is {self.order}: an n-gram needs a context, so give 2 or more")
        if self.drafts < 1:
            raise ValueError(f"drafts is {self.drafts}: give at least 1 chain")
        if self.table is not None and self.table.dim() != 2:
            raise ValueError(f"table has shape {tuple(self.table.shape)}: give [vocabulary, successors], as bigram_table does")

    @cached_property
    def successors(self) -> np.ndarray:
        """The table on the host, [V, k]."""
        return np.empty((0, 0), np.int64) if self.table is None else self.table.cpu().numpy()

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        return HostSession(
            prompt, lambda row, text: NGramRow(self, text), lambda length: self.drafts * length, self.drafts, unread_by(session)
        )


class NGramRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: NGram, text: list[int]):
        self.plan, self.successors = plan, plan.successors
        self.recent: list[int] = []  # the longest context
        self.counts: dict[tuple[int, ...], dict[int, int]] = {}  # context -> its followers, the latest last
        self.best: dict[tuple[int, ...], int] = {}  # context -> its most frequent follower, the latest among equals
        self.extend(text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            for context in self._contexts(self.recent):
                followers = self.counts.setdefault(context, {})
                count = followers[token] = followers.pop(token, 0) + 1
                if count >= followers[self.best.setdefault(context, token)]:
                    self.best[context] = token
            self.recent = self._push(self.recent, token)

    def match(self) -> int:
        """Return the length of the context that the next draft tokens follow; see `MatchingRow.match`."""
        known = next((context for context in self._contexts(self.recent) if context in self.best), ())
        return len(known) or int(bool(self._tabled(self.recent)))

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        tokens: list[int] = []
        parents: list[int] = []
        recent = self.recent
        for token in behind:
            recent = self._push(recent, token)
        for first in self._firsts(recent, self.plan.drafts):
            path = self._chain(recent, first, limit)
            parents += [-1, *range(len(tokens), len(tokens) + len(path) - 1)]
            tokens += path
        return tokens, parents

    def _chain(self, recent: list[int], first: int, limit: int) -> list[int]:
        """`first` and its successors, as far as they are known."""
        tokens, token = [], first
        while token is not None and len(tokens) < limit:
            tokens.append(token)
            recent = self._push(recent, token)
            known = (self.best[context] for context in self._contexts(recent) if context in self.best)
            token = next(known, None)
            if token is None:
                token = next(iter(self._tabled(recent)), None)
        return tokens

    def _firsts(self, recent: list[int], count: int) -> list[int]:
        """Up to `count` different next tokens, most trusted first."""
        found: dict[int, None] = {}
        for context in self._contexts(recent):
            followers = self.counts.get(context, {})
            latest_first = list(followers)[::-1]
            found |= dict.fromkeys(sorted(latest_first, key=followers.__getitem__, reverse=True))
            if len(found) >= count:
                break
        return list(found | dict.fromkeys(self._tabled(recent)))[:count]

    def _tabled(self, recent: list[int]) -> list[int]:
        known = recent and recent[-1] < len(self.successors)
        return self.successors[recent[-1]].tolist() if known else []

    def _contexts(self, recent: list[int]) -> list[tuple[int, ...]]:
        """The contexts that end here, longest first."""
        return [tuple(recent[start:]) for start in range(len(recent))]

    def _push(self, recent: list[int], token: int) -> list[int]:
        return [*recent, token][1 - self.plan.order :]


@torch.no_grad()
def bigram_table(model: Any, k: int, chunk: int = 256) -> Tensor:
    """Return each token's `k` most likely successors by embedding times head, without any layer (The N-Grammys, Stewart et al. 2024).

    Where embedding and head are tied, the table mostly repeats tokens.

    Args:
        model: a causal transformers model.
        k: successors per token.
        chunk: tokens scored at once.

    Returns:
        [V, k] token ids.

    Raises:
        ValueError: for a model without embedding or head, or `k` out of range.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None:
        raise ValueError(f"{type(model).__name__} has no token embedding or no head over tokens: give the causal model, not its body")
    if not 1 <= k <= head.weight.shape[0]:
        raise ValueError(f"k is {k}: give between 1 and {head.weight.shape[0]} successors")
    return torch.cat([head(part).topk(k, -1).indices for part in embedding.weight.split(chunk)])
