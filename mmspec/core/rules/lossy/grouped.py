"""Grouped speculative decoding (So et al. 2025, arXiv 2508.07747): a draft token is judged together with codes of similar probability.

Codes next to x in the order of p that are near in the codebook form a cluster C, and x is accepted with p(C) / q(C). The paper's guarantee
is for a fixed partition; clusters that depend on x are not one, and for some draft tokens p(C) / q(C) is below p(x) / q(x). So the larger
of
the two is taken: no draft token is accepted less often than by the token rule, the ordinary residual is then the best replacement, and the
drift is measured without bias.

The released code takes one code more below x than above it, compares with a slice that is empty near the end (0/0, rejected), and skips the
distances for a cluster that holds a control. Here clusters have as many codes on either side, and one more below where the size is even.
They are cut at the ends, always hold x, and controls are never grouped.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import ratio


@dataclass(frozen=True, eq=False)
class Grouped(Ratio):
    """Accept with max(p(C) / q(C), p(x) / q(x)), at most 1; C: the `size` codes around x in the order of p, those of them that are near it.
    Equal ranks go by number.

    Args:
        embeddings: [K, d] the codebook, normalised where the quantiser normalises, or the target's input embeddings (as released). Values
            from K on are in no group but their own. None: rank and probability decide alone.
        size: codes in a group at most; 1 is exact.
        p_gap: largest difference of probability from x.
        distance: largest L2 distance from x's row (released: 0.5 for the square).
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    embeddings: Tensor | None = field(repr=False)
    size: int = 14
    p_gap: float = 0.15
    distance: float = 0.7
    budget: float | None = None

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}: a group has at least 1 code (1 is exact)")
        if not (self.p_gap >= 0 and self.distance >= 0):
            raise ValueError(f"p_gap and distance are {self.p_gap}, {self.distance}: both must be 0 or more")
        if self.embeddings is not None and not (self.embeddings.dim() == 2 and len(self.embeddings)):
            raise ValueError(f"embeddings has shape {tuple(self.embeddings.shape)}: give [K, d], a row for each of K codes")
        check_budget(self.budget)

    @property
    def table_size(self) -> int | None:
        """Codes of the codebook; None without one."""
        return None if self.embeddings is None else len(self.embeddings)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        own = ratio(p, q, x)
        members, inside = self.group(p, x)
        mass = _mass(p, members, inside)
        if q is not None:
            mass = mass / _mass(q, members, inside)
        wider = inside.sum(-1) > 1  # a group of one is judged by the token rule, to the last bit
        return torch.where(wider & (mass > own), mass, own).clamp(max=1)

    def group(self, p: Categorical, x: Tensor) -> tuple[Tensor, Tensor]:
        """Find the group of each draft token.

        Args:
            p: the target's distributions [..., V].
            x: draft tokens [...].

        Returns:
            The values near x's rank [..., size], in rising order of p, and which of them are in its group, bool of the same shape.
        """
        values = p.scores.shape[-1]
        order = p.scores.sort(dim=-1, stable=True).indices
        rank = (order == x[..., None]).long().argmax(-1, keepdim=True)
        slots = rank + torch.arange(-(self.size // 2), (self.size + 1) // 2, device=x.device)
        members = order.gather(-1, slots.clamp(0, values - 1))
        gap = (_probs(p, members) - p.prob(x)[..., None]).abs()
        alike = (slots >= 0) & (slots < values) & (gap <= self.p_gap) & self._close(x, members)
        return members, alike | (members == x[..., None]) & (slots == rank)

    def _close(self, x: Tensor, members: Tensor) -> Tensor:
        if self.embeddings is None:
            return torch.ones_like(members, dtype=torch.bool)
        if self.embeddings.device != x.device:
            raise ValueError(
                f"the embeddings are on {self.embeddings.device}, the draft tokens on {x.device}: make the rule with embeddings.to(...)"
            )
        last = len(self.embeddings) - 1
        far = self.embeddings[members.clamp(max=last)] - self.embeddings[x.clamp(max=last)][..., None, :]
        known = (members <= last) & (x <= last)[..., None]
        return known & (far.norm(dim=-1) <= self.distance)


def _probs(distribution: Categorical, values: Tensor) -> Tensor:
    """Probabilities of `values` [..., M] under each distribution, [..., M]."""
    return (distribution.scores.gather(-1, values) - distribution.scores.logsumexp(-1, keepdim=True)).exp()


def _mass(distribution: Categorical, members: Tensor, inside: Tensor) -> Tensor:
    return torch.where(inside, _probs(distribution, members), 0).sum(-1)


def grouped_tree(
    embeddings: Tensor | None, size: int = 14, p_gap: float = 0.15, distance: float = 0.7, budget: float | None = None
) -> Walk:
    """Make grouped acceptance for trees whose candidates are deterministic or drawn without replacement.

    Args:
        embeddings: as `Grouped`.
        size: as `Grouped`.
        p_gap: as `Grouped`.
        distance: as `Grouped`.
        budget: as `Grouped`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(Grouped(embeddings, size, p_gap, distance, budget))
