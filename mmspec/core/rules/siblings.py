"""Rules for trees of draft tokens: several candidates at one node, tried in order against what is left of the target's distribution.

`Walk` goes down the tree one level at a time, all rows at once. Its sibling rules differ in two things only: the probability
that a candidate is taken, and what becomes of p and q when it is not. A rule is exact for the planner that draws candidates
the way it assumes: top-k, with or without replacement, or top-k with one drawn last.

`Relaxed` takes a lossy chain rule down the same tree, candidate by candidate, and meters what it spends.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.thinning import spread
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY, commit, with_meters
from mmspec.core.rules.token import Token


class Siblings(Protocol):
    """How the candidates at one node are judged. p, q: [B, 1, V]; x, count: [B, 1]; `index` counts candidates from 0.

    Where no distribution was recorded q is None, which only siblings that judge `points` get to see.
    """

    uses_q: bool
    points: bool  # whether candidates without a recorded distribution are judged too, as point masses
    tables: bool  # whether it reads distributions as tables of values; distributions that have none are refused where it does

    def take_prob(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> Tensor:
        """Probability of taking candidate x, the `index`-th of `count`, given that those before it were refused."""
        ...

    def refuse(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> tuple[Categorical, Categorical | None]:
        """What is left of p and q once x has been refused."""
        ...

    def refusal(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> Tensor:
        """Probability of refusing a candidate that was drawn the way the rule assumes."""
        ...


@dataclass(frozen=True)
class Walk:
    """Walk from the last root, trying each node's children in order; where none is taken, draw from what is left of p."""

    siblings: Siblings
    coupled = False
    trees = True

    @property
    def uses_q(self) -> bool:
        return self.siblings.uses_q

    @property
    def exactness(self) -> str:
        return LOSSY if isinstance(self.siblings, Relaxed) else DISTRIBUTION_EXACT

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not self.siblings.points and draft.q is None and draft.size > draft.roots:
            raise ValueError(
                f"{type(self.siblings).__name__} needs the distribution its candidates were drawn from: "
                "draft with a sampled tree, or accept with match or topk"
            )
        rows = torch.arange(len(draft.start), device=draft.start.device)
        children = _children(draft)
        here = torch.full_like(draft.start, draft.roots - 1)
        steps = torch.zeros_like(here)
        going = draft.parents[:, draft.roots - 1] != PAD
        left = scored.p.at(here[:, None])
        touched = torch.zeros_like(going)
        dtype = left.scores.dtype if self.siblings.tables else torch.float64
        judged, expected = torch.zeros_like(here), torch.zeros_like(here, dtype=dtype)
        drift, relaxed = torch.zeros_like(expected), isinstance(self.siblings, Relaxed)
        for level in range(draft.height):
            slots = children[rows, here]  # [B, W]
            p = scored.p.at(here[:, None])
            q = None if draft.q is None else draft.q.at((slots[:, :1] - draft.roots).clamp_min(0))
            taken, tried = torch.full_like(here, -1), torch.zeros_like(going)
            count = (slots >= 0).sum(-1, keepdim=True)
            chances = noise.accept((draft.start + steps)[:, None], draft.start).branch(slots.shape[1])
            for j in range(slots.shape[1]):
                x = draft.nodes[rows, slots[:, j].clamp_min(draft.roots)][
                    :, None
                ]  # no such child: any draft token, as a root may be no value
                live = going & (taken < 0) & (slots[:, j] >= 0)
                rule = self._now(level, drift if draft.drift is None else draft.drift + drift)
                chance = rule.take_prob(p, q, x, j, count)
                hit = live & chances[..., j].below(chance)[:, 0]
                judged = judged + live
                expected = expected + torch.where(live, rule.refusal(p, q, x, j, count)[:, 0], 0)
                if isinstance(rule, Relaxed):
                    drift = drift + torch.where(live, rule.excess(p, q, x, chance)[:, 0], 0)
                refused = (live & ~hit)[:, None]
                p_left, q_left = rule.refuse(p, q, x, j, count)
                p, q = p_left.where(refused, p), q_left if q is None or q_left is None else q_left.where(refused, q)
                taken, tried = torch.where(hit, slots[:, j], taken), tried | live
            left, touched = p.where(going[:, None], left), torch.where(going, tried, touched)
            going = going & (taken >= 0)
            here, steps = torch.where(going, taken, here), steps + going
        left = left.where(~going[:, None], scored.p.at(here[:, None]))  # still going: the last level was taken, nothing lies below
        position = (draft.start + steps)[:, None]
        own = left.sample(noise.value(position))[:, 0]
        replaced = left.sample(noise.residual(position, draft.start))[:, 0]
        verdict = commit(draft, here, torch.where(spread(touched & ~going, own), replaced, own))
        return with_meters(verdict, judged, drift if relaxed else None, expected)

    def _now(self, level: int, spent: Tensor) -> Siblings:
        """The rule at one level, in rows that have spent so much drift [B]."""
        return self.siblings.at(level, spent) if isinstance(self.siblings, Relaxed) else self.siblings

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return self.siblings.rule.output_distribution(p, q) if isinstance(self.siblings, Relaxed) else p


def _children(draft: Draft) -> Tensor:
    """[B, N, W] columns of each node's children in order, -1 padded; W is the draft's sibling bound."""
    columns = torch.arange(draft.size, device=draft.start.device)
    is_child = draft.parents[:, None, :] == columns[None, :, None]
    order = torch.where(is_child, columns, draft.size).sort(-1).values[..., : draft.width]
    return torch.where(order < draft.size, order, -1)


def _capped_ratio(p: Categorical, q: Categorical, x: Tensor) -> Tensor:
    return (p.log_prob(x) - q.log_prob(x)).exp().clamp(max=1)


