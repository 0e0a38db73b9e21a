"""DIVERSE: the output distribution is a mixture of the target's and the drafter's."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.token import ratio


@dataclass(frozen=True)
class Ensemble(Ratio):
    """DIVERSE: accept with 1 - w + w p/q, so that the output distribution is w p + (1 - w) q, at distance (1 - w) TV(p, q).

    Args:
        weight: the target's share w, above 0 and at most 1 (exact).
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    weight: float = 0.8
    budget: float | None = None

    def __post_init__(self):
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight is {self.weight}: the target's share must be above 0 and at most 1 (1 is exact)")
        check_budget(self.budget)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (1 - self.weight + self.weight * ratio(p, q, x)).clamp(max=1)
