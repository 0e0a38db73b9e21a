"""Lenience (Leviathan et al. 2023): the drafter's probability is multiplied by l < 1 before it is compared."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import GreedyLike, Ratio, check_budget
from mmspec.core.rules.token import ratio


def _check(lenience: float, budget: float | None) -> None:
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience is {lenience}: it must be above 0 and at most 1 (1 is exact)")
    check_budget(budget)


@dataclass(frozen=True)
class Lenience(Ratio):
    """Leviathan et al. 2023: accept with min(1, p / (l q)), replace from norm((p - l q)+); no value becomes likelier than p / l.

    The published replacement is outside the class whose excess is tight, so the drift is the distance TV(output distribution, p) in closed
    form at every judged position. At temperature 0 both distributions are point masses; there the rule is `GreedyLenience`, which reads p
    before temperature.

    Args:
        lenience: l, above 0 and at most 1 (exact).
        budget: total variation a row may spend; None for no limit.
    """

    lenience: float = 0.8
    budget: float | None = None
    tight = False

    def __post_init__(self):
        _check(self.lenience, self.budget)

    def at_temperature_zero(self) -> "GreedyLenience":
        """Make the rule for requests at temperature 0.

        Returns:
            `GreedyLenience` with the same settings.
        """
        return GreedyLenience(self.lenience, self.budget)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (ratio(p, q, x) / self.lenience).clamp(max=1)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        if q is None:
            return p.without(x)
        left = (p.probs() - self.lenience * q.probs()).clamp_(min=0)
        return Categorical.of(torch.where(left.sum(-1, keepdim=True) > 0, left, p.probs()))

    def excess(self, p: Any, q: Any, x: Tensor, chance: Tensor | None = None) -> Tensor:
        probs = p.probs()
        weight = Categorical.point(x, probs.shape[-1], probs.dtype).probs() if q is None else q.probs()
        taken = torch.minimum(weight, probs / self.lenience)
        output = taken + (1 - taken.sum(-1, keepdim=True)) * self.replacement(p, q, x).probs()
        return 0.5 * (output - probs).abs().sum(-1)


@dataclass(frozen=True)
class GreedyLenience(GreedyLike):
    """Lenience at temperature 0: a draft token passes if p(x) >= l max p, with p before temperature.

    Where none passes, the most likely token is committed. Drift: departures from greedy decoding, a bound.

    Args:
        lenience: l, above 0 and at most 1 (greedy decoding).
        budget: departures a row may make; None for no limit.
    """

    lenience: float = 0.8
    budget: float | None = None

    def __post_init__(self):
        _check(self.lenience, self.budget)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        return (p.log_prob(x) - p.log_prob(p.mode())).exp() >= self.lenience
