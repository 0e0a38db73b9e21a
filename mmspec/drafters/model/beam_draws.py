"""Draft tokens for beams that are drawn: from the distribution over all pairs (node, child) of a level, which is recorded for the rule.

The nodes are all of the level before, not only those the target will keep, and the distribution is the drafter's own softmax over their
children's path scores. `IndependentDraws` is what DSBD judges, `Distinct` what AtSpeed-R does.
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
    """`width` draft tokens a level, for a target that keeps `k`."""

    k: int
    width: int
    temperature: float

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.width < self.k:
            raise ValueError(f"width is {self.width} and k {self.k}: draw at least as many as are kept, better four times as many")

    def draw(self, score: Tensor, state: Tensor, draft: Draft, depth: int, noise: Noise) -> DrawnChildren:
        """Draft tokens from path scores [B, S] of trie nodes [B, S], with log q [B, S]; none in rows that have no pairs."""
        log_q = pair_distribution(score, self.temperature)
        index = self.chosen(log_q, state, noise.draft_token(draft.start[:, None] + depth, draft.start))
        return DrawnChildren(log_q, torch.where((log_q > -torch.inf).any(1, keepdim=True) & (index >= 0), index, PAD))

    @abstractmethod
    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        """Indices [B, width]; -1 for none. `keys` is [B, 1]."""


class IndependentDraws(Draws):
    """One after the other from one distribution, so that the likely ones may come again: they are judged again, but they are one node."""

    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        return draw_pairs(keys.branch(self.width)[:, 0], log_q.exp(), state)


class Distinct(Draws):
    """Without replacement."""

    def chosen(self, log_q: Tensor, state: Tensor, keys: Keys) -> Tensor:
        return draw_distinct(keys, log_q, state, self.width)
