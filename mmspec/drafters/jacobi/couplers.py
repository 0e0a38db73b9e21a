"""Couplers: how the draft token of a position is drawn from its newest distribution, given the draft token and distribution of the round
before.

Speculative Jacobi decoding (SJD, Teng et al. 2025) draws afresh, and loses most of a window whenever its context changes a little. Coupled
drafts (SCD, arXiv 2510.24211) keep the marginal distribution and change as few draft tokens as possible, by maximal coupling or by shared
Gumbel noise. The recorded distribution is always the newest one, for kept draft tokens too: given the values before it, a coupled draft
token follows the newest distribution.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.base import UNMETERED, Accept
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import ratio
from mmspec.drafters.shapes import Draw, drawn, most_likely, sampled


@dataclass(frozen=True, slots=True)
class Before:
    """The round before, at the positions of this round. Gathered on demand."""

    draft_tokens: Tensor  # [B, G] the draft tokens of the round before
    q: Categorical | None  # [B, G] and the distributions they followed
    index: Tensor  # [B, W] which of them stands at each position of this round
    there: Tensor  # [B, W] bool: does one?

    @property
    def values(self) -> Tensor:
        """The draft tokens of the round before, [B, W]."""
        return self.draft_tokens.gather(1, self.index)

    @property
    def distributions(self) -> Categorical:
        """The distributions of the round before at these positions. TypeError if they were not recorded."""
        if self.q is None:
            raise TypeError("this coupler needs the distributions of the draft tokens before, and those were not recorded")
        return self.q.at(self.index)


class Coupler(Protocol):
    """Draws the draft tokens of a window.

    Called with the distributions of output positions `position` [B, W] of the round that began at `start` [B]; returns draft tokens [B, W]
    and the distributions to judge them by, None for point masses.
    """

    @property
    def fresh(self) -> bool:
        """True if draft tokens depend on earlier rounds through their distributions only."""
        ...

    def __call__(
        self, distribution: Categorical, before: Before | None, noise: Noise, position: Tensor, start: Tensor
    ) -> tuple[Tensor, Categorical | None]:
        """Draw the draft tokens of a window.

        Args:
            distribution: the distributions of output positions `position`.
            before: draft tokens and distributions of the round before; None in the first round.
            noise: the keyed noise of the generation.
            position: LongTensor [B, W], output positions.
            start: LongTensor [B], output position at which the round begins.

        Returns:
            Draft tokens [B, W], and the distributions to judge them by; None for point masses.
        """
        ...


@dataclass(frozen=True)
class Independent:
    """Draws independently of the round before, by `draw`; with `sampled` it is SJD (Teng et al. 2025).

    With `drawn` and the coupled rule, draft tokens share the target's noise and so agree with the values to be committed. Distributions
    are then not recorded, because the rule needs none.
    """

    draw: Draw = sampled
    fresh = True

    def __call__(self, distribution, before, noise, position, start) -> tuple[Tensor, Any]:
        return self.draw(distribution, noise.draft_token(position, start))


@dataclass(frozen=True)
class Maximal:
    """Maximal coupling: keep a draft token with probability min(1, p / q), else draw from norm((p - q)+) (SCD; SJD-PAC's continuation)."""

    fresh = False

    def __call__(self, distribution, before, noise, position, start):
        keys = noise.draft_token(position, start).branch(2)
        if before is None:
            return distribution.sample(keys[..., 1]), distribution
        old, q = before.values, before.distributions
        keep = keys[..., 0].below(torch.where(before.there, ratio(distribution, q, old).clamp(max=1), 0))
        rest = distribution.residual(q, old).where(before.there, distribution)
        return torch.where(keep, old, rest.sample(keys[..., 1])), distribution


@dataclass(frozen=True)
class SharedGumbel:
    """Draw by argmax(log p + g) with the same noise g(seed, position) in every round (SCD with shared Gumbel noise).

    The accept rule uses other noise, so g is independent of the values committed before the position.
    """

    fresh = False

    def __call__(self, distribution, before, noise, position, start):
        return distribution.sample(noise.shared(position)), distribution


fresh, greedy, target_noise = Independent(sampled), Independent(most_likely), Independent(drawn)
maximal, gumbel = Maximal(), SharedGumbel()
COUPLERS: dict[str, Coupler] = {
    "fresh": fresh,
    "maximal": maximal,
    "gumbel": gumbel,
    "target-noise": target_noise,
    "greedy": greedy,
}


def check_pairing(couple: Coupler, accept: Accept) -> None:
    """Raise ValueError unless draft tokens drawn by `couple` may be judged by `accept`.

    A coupled draft token follows its new distribution given all committed values, as long as these do not depend on it. Block verification
    ends a round by a test of the whole block, later draft tokens included, so draft tokens that are kept after it no longer follow the
    recorded distribution. Fresh draws are not affected. Draft tokens kept by a threshold (`mmspec.drafters.jacobi.reuse`) never follow it.
    """
    if getattr(couple, "inexact", False) and accept.uses_q and accept.exactness != UNMETERED:
        raise ValueError(
            f"{type(couple).__name__} keeps draft tokens by a threshold, which no rule that reads their distribution can measure: "
            "accept with ReusedToken or coupled, or couple with maximal"
        )
    if isinstance(accept, Block) and not couple.fresh:
        raise ValueError(
            f"{type(couple).__name__} keeps draft tokens from round to round, which block verification makes inexact: "
            "accept with token, or couple with fresh"
        )
