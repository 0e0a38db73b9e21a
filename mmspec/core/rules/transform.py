"""Verify f(p, q) instead of p: the lossless rule applied to a transformed target.

The output is exact for the transformed distribution; its distance from p is metered as drift at every judged draft token. The token
committed after a fully accepted draft has no q to be transformed with and follows p.

A transform reads p and q before temperature and truncation, which are applied to its result. At temperature 0 the distributions after
temperature are point masses and would say nothing of how sure either model is.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY, over_judged, parents_distribution, with_meters
from mmspec.core.rules.token import Token


class Transform(Protocol):
    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        """The distribution that is verified, from the target's and the drafter's."""
        ...


@dataclass(frozen=True)
class Chow:
    """Faster cascades, Chow's rule (Narasimhan et al. 2024): the drafter's distribution wherever its best value has mass >= 1 - alpha."""

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        return q.where(q.probs().amax(-1) >= 1 - self.alpha, p)


@dataclass(frozen=True)
class Deferral:
    """Faster cascades, the optimal deferral: q unless the target's best value beats its own by more than alpha TV(p, q)."""

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        probs_p, probs_q = p.probs(), q.probs()
        distance = 0.5 * (probs_p - probs_q).abs().sum(-1)
        return q.where(probs_q.amax(-1) >= probs_p.amax(-1) - self.alpha * distance, p)


@dataclass(frozen=True)
class TokenDeferral:
    """Faster cascades, token-specific: q on the values the target finds nearly best, p scaled by q's mass on the others."""

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        probs_p, probs_q = p.probs(), q.probs()
        trusted = probs_p >= (1 - self.alpha) * probs_p.amax(-1, keepdim=True)
        rest = (probs_q * ~trusted).sum(-1, keepdim=True)
        return Categorical.of(probs_q * trusted + probs_p * rest)


@dataclass(frozen=True)
class Contrastive:
    """Speculative contrastive decoding (Yuan et al. 2023): (1 + beta) log p - beta log q over values with p >= alpha max p."""

    alpha: float = 0.1
    beta: float = 0.5

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        log_p, log_q = p.log_probs(), q.log_probs()
        plausible = log_p >= log_p.amax(-1, keepdim=True) + torch.tensor(self.alpha).log().item()
        return Categorical(torch.where(plausible, (1 + self.beta) * log_p - self.beta * log_q.clamp(min=-50), -torch.inf))


@dataclass(frozen=True)
class Transformed:
    """Judge a chain by `warp(transform(p, q))` with a lossless chain rule.

    `warp` is temperature and truncation. The target and the drafter hand in their distributions before it; draft tokens are drawn from
    `warp(q)`. At temperature 0 they are the drafter's most likely tokens, and the output is the argmax of the transformed distribution.
    """

    transform: Transform
    rule: Any = field(default_factory=Token)
    warp: Pipeline = field(default_factory=Pipeline)
    exactness, coupled, uses_q, trees, untempered = LOSSY, False, True, False, True

    def warped_by(self, warp: Pipeline) -> "Transformed":
        """This rule for a request that samples with `warp`: processors that do not look at what came before."""
        return replace(self, warp=warp)

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        target = self._warped(scored.p)
        if draft.size == draft.roots:
            return self.rule(draft, replace(scored, p=target), noise)
        if draft.q is None:
            name = type(self.transform).__name__
            raise ValueError(f"{name} combines the drafter's distribution with the target's, and this drafter has none: draft with a model")
        p, q = parents_distribution(draft, scored), self._warped(draft.q)
        old = parents_distribution(draft, replace(scored, p=target))
        new = self._warped(self.transform(p, draft.q)).where(draft.valid[:, draft.roots :], old)  # a PAD column transforms nothing
        before, last = (Categorical(target.scores[:, part]) for part in (slice(draft.roots - 1), slice(-1, None)))
        verdict = self.rule(replace(draft, q=q), Scored(before.cat(new).cat(last), healthy=scored.healthy), noise)
        drift: Tensor = over_judged(verdict.judged, 0.5 * (new.probs() - old.probs()).abs().sum(-1))
        return with_meters(verdict, verdict.judged, drift, verdict.expected)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """The distribution of one committed token, from `p` and `q` before temperature."""
        return self._warped(self.transform(p, q))

    def _warped(self, distribution: Categorical) -> Categorical:
        return distribution if self.warp.idle else Categorical(self.warp(distribution.scores, None))  # type: ignore[arg-type]


def chow(alpha: float = 0.3) -> Transformed:
    return Transformed(Chow(alpha))


def deferral(alpha: float = 0.3) -> Transformed:
    return Transformed(Deferral(alpha))


def token_deferral(alpha: float = 0.3) -> Transformed:
    return Transformed(TokenDeferral(alpha))


def contrastive(alpha: float = 0.1, beta: float = 0.5) -> Transformed:
    return Transformed(Contrastive(alpha, beta))