@dataclass(frozen=True)
class TopKSiblings:
    """Deterministic candidates (EAGLE-2's rule, SGLang's "target only"): each is taken with its mass under what is left of p."""

    uses_q, points, tables = False, True, True

    def take_prob(self, p, q, x, index, count):
        return p.prob(x)

    def refuse(self, p, q, x, index, count):
        return p.without(x), q

    def refusal(self, p, q, x, index, count):
        return 1 - p.prob(x)


@dataclass(frozen=True)
class WithReplacement:
    """Multi-step speculative sampling (SpecInfer, Miao et al. 2023): candidates drawn independently from one q."""

    drawn = "with-replacement"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return _capped_ratio(p, q, x)

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x), q

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


@dataclass(frozen=True)
class WithoutReplacement:
    """Recursive rejection over candidates drawn without replacement (Jeon et al. 2024): q loses every candidate refused."""

    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return _capped_ratio(p, q, x)

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x), q.without(x)

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


@dataclass(frozen=True)
class Hybrid:
    """Hu et al. 2025: all candidates but the last are q's most likely values, the last is drawn from the rest of q."""

    drawn = "top-and-one"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return torch.where(index < count - 1, p.prob(x), _capped_ratio(p, q, x))

    def refuse(self, p, q, x, index, count):
        return p.without(x).where(index < count - 1, p.residual(q, x)), q.without(x)

    def refusal(self, p, q, x, index, count):
        return torch.where(index < count - 1, 1 - p.prob(x), p.tv(q, x))


@dataclass(frozen=True)
class KSeq:
    """K-SEQ (SpecTr, Sun et al. 2023): k independent candidates, each taken with min(1, p / (rho q)); at least 1 - 1/e of the optimum.

    rho in [1, k] solves 1 - (1 - b)^k = rho b with b = sum min(q, p / rho); when all k are refused, what is left is (p - rho q)+.
    """

    drawn = "with-replacement"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return ((p.log_prob(x) - q.log_prob(x)).exp() / self.rho(p, q, count)).clamp(max=1)

    def refuse(self, p, q, x, index, count):
        left = (p.probs() - self.rho(p, q, count)[..., None] * q.probs()).clamp_(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, p.probs())
        return Categorical.of(left).where(index == count - 1, p), q

    def refusal(self, p, q, x, index, count):
        return 1 - torch.minimum(q.probs(), p.probs() / self.rho(p, q, count)[..., None]).sum(-1)

    @staticmethod
    def rho(p: Categorical, q: Categorical, count: Tensor) -> Tensor:
        """By bisection, as the left side falls below the right as rho grows. [B, 1]"""
        probs_p, probs_q = p.probs(), q.probs()
        low, high = torch.ones_like(count, dtype=probs_p.dtype), count.clamp(min=1).to(probs_p.dtype)
        for _ in range(60 if low.dtype == torch.float64 else 30):
            middle = 0.5 * (low + high)
            b = torch.minimum(probs_q, probs_p / middle[..., None]).sum(-1)
            below_root = 1 - (1 - b) ** count > middle * b
            low, high = torch.where(below_root, middle, low), torch.where(below_root, high, middle)
        return high


@dataclass(frozen=True)
class Relaxed:
    """A lossy chain rule in a tree: each candidate is judged against what is left of p, and its excess against that is the drift.

    `rule` is one of `lossy.Ratio`. Candidates may be drawn without replacement with q recorded, or be point masses. The drift is
    the sum of the excess over all candidates tried. One candidate's mean excess is the distance its rule leaves between the
    committed value's distribution and what was left of p, given that the next step is exact; a walk that goes on wrongly after a refusal
    adds no more than the distance of that step times the probability of the refusal. Summed up, the mean drift bounds the distance of
    the output from the target's distribution: in trees it is more than that, as later candidates may mend what earlier ones bent; with one
    candidate a node it is the chain rule's own meter, and tight where that is.

    Once the rule's budget is spent candidates are judged exactly; a row overshoots by one candidate's excess at most.
    """

    rule: Any
    exact: Tensor | None = None  # [B, 1] rows whose budget is spent; filled in by `at`
    uses_q, points, tables = True, True, True

    def at(self, level: int, spent: Tensor) -> "Relaxed":
        """The rule `level` draft tokens behind the pending token, in rows that have spent so much drift [B]."""
        exact = None if self.rule.budget is None else (spent >= self.rule.budget)[:, None]
        return Relaxed(self.rule.at(torch.full_like(spent, level)[:, None]), exact)

    def take_prob(self, p, q, x, index, count):
        chance = self.rule.accept_prob(p, q, x)
        return chance if self.exact is None else torch.where(self.exact, Token().accept_prob(p, q, x), chance)

    def excess(self, p: Categorical, q: Categorical | None, x: Tensor, chance: Tensor) -> Tensor:
        cost = self.rule.excess(p, q, x, chance)
        return cost if self.exact is None else torch.where(self.exact, 0, cost)

    def refuse(self, p, q, x, index, count):
        left = self.rule.replacement(p, q, x)
        if self.exact is not None and not self.rule.tight:  # tight rules replace as the token rule does
            left = Token().replacement(p, q, x).where(self.exact, left)
        return left, None if q is None else q.without(x)

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


def relaxed(rule: Any) -> Walk:
    """`rule`, one of `lossy.Ratio`, for trees."""
    return Walk(Relaxed(rule))


def topk() -> Walk:
    return Walk(TopKSiblings())


def with_replacement() -> Walk:
    return Walk(WithReplacement())


def without_replacement() -> Walk:
    return Walk(WithoutReplacement())


def hybrid() -> Walk:
    return Walk(Hybrid())


def kseq() -> Walk:
    return Walk(KSeq())
