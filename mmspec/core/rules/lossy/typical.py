"""Typical acceptance (Medusa, Cai et al. 2024)."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY
from mmspec.core.rules.lossy.base import check_budget, greedy_like, greedy_like_distribution


@dataclass(frozen=True)
class Typical:
    """Typical acceptance (Medusa, Cai et al. 2024): p(x) > min(epsilon, delta exp(-H(p))). Drift: departures from greedy, a bound.

    Args:
        epsilon: largest threshold.
        delta: scale of the threshold by the entropy H(p).
        budget: departures a row may make; None for no limit.
    """

    reads_raw = True  # at temperature 0 it reads distributions before temperature
    epsilon: float = 0.09
    delta: float = 0.3
    budget: float | None = None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    def __post_init__(self):
        check_budget(self.budget)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return greedy_like(self, draft, scored)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        """Test draft tokens.

        Args:
            p: the target's distributions [..., V].
            x: draft tokens [...].

        Returns:
            bool [...].
        """
        log_probs = p.log_probs()
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)
        return p.prob(x) > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_distribution(self, p, q)
