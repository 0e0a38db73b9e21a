"""Cool-SD (Li et al. 2026, arXiv 2601.09212): annealed relaxation, generous with the first draft tokens of a round and strict with the
last.

An early draft token that fails takes all draft tokens behind it along, so a given drift buys most when it is spent early. No table is
needed,
which makes this the relaxed rule to compare others with: at equal drift, not at equal settings.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import ratio


@dataclass(frozen=True)
class CoolSD(Ratio):
    """Cool-SD: accept draft token i of a path with min(1, w_i p/q), w_i = max(1, delta exp(-nu i - mu)), i counted from 0 at the pending
    token.

    `mu` only scales `delta`; the default makes delta the mean of five weights, which are then 2.8, 1.4, 1, 1, 1. Published weights
    go on falling below 1. Such a draft token would be refused more often than the token rule refuses it, and what that does to the
    distribution
    neither helps speed nor is in the drift, so here weights stop at 1: late draft tokens are judged exactly. One position's drift is
    sum over x of min((w - 1) p, q - p)+ in the mean. The replacement is the ordinary residual, the published one. With all weights 1
    (delta at most exp(mu)) the rule is exact. As a distribution of its own (`output_distribution`) it is that of the first draft token.
    """

    delta: float = 1.1
    nu: float = 0.7
    mu: float = -0.95
    budget: float | None = None

    def __post_init__(self):
        if not (self.delta > 0 and self.nu >= 0):
            raise ValueError(f"delta and nu are {self.delta}, {self.nu}: a weight is above 0 and must not grow, so delta > 0 and nu >= 0")
        check_budget(self.budget)

    def weight(self, place: Tensor) -> Tensor:
        """w_i for draft tokens with `place` [...] others between them and the pending token."""
        return (self.delta * (-self.nu * place - self.mu).exp()).clamp(min=1)

    def at(self, place: Tensor) -> Ratio:
        return _Placed(self.budget, self, place)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.at(torch.zeros((), device=x.device)).accept_prob(p, q, x)


@dataclass(frozen=True)
class _Placed(Ratio):
    """Cool-SD for draft tokens whose places are known."""

    budget: float | None
    rule: CoolSD
    place: Tensor  # [...]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        share = ratio(p, q, x)
        return (self.rule.weight(self.place.to(share.dtype)) * share).clamp(max=1)


def cool_tree(delta: float = 1.1, nu: float = 0.7, mu: float = -0.95, budget: float | None = None) -> Walk:
    """Cool-SD for trees: drawn without replacement or deterministic; a draft token's place is its depth."""
    return relaxed(CoolSD(delta, nu, mu, budget))
