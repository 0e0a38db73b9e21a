"""Verify f(p, q) instead of p: the lossless rule applied to a transformed target.

The output is exact for the transformed law; its distance from p is metered as drift at every judged guess. The value settled
after a fully accepted draft has no q to be transformed with and follows p.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.accept import LOSSY, Token, over_judged, parents_law, with_meters
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict


class Transform(Protocol):
    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        """The law that is verified, from the target's and the drafter's."""
        ...


@dataclass(frozen=True)
class Chow:
    """Faster cascades, Chow's rule (Narasimhan et al. 2024): the drafter's law wherever its best value has mass >= 1 - alpha."""

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
    """Judge a chain by `transform(p, q)` with a lossless chain rule."""

    transform: Transform
    rule: Any = field(default_factory=Token)
    exactness, coupled, uses_q, trees = LOSSY, False, True, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if draft.size == draft.roots or draft.q is None:
            return self.rule(draft, scored, noise)
        p = parents_law(draft, scored)
        new = self.transform(p, draft.q).where(draft.valid[:, draft.roots :], p)  # a PAD guess transforms nothing
        before = Categorical(scored.p.scores[:, : draft.roots - 1])
        last = Categorical(scored.p.scores[:, -1:])
        verdict = self.rule(draft, Scored(before.cat(new).cat(last), healthy=scored.healthy), noise)
        drift: Tensor = over_judged(verdict.judged, 0.5 * (new.probs() - p.probs()).abs().sum(-1))
        return with_meters(verdict, verdict.judged, drift, verdict.expected)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return self.transform(p, q)


def chow(alpha: float = 0.3) -> Transformed:
    return Transformed(Chow(alpha))


def deferral(alpha: float = 0.3) -> Transformed:
    return Transformed(Deferral(alpha))


def token_deferral(alpha: float = 0.3) -> Transformed:
    return Transformed(TokenDeferral(alpha))


def contrastive(alpha: float = 0.1, beta: float = 0.5) -> Transformed:
    return Transformed(Contrastive(alpha, beta))
