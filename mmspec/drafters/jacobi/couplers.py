"""Couplers: how a window's draft token is drawn from the newest distribution of its position, given the draft token and the distribution of
the round before.

Speculative Jacobi decoding (SJD, Teng et al. 2025) draws afresh, and loses most of a window whenever its context changes a little.
Coupled drafts (SCD, arXiv 2510.24211) keep the marginal distribution and change as few draft tokens as they can: by maximal coupling or by
sharing Gumbel numbers. Whatever is drawn, the distribution on record is the newest one, for kept draft tokens too: given the values before
it, a coupled draft token follows the newest distribution, and the distribution it was first drawn from no longer says anything.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.base import Accept
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import ratio
from mmspec.drafters.shapes import Draw, drawn, most_likely, sampled


@dataclass(frozen=True, slots=True)
class Before:
    """The round before at this round's positions. Nothing is gathered until it is asked for."""

    draft_tokens: Tensor  # [B, G] the draft tokens of the round before
    q: Categorical | None  # [B, G] and the distributions they followed
    index: Tensor  # [B, W] which of them stands at each position of this round
    there: Tensor  # [B, W] bool: does one?

    @property
    def values(self) -> Tensor:
        return self.draft_tokens.gather(1, self.index)

    @property
    def distributions(self) -> Categorical:
        if self.q is None:
            raise TypeError("this coupler needs the distributions of the draft tokens before, and those were not recorded")
        return self.q.at(self.index)


class Coupler(Protocol):
    """Draws [B, W] draft tokens from `distribution` for output positions `position` [B, W] of the round that began at `start` [B].

    It returns them with the distribution to judge them by, None for point masses. `fresh` says that a draft token depends on no draft token
    of an earlier round but through its distribution.
    """

    @property
    def fresh(self) -> bool: ...

    def __call__(
        self, distribution: Categorical, before: Before | None, noise: Noise, position: Tensor, start: Tensor
    ) -> tuple[Tensor, Categorical | None]: ...


@dataclass(frozen=True)
class Independent:
    """`draw` as if there had been no round before: one of shapes' draws. With `sampled` it is SJD.

    With `drawn` and the coupled rule, draft tokens are drawn by the target's own noise, which couples them to what will be committed and so
    to one another. The distributions are not recorded, as that rule needs none.
    """

    draw: Draw = sampled
    fresh = True

    def __call__(self, distribution, before, noise, position, start) -> tuple[Tensor, Any]:
        return self.draw(distribution, noise.draft_token(position, start))


@dataclass(frozen=True)
class Maximal:
    """Keep a draft token with min(1, p / q), else draw from norm((p - q)+): no coupling keeps more often (SCD; SJD-PAC's continuation)."""

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
    """Draw by argmax(log p + g) with the same numbers g(seed, position) in every round (SCD with shared Gumbel noise).

    Judging and replacing use other numbers, so g stays unknown to whatever is committed before it.
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

    A coupled draft token follows its new distribution given all that was committed before it, as long as it had no say in that. Block
    verification
    ends a round where the whole block, later draft tokens included, says so: what is committed then tells something about the draft tokens
    behind it, and those that are kept no longer follow the distribution on record. Fresh draws know nothing of it.
    """
    if isinstance(accept, Block) and not couple.fresh:
        raise ValueError(
            f"{type(couple).__name__} keeps draft tokens from round to round, which block verification makes inexact: "
            "accept with token, or couple with fresh"
        )
