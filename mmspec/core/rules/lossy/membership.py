"""Acceptance by membership (Llasa+, Tian et al. 2025, arXiv 2508.06262): a draft token passes if it is in a set that p defines.

These rules do not read how the draft token was drawn, so what passes keeps the drafter's distribution and the drift is large. They are
exact only for targets at temperature 0. The drift is the distance TV(output distribution, p) in closed form at every judged position.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed


class Inside(Ratio):
    """Base of rules that accept the members of a set defined by p alone; impossible values are never members."""

    tight = False

    @abstractmethod
    def members(self, p: Categorical) -> Tensor:
        """Compute the set of accepted values.

        Args:
            p: the target's distributions [..., V].

        Returns:
            bool [..., V].
        """
        ...

    @abstractmethod
    def instead(self, p: Categorical) -> Categorical:
        """Make the distribution to draw from when a draft token is rejected.

        Args:
            p: the target's distributions [..., V].

        Returns:
            Distributions [..., V].
        """
        ...

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.members(p).gather(-1, x[..., None])[..., 0].to(p.scores.dtype)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return self.instead(p)

    def excess(self, p: Any, q: Any, x: Tensor, chance: Tensor | None = None) -> Tensor:
        probs = p.probs()
        drawn = Categorical.point(x, probs.shape[-1], probs.dtype).probs() if q is None else q.probs()
        taken = torch.where(self.members(p), drawn, 0)
        output = taken + (1 - taken.sum(-1, keepdim=True)) * self.instead(p).probs()
        return 0.5 * (output - probs).abs().sum(-1)


@dataclass(frozen=True)
class Membership(Inside):
    """Llasa+: accept a draft token among the target's top `k`, else draw from p restricted to those. Drift: TV(output distribution, p)
    itself.

    Equally likely values rank by number. With k = V every possible draft token passes and the output is the drafter's; at temperature 0 it
    is greedy decoding.

    Args:
        k: rank a draft token may have.
        guard: ids, such as end tokens, that need a better rank.
        guard_k: rank of those; 0 rejects them.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    k: int = 50
    guard: tuple[int, ...] = ()
    guard_k: int = 1
    budget: float | None = None

    def __post_init__(self):
        if self.k < 1 or self.guard_k < 0:
            raise ValueError(
                f"k and guard_k are {self.k}, {self.guard_k}: a draft token has rank 1 or more; guard_k may be 0 to refuse its ids"
            )
        check_budget(self.budget)

    def members(self, p: Categorical) -> Tensor:
        inside = _best(p, self.k)
        guarded = [value for value in self.guard if value < p.scores.shape[-1]]
        if guarded:
            inside[..., guarded] = _best(p, self.guard_k)[..., guarded]
        return inside

    def instead(self, p: Categorical) -> Categorical:
        return Categorical(p.scores.masked_fill(~_best(p, self.k), -torch.inf))


def _best(p: Categorical, k: int) -> Tensor:
    """[..., V] bool: the `k` most likely values, of those that are possible."""
    order = torch.argsort(p.scores, dim=-1, descending=True, stable=True)
    first = torch.arange(order.shape[-1], device=order.device) < k
    return torch.zeros_like(p.scores, dtype=torch.bool).scatter_(-1, order, first.expand_as(order)) & (p.scores > -torch.inf)


@dataclass(frozen=True)
class RatioToMax(Inside):
    """Accept a draft token at least `c` times as likely as the target's best, else draw from p. Drift: TV(output distribution, p) itself.

    This is another reading of "tolerance" in speech decoding; VADUSA's own rule is `Tolerance`.

    Args:
        c: share of the best value's probability, above 0 and at most 1.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    c: float = 0.6
    budget: float | None = None

    def __post_init__(self):
        if not 0 < self.c <= 1:
            raise ValueError(f"c is {self.c}: the share of the best value's probability must be above 0 and at most 1")
        check_budget(self.budget)

    def members(self, p: Categorical) -> Tensor:
        return (p.scores - p.scores.amax(-1, keepdim=True)).exp() >= self.c

    def instead(self, p: Categorical) -> Categorical:
        return p


def membership_tree(k: int = 50, guard: tuple[int, ...] = (), guard_k: int = 1, budget: float | None = None) -> Walk:
    """Make membership for trees whose candidates are deterministic or drawn without replacement; its drift is a bound there.

    Args:
        k: as `Membership`.
        guard: as `Membership`.
        guard_k: as `Membership`.
        budget: as `Membership`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(Membership(k, guard, guard_k, budget))
