"""VADUSA's tolerance rule (Li et al. 2024)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY, TOKEN_EXACT, deepest, emitted, with_meters
from mmspec.core.rules.lossy.base import _gate, _kept, check_budget
from mmspec.core.rules.paths import equals_parent


@dataclass(frozen=True)
class Tolerance:
    """Tolerance (VADUSA, Li et al. 2024): a draft token is kept if it is among `tau` draws from p.

    The first draw is plain sampling's own, and is committed where no draft token is kept. Drift is a(x) - p(x) with a = 1 - (1 - p)^tau:
    tight for deterministic draft tokens, a bound for sampled ones.

    Args:
        tau: number of draws, 1 (`match`) or more.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    tau: int = 3
    budget: float | None = None
    coupled, uses_q, trees, tight = False, False, True, True

    def __post_init__(self):
        if self.tau < 1:
            raise ValueError(f"tau is {self.tau}: the number of draws must be at least 1 (1 is exact)")
        check_budget(self.budget)

    @property
    def exactness(self) -> str:
        """ "token-exact" for one draw, else "lossy"."""
        return TOKEN_EXACT if self.tau == 1 else LOSSY

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        position = draft.position()
        first = scored.p.sample(noise.value(position))
        exact = equals_parent(draft, first)
        passes, cost = exact.clone(), torch.zeros_like(exact, dtype=scored.p.scores.dtype)
        again = noise.accept(position, draft.start).branch(self.tau)
        for turn in range(self.tau - 1):
            passes |= equals_parent(draft, scored.p.sample(again[..., turn]))
        parents = draft.parents[:, draft.roots :].clamp_min(0)
        chance = scored.p.at(parents).prob(draft.draft_tokens)
        cost[:, draft.roots :] = ((1 - chance) - (1 - chance) ** self.tau).clamp(min=0) * draft.valid[:, draft.roots :]
        passes, cost = _gate(self, draft, passes, exact, cost)
        verdict = deepest(draft, passes, first)
        judged = _kept(verdict).gather(1, parents)  # draft tokens whose parent was kept
        return with_meters(verdict, verdict.judged, (judged * cost[:, draft.roots :]).sum(-1), None)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return 1 - (1 - p.prob(x)) ** self.tau

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.without(x)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return emitted(self, p, q)
