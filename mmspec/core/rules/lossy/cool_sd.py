"""Cool-SD (Li et al. 2026, arXiv 2601.09212): annealed relaxation, lenient with the first draft tokens of a round and strict with the last.

A rejected token discards all draft tokens after it, so drift is best spent on early ones. No table is needed, which makes this the relaxed
rule to compare others with, at equal drift rather than equal settings.
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
    """Cool-SD: accept draft token i of a path with min(1, w_i p/q), w_i = max(1, delta exp(-nu i - mu)), i from 0 at the pending token.

    The published weights fall below 1 for late tokens. Such tokens would be rejected more often than by the token rule, at a distance that
    the drift does not count, so here weights stop at 1 and late tokens are judged exactly. One position's mean drift is
    sum over x of min((w - 1) p, q - p)+. The replacement is the ordinary residual, as published. With delta at most exp(mu) the rule is
    exact. `output_distribution` is that of the first draft token.

    Args:
        delta: scale of the weights, above 0.
        nu: decay per draft token, 0 or more.
        mu: offset that scales `delta`; by default delta is the mean of five weights, which are then 2.8, 1.4, 1, 1, 1.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
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
        """Compute the weights w_i.

        Args:
            place: i [...].

        Returns:
            [...], 1 or more.
        """
        return (self.delta * (-self.nu * place - self.mu).exp()).clamp(min=1)

    def at(self, place: Tensor) -> Ratio:
        return _Placed(self.budget, self, place)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.at(torch.zeros((), device=x.device)).accept_prob(p, q, x)


@dataclass(frozen=True)
class _Placed(Ratio):
    """Cool-SD for draft tokens of known places."""

    budget: float | None
    rule: CoolSD
    place: Tensor  # [...]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        share = ratio(p, q, x)
        return (self.rule.weight(self.place.to(share.dtype)) * share).clamp(max=1)


def cool_tree(delta: float = 1.1, nu: float = 0.7, mu: float = -0.95, budget: float | None = None) -> Walk:
    """Make Cool-SD for trees whose candidates are deterministic or drawn without replacement; a token's place is its depth.

    Args:
        delta: as `CoolSD`.
        nu: as `CoolSD`.
        mu: as `CoolSD`.
        budget: as `CoolSD`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(CoolSD(delta, nu, mu, budget))
