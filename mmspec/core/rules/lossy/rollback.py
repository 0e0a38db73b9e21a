"""BiLD's rollback rule (Kim et al. 2023)."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import GreedyLike, check_budget


@dataclass(frozen=True)
class Rollback(GreedyLike):
    """BiLD (Kim et al. 2023): roll back to the first draft token with -log p(x) above `threshold`. Drift: departures from greedy, a bound.

    Pair it with a drafter that stops when it is uncertain.

    Args:
        threshold: largest -log p(x) in nats.
        budget: departures a row may make; None for no limit.
    """

    threshold: float = 2.0
    budget: float | None = None

    def __post_init__(self):
        check_budget(self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        return -p.log_prob(x) <= self.threshold
