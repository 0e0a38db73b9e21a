"""Bases of lossy rules: more draft tokens are accepted, and the cost is measured as drift, the total variation spent.

For a rule that accepts a draft token x ~ q with a(x) >= min(1, p/q) and replaces from norm((p - q)+), the excess (a(x) - p(x)/q(x))+ of the
draft token at hand is an unbiased estimate of the total variation of that position, and the sum over judged positions bounds that of the
whole output in expectation. `tight` marks rules of that class. The others report a bound, stated in their docstrings: greedy-like rules
count the positions where they depart from greedy decoding.

`budget` limits a row's running drift: once it is spent, the rule is exact for the rest of that row.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY, deepest, emitted, for_every_value, over_judged, parents_distribution, with_meters
from mmspec.core.rules.paths import equals_parent
from mmspec.core.rules.token import judge_chain, ratio


def _spent(draft: Draft, dtype: torch.dtype) -> Tensor:
    return torch.zeros(len(draft.start), dtype=dtype, device=draft.start.device) if draft.drift is None else draft.drift


def check_budget(budget: float | None) -> None:
    """Check a drift budget.

    Args:
        budget: total variation, or None for no limit.

    Raises:
        ValueError: for negative numbers and NaN.
    """
    if budget is not None and not budget >= 0:
        raise ValueError(f"budget is {budget}: a drift budget is a total variation, so 0 or more, or None for no limit")


# --- ratio rules: judged on a chain, metered by the excess ------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """A rule whose acceptance probabilities are already computed, since some are expensive and needed twice."""

    rule: Any
    chance: Tensor  # [B, G]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.chance

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return self.rule.replacement(p, q, x)


class Ratio(ABC):
    """Base of rules that judge single draft tokens by p, q and the token, metered by the excess.

    A subclass gives `accept_prob`, at least min(1, p/q) wherever it does not override `replacement` and `excess`: the ordinary residual is
    then the best replacement, and the mean excess is both the distance of the output distribution from p and the acceptance gained over the
    token rule (Li et al. 2026, arXiv 2601.09212, for the replacement).
    """

    budget: float | None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, True, False, True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        """Judge a chain; exactly where the budget is spent.

        Args:
            draft: a linear draft.
            scored: its scores.
            noise: the generation's random numbers.

        Returns:
            The verdict.
        """
        if draft.size == draft.roots or not draft.linear:  # nothing to judge, or refused
            verdict = judge_chain(self, draft, scored, noise)
            return with_meters(verdict, verdict.judged, torch.zeros_like(_spent(draft, torch.float32)), None)
        p, q, x, exact = parents_distribution(draft, scored), draft.q, draft.draft_tokens, None
        rule = self.at(draft.depth()[:, draft.roots :] - 1)
        chance = rule.accept_prob(p, q, x)
        cost = rule.excess(p, q, x, chance)
        if self.budget is not None:
            exact = _spent(draft, cost.dtype)[:, None] + cost.cumsum(-1) - cost >= self.budget
            cost = torch.where(exact, 0, cost)
        verdict = judge_chain(_Judged(rule, chance), draft, scored, noise, exact)
        return with_meters(verdict, verdict.judged, over_judged(verdict.judged, cost), verdict.expected)

    def at(self, place: Tensor) -> "Ratio":
        """Set the place of draft tokens in their path. Most rules do not depend on it.

        Args:
            place: draft tokens between each one and the pending token [...].

        Returns:
            The rule there.
        """
        return self

    @abstractmethod
    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        """Probability of accepting draft token `x` drawn from `q` (None: a point mass on x)."""
        ...

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        """The distribution to draw from when `x` is rejected."""
        return p.residual(q, x)

    def excess(self, p: Any, q: Any, x: Tensor, chance: Tensor | None = None) -> Tensor:
        """Compute what judging draft tokens costs in total variation.

        Args:
            p: the target's distributions [...].
            q: the distributions `x` was drawn from; None for point masses.
            x: draft tokens [...].
            chance: their acceptance probabilities [...], if known.

        Returns:
            [...].
        """
        chance = self.accept_prob(p, q, x) if chance is None else chance
        return (chance - ratio(p, q, x)).clamp(min=0)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return emitted(self, p, q)


# --- pass-or-fail rules: any tree -------------------------------------------------------------------------------------


def _gate(rule: Any, draft: Draft, passes: Tensor, exact: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """`passes` and `cost` [B, N] where the budget lasts along each node's own path; elsewhere `exact` and 0."""
    if rule.budget is None:
        return passes, cost
    along = (draft.ancestors().to(cost.dtype) @ cost[..., None])[..., 0] - cost
    relaxed = _spent(draft, cost.dtype)[:, None] + along < rule.budget
    return torch.where(relaxed, passes, exact), torch.where(relaxed, cost, 0)


def _kept(verdict: Verdict) -> Tensor:
    """[B, N] 1.0 for the columns a verdict keeps."""
    kept = verdict.keep >= 0
    return torch.zeros(verdict.keep.shape, device=kept.device).scatter_add_(1, verdict.keep.clamp_min(0), kept.float())


class GreedyLike(ABC):
    """Base of rules that keep the draft tokens that pass a test and commit the argmax of p. They judge any tree.

    Drift: kept draft tokens that greedy decoding would not have chosen, a bound. A subclass gives `passes` and `budget`.
    """

    budget: float | None
    reads_raw = True  # at temperature 0 it reads distributions before temperature
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    @abstractmethod
    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        """Test draft tokens.

        Args:
            p: the target's distributions [..., V].
            x: draft tokens [...].

        Returns:
            bool [...].
        """

    def passing(self, draft: Draft, scored: Scored) -> Tensor:
        """Test all draft tokens of a draft.

        Args:
            draft: any draft.
            scored: its scores.

        Returns:
            bool [B, G].
        """
        return self.passes(scored.p.at(draft.parents[:, draft.roots :].clamp_min(0)), draft.draft_tokens)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        """Judge a draft; as greedy decoding where the budget is spent.

        Args:
            draft: any draft.
            scored: its scores.
            noise: not read.

        Returns:
            The verdict.
        """
        best = scored.p.mode()
        exact = equals_parent(draft, best)
        passes = exact.clone()
        if draft.size > draft.roots:
            passes[:, draft.roots :] |= self.passing(draft, scored)
        passes, departs = _gate(self, draft, passes, exact, (~exact).float())
        verdict = deepest(draft, passes, best)
        return with_meters(verdict, verdict.judged, (_kept(verdict) * departs).sum(-1), None)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """Compute the output distribution: tokens that pass keep their q mass, the rest becomes the argmax.

        Args:
            p: the target's distribution [V].
            q: the draft's distribution [V].

        Returns:
            Distribution [V].
        """
        x, many = for_every_value(p)
        passes = self.passes(many, x) | (x == p.mode())
        kept = q.probs() * passes
        return Categorical.of(kept + (1 - kept.sum()) * (x == p.mode()))
