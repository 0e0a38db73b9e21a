"""SSD (Lin et al. 2025, arXiv 2505.15380): relaxed acceptance for speech tokens."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import ratio


@dataclass(frozen=True)
class SSD(Ratio):
    """SSD: accept with min(1, min(1, p/q) + `beta`), replace from norm((p - q)+). Drift: tight, at most `beta` a draft token.

    Draft tokens that the target rules out (p = 0) are accepted with `beta`, too: truncate p less than q, or limit the drift by `budget`.

    Args:
        beta: added to the acceptance probability, in [0, 1]; 0 is exact.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    beta: float = 0.4
    budget: float | None = None

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta is {self.beta}: what is added to a probability is between 0 (exact) and 1")
        check_budget(self.budget)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (ratio(p, q, x).clamp(max=1) + self.beta).clamp(max=1)


def ssd_tree(beta: float = 0.4, budget: float | None = None) -> Walk:
    """Make SSD for trees whose candidates are deterministic or drawn without replacement.

    Args:
        beta: as `SSD`.
        budget: as `SSD`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(SSD(beta, budget))
