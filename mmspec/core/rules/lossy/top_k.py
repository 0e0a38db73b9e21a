"""Rules by rank in the target's distribution, SpecDec (Xia et al. 2022) and LASER (Xi et al. 2025), and by distance from its best."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import GreedyLike, check_budget


def _ahead(p: Categorical, x: Tensor) -> Tensor:
    """How many values are ahead of draft tokens `x` [...]. Equally likely ones rank by number, as the mode does."""
    own, values = p.scores.gather(-1, x[..., None]), torch.arange(p.scores.shape[-1], device=x.device)
    return ((p.scores > own) | ((p.scores == own) & (values < x[..., None]))).sum(-1)


@dataclass(frozen=True)
class TopKGap(GreedyLike):
    """SpecDec (Xia et al. 2022): the draft token is among the target's top `beta` and within `tau` nats of its best.

    Equally likely values rank by number, as the mode does, so beta = 1 is greedy decoding. Drift: departures from greedy, a bound.

    Args:
        beta: rank a draft token may have, 1 (greedy) or more.
        tau: largest difference of log-probability from the best, in nats.
        budget: departures a row may make; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    beta: int = 3
    tau: float = 1.0
    budget: float | None = None

    def __post_init__(self):
        if self.beta < 1:
            raise ValueError(f"beta is {self.beta}: the rank a draft token may have must be at least 1 (1 is greedy)")
        check_budget(self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        gap = p.scores.amax(-1) - p.scores.gather(-1, x[..., None])[..., 0]
        return (_ahead(p, x) < self.beta) & (gap <= self.tau)


@dataclass(frozen=True)
class TopKFloor(GreedyLike):
    """LASER, first named DARE (Xi et al. 2025): the draft token is among the target's top `k` and its probability is above `tau`.

    The target's best always passes. Equally likely values rank by number, as the mode does, so k = 1 is greedy decoding; from tau = 1/2 on
    any k is. Drift: departures from greedy, a bound.

    Args:
        k: rank a draft token may have, 1 (greedy) or more.
        tau: floor of the draft token's own probability, in [0, 1); not a top-p mass, though released under that name.
        budget: departures a row may make; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    k: int = 2
    tau: float = 0.1
    budget: float | None = None

    def __post_init__(self):
        if not self.k >= 1:
            raise ValueError(f"k is {self.k}: the rank a draft token may have must be at least 1 (1 is greedy)")
        if not 0 <= self.tau < 1:
            raise ValueError(f"tau is {self.tau}: the probability a draft token must exceed is at least 0 and below 1")
        check_budget(self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        return (_ahead(p, x) < self.k) & (p.prob(x) > self.tau)


@dataclass(frozen=True)
class ByDistance(GreedyLike):
    """Blockwise parallel decoding's check by distance (Stern et al. 2018): the draft token is within `epsilon` of the target's best.

    The distance is that of the numbers of both values, so they must be in order, as intensities are and ids of text and of codes are not:
    for targets that are `ordered`. Drift: departures from greedy, a bound.

    Args:
        epsilon: largest distance, 0 (greedy) or more.
        budget: departures a row may make; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    epsilon: int = 2
    budget: float | None = None
    reads_order = True

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is {self.epsilon}: a distance between values is 0 (greedy) or more")
        check_budget(self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        return ((x - p.mode()).abs() <= self.epsilon) & (p.prob(x) > 0)
