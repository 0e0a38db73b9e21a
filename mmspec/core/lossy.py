"""Lossy rules: more guesses survive, and what that costs is measured as drift, the total variation spent.

For a rule that accepts a guess x ~ q with a(x) >= min(1, p/q) and replaces from norm((p - q)+), the excess (a(x) - p(x)/q(x))+
of the guess at hand is an unbiased estimate of the total variation of that position, and the sum over judged positions bounds
that of the whole output in expectation. `tight` says a rule is of that class. The others report a bound, said in their
docstrings: greedy-like rules count the positions where they depart from greedy decoding.

`budget` caps a row's running drift: once it is spent, the rule is exact for the rest of that row.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import LOSSY, TOKEN_EXACT, chain, deepest, emitted, over_judged, parents_law, ratio, with_meters
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.paths import equals_parent
from mmspec.core.records import Draft, Scored, Verdict


def _spent(draft: Draft, dtype: torch.dtype) -> Tensor:
    return torch.zeros(len(draft.start), dtype=dtype, device=draft.start.device) if draft.drift is None else draft.drift


def check_budget(budget: float | None) -> None:
    if budget is not None and not budget >= 0:
        raise ValueError(f"budget is {budget}: a drift budget is a total variation, so 0 or more, or None for no limit")


# --- ratio rules: judged on a chain, metered by the excess ------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """A rule whose acceptance probabilities are known already: some are dear, and are needed twice."""

    rule: Any
    chance: Tensor  # [B, G]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return self.chance

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return self.rule.replacement(p, q, x)


class Ratio(ABC):
    """Base of the rules that judge one guess at a time by p, q and the guess, whose excess meters them.

    A rule gives `accept_prob`, at least min(1, p/q) wherever it leaves `replacement` and `excess` as they are: the ordinary
    residual is then the best replacement there is, and the mean excess is the distance of the output law from p, which is also
    what the rule accepts beyond the token rule (Li et al. 2026, arXiv 2601.09212, for the replacement).
    """

    budget: float | None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, True, False, True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        """Judge a chain; where the budget is spent, exactly."""
        if draft.size == draft.roots or not draft.linear:  # nothing to judge, or refused
            verdict = chain(self, draft, scored, noise)
            return with_meters(verdict, verdict.judged, torch.zeros_like(_spent(draft, torch.float32)), None)
        p, q, x, exact = parents_law(draft, scored), draft.q, draft.guesses, None
        rule = self.at(draft.depth()[:, draft.roots :] - 1)
        chance = rule.accept_prob(p, q, x)
        cost = rule.excess(p, q, x, chance)
        if self.budget is not None:
            exact = _spent(draft, cost.dtype)[:, None] + cost.cumsum(-1) - cost >= self.budget
            cost = torch.where(exact, 0, cost)
        verdict = chain(_Judged(rule, chance), draft, scored, noise, exact)
        return with_meters(verdict, verdict.judged, over_judged(verdict.judged, cost), verdict.expected)

    def at(self, place: Tensor) -> "Ratio":
        """This rule for guesses with `place` others between them and the frontier. Most rules do not look."""
        return self

    @abstractmethod
    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        """Probability of accepting guess `x` drawn from `q` (None: a point mass on x)."""
        ...

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        """The law to draw from when `x` is rejected."""
        return p.residual(q, x)

    def excess(self, p: Any, q: Any, x: Tensor, chance: Tensor | None = None) -> Tensor:
        """What judging `x` costs in total variation; `chance` is its acceptance probability, if known."""
        chance = self.accept_prob(p, q, x) if chance is None else chance
        return (chance - ratio(p, q, x)).clamp(min=0)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return emitted(self, p, q)


@dataclass(frozen=True)
class Ensemble(Ratio):
    """DIVERSE: accept with 1 - w + w p/q, so that the output law is exactly w p + (1 - w) q, at distance (1 - w) TV(p, q)."""

    weight: float = 0.8
    budget: float | None = None

    def __post_init__(self):
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight is {self.weight}: the target's share must be above 0 and at most 1 (1 is exact)")
        check_budget(self.budget)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (1 - self.weight + self.weight * ratio(p, q, x)).clamp(max=1)


# --- pass-or-fail rules: any tree -------------------------------------------------------------------------------------


def _gate(rule: Any, draft: Draft, passes: Tensor, exact: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """`passes` [B, N] and `cost` [B, N] where the budget lasts along each node's own path; `exact` and nothing elsewhere."""
    if rule.budget is None:
        return passes, cost
    along = (draft.ancestors().to(cost.dtype) @ cost[..., None])[..., 0] - cost
    relaxed = _spent(draft, cost.dtype)[:, None] + along < rule.budget
    return torch.where(relaxed, passes, exact), torch.where(relaxed, cost, 0)


def _kept(verdict: Verdict) -> Tensor:
    """[B, N] 1.0 for the columns a verdict keeps."""
    kept = verdict.keep >= 0
    return torch.zeros(verdict.keep.shape, device=kept.device).scatter_add_(1, verdict.keep.clamp_min(0), kept.float())


