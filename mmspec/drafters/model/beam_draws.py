"""Sampled draft tokens for beam search: drawn from the distribution over all pairs (node, child) of a level, which is recorded for the
rule.
The nodes are all of the level before. The distribution is the drafter's softmax over the path scores of their children. DSBD reads
`IndependentDraws`, AtSpeed-R reads `Distinct`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.beams.pairs import check_temperature, draw_distinct, draw_pairs, pair_distribution
from mmspec.core.beams.search import DrawnChildren
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Draft


@dataclass(frozen=True)
class Draws(ABC):
    """Draws `width` draft tokens a level, for a target that keeps `k` beams."""

    k: int
    width: int
    temperature: float | Tensor

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.width < self.k:
            raise ValueError(f"width is {self.width} and k {self.k}: draw at least as many as are kept, better four times as many")

    def draw(self, score: Tensor, state: Tensor, draft: Draft, depth: int, noise: Noise) -> DrawnChildren:
        """Return draft tokens for path scores [B, S] of trie nodes [B, S], with log q [B, S]; none in rows without pairs."""
        log_q = pair_distribution(score, self.temperature)
        index = self.chosen(log_q, state, noise.draft_token(draft.start[:, None] + depth, draft.start))
        return DrawnChildren(log_q, torch.where((log_q > -torch.inf).any(1, keepdim=True) & (index >= 0), index, PAD))

    @abstractmethod
    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        """Return indices [B, width], -1 for none. `keys` is [B, 1]."""


class IndependentDraws(Draws):
    """Draws with replacement: a repeated pair is judged again, but is one node."""

    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        """Return indices [B, width] drawn with replacement."""
        return draw_pairs(keys.branch(self.width)[:, 0], log_q.exp(), state)


class Distinct(Draws):
    """Draws without replacement."""

    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        """Return indices [B, width] drawn without replacement."""
        return draw_distinct(keys, log_q, state, self.width)
