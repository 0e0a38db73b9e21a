"""Typical acceptance (Medusa, Cai et al. 2024)."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import GreedyLike, check_budget


@dataclass(frozen=True)
class Typical(GreedyLike):
    """Typical acceptance (Medusa, Cai et al. 2024): p(x) > min(epsilon, delta exp(-H(p))). Drift: departures from greedy, a bound.

    Args:
        epsilon: largest threshold.
        delta: scale of the threshold by the entropy H(p).
        budget: departures a row may make; None for no limit.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    budget: float | None = None

    def __post_init__(self):
        check_budget(self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        log_probs = p.log_probs()
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)
        return p.prob(x) > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