def greedy_like(rule: Any, draft: Draft, scored: Scored) -> Verdict:
    """Keep guesses that `rule.passes`, settle the argmax; drift counts the kept guesses that greedy decoding would not have chosen."""
    best = scored.p.mode()
    exact = equals_parent(draft, best)
    passes = exact.clone()
    if draft.size > draft.roots:
        parents = draft.parents[:, draft.roots :].clamp_min(0)
        passes[:, draft.roots :] |= rule.passes(scored.p.at(parents), draft.guesses)
    passes, departs = _gate(rule, draft, passes, exact, (~exact).float())
    verdict = deepest(draft, passes, best)
    return with_meters(verdict, verdict.judged, (_kept(verdict) * departs).sum(-1), None)


def greedy_like_law(rule: Any, p: Categorical, q: Categorical) -> Categorical:
    """Guesses that pass are kept with all their q mass, the rest becomes the argmax."""
    size = p.scores.shape[-1]
    x = torch.arange(size, device=p.scores.device)
    passes = rule.passes(Categorical(p.scores.expand(size, size)), x) | (x == p.mode())
    kept = q.probs() * passes
    return Categorical.of(kept + (1 - kept.sum()) * (x == p.mode()))


@dataclass(frozen=True)
class Typical:
    """Typical acceptance (Medusa, Cai et al. 2024): p(x) > min(epsilon, delta exp(-H(p))). Drift: departures from greedy, a bound."""

    epsilon: float = 0.09
    delta: float = 0.3
    budget: float | None = None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    def __post_init__(self):
        check_budget(self.budget)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return greedy_like(self, draft, scored)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        log_probs = p.log_probs()
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)
        return p.prob(x) > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_law(self, p, q)


@dataclass(frozen=True)
class TopKGap:
    """SpecDec (Xia et al. 2022): the guess is among the target's top `beta` and within `tau` nats of its best.

    Drift: departures from greedy, a bound.
    """

    beta: int = 3
    tau: float = 1.0
    budget: float | None = None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    def __post_init__(self):
        if self.beta < 1:
            raise ValueError(f"beta is {self.beta}: the rank a guess may have must be at least 1 (1 is greedy)")
        check_budget(self.budget)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return greedy_like(self, draft, scored)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        own = p.scores.gather(-1, x[..., None])
        rank = (p.scores > own).sum(-1)
        return (rank < self.beta) & (p.scores.amax(-1) - own[..., 0] <= self.tau)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_law(self, p, q)


@dataclass(frozen=True)
class TopKFloor:
    """LASER, first named DARE (Xi et al. 2025): the guess is among the target's top `k` and its probability is above `tau`.

    The target's best always passes, so where no value is above `tau` it alone does. `tau` is a floor under the guess's own
    probability, not a top-p mass, though released under that name. Equally likely values rank by number, as the mode does, so
    k = 1 is greedy to the last bit; from tau = 1/2 on any k is. Drift: departures from greedy, a bound.
    """

    k: int = 2
    tau: float = 0.1
    budget: float | None = None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    def __post_init__(self):
        if not self.k >= 1:
            raise ValueError(f"k is {self.k}: the rank a guess may have must be at least 1 (1 is greedy)")
        if not 0 <= self.tau < 1:
            raise ValueError(f"tau is {self.tau}: the probability a guess must exceed is at least 0 and below 1")
        check_budget(self.budget)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return greedy_like(self, draft, scored)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        own, values = p.scores.gather(-1, x[..., None]), torch.arange(p.scores.shape[-1], device=x.device)
        ahead = (p.scores > own) | ((p.scores == own) & (values < x[..., None]))
        return (ahead.sum(-1) < self.k) & (p.prob(x) > self.tau)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_law(self, p, q)


@dataclass(frozen=True)
class Rollback:
    """BiLD (Kim et al. 2023): roll back to the first guess with -log p(x) above `threshold`; pair with a drafter that stops when unsure.

    Drift: departures from greedy, a bound.
    """

    threshold: float = 2.0
    budget: float | None = None
    exactness, coupled, uses_q, trees, tight = LOSSY, False, False, True, False

    def __post_init__(self):
        check_budget(self.budget)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return greedy_like(self, draft, scored)

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        return -p.log_prob(x) <= self.threshold

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return greedy_like_law(self, p, q)


@dataclass(frozen=True)
class Tolerance:
    """Tolerance (VADUSA, Li et al. 2024): a guess survives if it is among `tau` draws from p; tau = 1 is `match`.

    The first draw is plain sampling's own, and is settled where no guess survives. Drift is a(x) - p(x) with
    a = 1 - (1 - p)^tau: tight for deterministic guesses, a bound for sampled ones.
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
        chance = scored.p.at(parents).prob(draft.guesses)
        cost[:, draft.roots :] = ((1 - chance) - (1 - chance) ** self.tau).clamp(min=0) * draft.valid[:, draft.roots :]
        passes, cost = _gate(self, draft, passes, exact, cost)
        verdict = deepest(draft, passes, first)
        judged = _kept(verdict).gather(1, parents)  # guesses whose parent was kept
        return with_meters(verdict, verdict.judged, (judged * cost[:, draft.roots :]).sum(-1), None)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return 1 - (1 - p.prob(x)) ** self.tau

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.without(x)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return emitted(self, p, q)
