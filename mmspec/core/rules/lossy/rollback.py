"""BiLD's rollback rule (Kim et al. 2023)."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY
from mmspec.core.rules.lossy.base import check_budget, greedy_like, greedy_like_distribution


@dataclass(frozen=True)
class Rollback:
    """BiLD (Kim et al. 2023): roll back to the first draft token with -log p(x) above `threshold`. Drift: departures from greedy, a bound.

    Pair it with a drafter that stops when it is uncertain.

    Args:
        threshold: largest -log p(x) in nats.
        budget: departures a row may make; None for no limit.
    """

    reads_raw = True  # at temperature 0 it reads distributions before temperature
    threshold: float = 2.0
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
        return -p.log_prob(x) <= self.threshold

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_distribution(self, p, q)
