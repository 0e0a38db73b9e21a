"""Rules that verify a transform f(p, q) of the target: a lossless rule applied to a transformed distribution.

The output is exact for the transformed distribution; its distance from p is metered as drift at every judged draft token. The token
committed after a fully accepted draft has no q to be transformed with and follows p.

A transform reads p and q before temperature and truncation, which are applied to its result. At temperature 0 the distributions after
temperature are point masses, which do not show how certain either model is.
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
    """Combines the target's and the drafter's distributions."""

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        """Compute the distribution that is verified.

        Args:
            p: the target's distributions [..., V], before temperature.
            q: the drafter's distributions [..., V], before temperature.

        Returns:
            Distributions [..., V].
        """
        ...


@dataclass(frozen=True)
class Chow:
    """Faster cascades, Chow's rule (Narasimhan et al. 2024): the drafter's distribution wherever its best value has mass >= 1 - alpha.

    Args:
        alpha: tolerated uncertainty of the drafter.
    """

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        return q.where(q.probs().amax(-1) >= 1 - self.alpha, p)


@dataclass(frozen=True)
class Deferral:
    """Faster cascades, optimal deferral (Narasimhan et al. 2024): q unless the target's best value beats its own by more than alpha TV(p,
    q).

    Args:
        alpha: weight of the distance.
    """

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        probs_p, probs_q = p.probs(), q.probs()
        distance = 0.5 * (probs_p - probs_q).abs().sum(-1)
        return q.where(probs_q.amax(-1) >= probs_p.amax(-1) - self.alpha * distance, p)


@dataclass(frozen=True)
class TokenDeferral:
    """Faster cascades, token-specific (Narasimhan et al. 2024): q on values near the target's best, p scaled by q's mass on the others.

    Args:
        alpha: values with p >= (1 - alpha) max p count as near.
    """

    alpha: float = 0.3

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        probs_p, probs_q = p.probs(), q.probs()
        trusted = probs_p >= (1 - self.alpha) * probs_p.amax(-1, keepdim=True)
        rest = (probs_q * ~trusted).sum(-1, keepdim=True)
        return Categorical.of(probs_q * trusted + probs_p * rest)


@dataclass(frozen=True)
class Contrastive:
    """Speculative contrastive decoding (Yuan et al. 2023): (1 + beta) log p - beta log q over values with p >= alpha max p.

    Args:
        alpha: least probability relative to the best value.
        beta: strength of the contrast.
    """

    alpha: float = 0.1
    beta: float = 0.5

    def __call__(self, p: Categorical, q: Categorical) -> Categorical:
        log_p, log_q = p.log_probs(), q.log_probs()
        plausible = log_p >= log_p.amax(-1, keepdim=True) + torch.tensor(self.alpha).log().item()
        return Categorical(torch.where(plausible, (1 + self.beta) * log_p - self.beta * log_q.clamp(min=-50), -torch.inf))


@dataclass(frozen=True)
class Transformed:
    """Judge a chain by `warp(transform(p, q))` with a lossless chain rule.

    The target and the drafter hand in their distributions before `warp`; draft tokens are drawn from `warp(q)`. At temperature 0 they are
    the drafter's most likely tokens, and the output is the argmax of the transformed distribution. Calling it raises ValueError for
    drafters without a distribution.

    Args:
        transform: combines p and q.
        rule: a lossless chain rule.
        warp: temperature and truncation; filled in by the request.
    """

    transform: Transform
    rule: Any = field(default_factory=Token)
    warp: Pipeline = field(default_factory=Pipeline)
    exactness, coupled, uses_q, trees, untempered = LOSSY, False, True, False, True

    def warped_by(self, warp: Pipeline) -> "Transformed":
        """Set the request's temperature and truncation.

        Args:
            warp: processors that do not read the history.

        Returns:
            A new rule.
        """
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
    """Make Chow's rule.

    Args:
        alpha: as `Chow`.

    Returns:
        A rule for `accept=`.
    """
    return Transformed(Chow(alpha))


def deferral(alpha: float = 0.3) -> Transformed:
    """Make the optimal deferral rule.

    Args:
        alpha: as `Deferral`.

    Returns:
        A rule for `accept=`.
    """
    return Transformed(Deferral(alpha))


def token_deferral(alpha: float = 0.3) -> Transformed:
    """Make the token-specific deferral rule.

    Args:
        alpha: as `TokenDeferral`.

    Returns:
        A rule for `accept=`.
    """
    return Transformed(TokenDeferral(alpha))


def contrastive(alpha: float = 0.1, beta: float = 0.5) -> Transformed:
    """Make the contrastive decoding rule.

    Args:
        alpha: as `Contrastive`.
        beta: as `Contrastive`.

    Returns:
        A rule for `accept=`.
    """
    return Transformed(Contrastive(alpha, beta))
