"""Partial verification skipping (VVS, Dong et al. 2026, arXiv 2511.13587): some draft tokens are committed without being verified.

VVS skips the target's forward in some rounds: one path of the draft, cut to the mean length of all paths, is committed as it stands, the
drafter goes on from it with hidden states of earlier rounds, and the next forward of the target runs the skipped tokens and verifies the
draft after them. So a forward of the target holds the skipped tokens and a tree behind them. Here that is one draft: a chain of
`levels` tokens that are accepted unverified, and a tree that a relaxed rule judges. The target scores the chain too, if too late to refuse
it, and so the drift of what was skipped is measured like that of other relaxed rules, and a budget ends the skipping.

Differences from the released code: every forward carries a skipped round (its script skips every fifth, or where the paths resemble one
another), the skipped tokens are drawn from q instead of taking a path of the tree at random, and the drafter goes on from its own hidden
states.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.rules.lossy.base import Ratio, check_budget


@dataclass(frozen=True)
class Unverified(Ratio):
    """Accept the first `levels` draft tokens of a path unverified, and judge the others by `rule`.

    Skipped draft tokens are to be drawn from q, one a node: then their mean excess (1 - p(x)/q(x))+ is the total variation between q and p.
    At temperature 0 they are the drafter's most likely values.

    Args:
        rule: judges the later draft tokens; its own budget is not read.
        levels: draft tokens skipped a round, 0 or more; 0 is `rule`.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range, or a budget of `rule`'s own.
    """

    rule: Ratio
    levels: int = 2
    budget: float | None = None

    def __post_init__(self):
        if self.levels < 0:
            raise ValueError(f"levels is {self.levels}: give 0 or more draft tokens to skip the verification of")
        if self.rule.budget is not None:
            raise ValueError(f"the rule's budget is {self.rule.budget}: give the budget to Unverified")
        check_budget(self.budget)

    def at(self, place: Tensor) -> Ratio:
        return _Placed(self.budget, self.rule.at(place), place < self.levels)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.at(torch.zeros((), device=x.device)).accept_prob(p, q, x)


@dataclass(frozen=True)
class _Placed(Ratio):
    """The rule for draft tokens of known places."""

    budget: float | None
    rule: Ratio
    skipped: Tensor  # bool [...]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        chance = self.rule.accept_prob(p, q, x)
        return torch.where(self.skipped, torch.ones_like(chance), chance)
