"""Reuse of draft tokens by a threshold (SJD++, Teng et al. 2025, arXiv 2512.07503).

After a rejection SJD draws the whole rest of the window anew. SJD++ keeps a draft token x whose probability held up, p(x) / q(x) above a
threshold, and draws the others anew. A kept draft token no longer follows the newest distribution, which is the one recorded for it, so the
token rule is not exact here, and what it spends is not measured. Maximal coupling keeps with probability min(1, p / q) and is exact: it is
the counterpart to compare with. Rules that read no q (coupled, match, greedy) stay exact whatever is reused.
"""

from dataclasses import dataclass
from typing import Any

import torch

from mmspec.core.rules.base import UNMETERED
from mmspec.core.rules.token import Token, ratio


@dataclass(frozen=True)
class Reuse:
    """Keep a draft token while p(x) / q(x) exceeds `threshold`, else draw anew from p (SJD++).

    Args:
        threshold: smallest ratio that is not enough, 0 or more; infinity is SJD. The published value is not known to this project.

    Raises:
        ValueError: for a negative threshold or NaN.
    """

    threshold: float = 0.5
    fresh = False
    inexact = True  # recorded distributions are not those of the draft tokens

    def __post_init__(self):
        if not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}: a ratio of probabilities is 0 or more")

    def __call__(self, distribution, before, noise, position, start) -> tuple[Any, Any]:
        drawn = distribution.sample(noise.draft_token(position, start))
        if before is None:
            return drawn, distribution
        old = before.values
        keep = before.there & (ratio(distribution, before.distributions, old) > self.threshold)
        return torch.where(keep, old, drawn), distribution


@dataclass(frozen=True)
class ReusedToken(Token):
    """The token rule for draft tokens that `Reuse` keeps: it judges them by a distribution that they do not quite follow."""

    exactness = UNMETERED
