"""Couplers: how a window's guess is drawn from the newest law of its position, given the guess and the law of the round before.

Speculative Jacobi decoding (SJD, Teng et al. 2025) draws afresh, and loses most of a window whenever its context changes a little.
Coupled drafts (SCD, arXiv 2510.24211) keep the marginal law and change as few guesses as they can: by maximal coupling or by sharing
Gumbel numbers. Whatever is drawn, the law on record is the newest one, for kept guesses too: given the values before it, a coupled
guess follows the newest law, and the law it was first drawn from no longer says anything.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.accept import Accept, Block, ratio
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.drafters.shapes import Draw, best, drawn, sampled


@dataclass(frozen=True, slots=True)
class Before:
    """The round before at this round's positions. Nothing is gathered until it is asked for."""

    guesses: Tensor  # [B, G] the guesses of the round before
    q: Categorical | None  # [B, G] and the laws they followed
    index: Tensor  # [B, W] which of them stands at each position of this round
    there: Tensor  # [B, W] bool: does one?

    @property
    def values(self) -> Tensor:
        return self.guesses.gather(1, self.index)

    @property
    def laws(self) -> Categorical:
        if self.q is None:
            raise TypeError("this coupler needs the laws of the guesses before, and those were not recorded")
        return self.q.at(self.index)


class Coupler(Protocol):
    """Draws [B, W] guesses from `law` for output positions `position` [B, W] of the round that began at `start` [B].

    It returns them with the law to judge them by, None for point masses. `fresh` says that a guess depends on no guess of an
    earlier round but through its law.
    """

    @property
    def fresh(self) -> bool: ...

    def __call__(
        self, law: Categorical, before: Before | None, noise: Noise, position: Tensor, start: Tensor
    ) -> tuple[Tensor, Categorical | None]: ...


@dataclass(frozen=True)
class Independent:
    """`draw` as if there had been no round before: one of shapes' draws. With `sampled` it is SJD.

    With `drawn` and the coupled rule, guesses are drawn by the target's own noise, which couples them to what will be settled and so
    to one another. The laws are not recorded, as that rule needs none.
    """

    draw: Draw = sampled
    fresh = True

    def __call__(self, law, before, noise, position, start) -> tuple[Tensor, Any]:
        return self.draw(law, noise.guess(position, start))


@dataclass(frozen=True)
class Maximal:
    """Keep a guess with min(1, p / q), else draw from norm((p - q)+): no coupling keeps more often (SCD; SJD-PAC's continuation)."""

    fresh = False

    def __call__(self, law, before, noise, position, start):
        keys = noise.guess(position, start).branch(2)
        if before is None:
            return law.sample(keys[..., 1]), law
        old, q = before.values, before.laws
        keep = keys[..., 0].below(torch.where(before.there, ratio(law, q, old).clamp(max=1), 0))
        rest = law.residual(q, old).where(before.there, law)
        return torch.where(keep, old, rest.sample(keys[..., 1])), law


@dataclass(frozen=True)
class SharedGumbel:
    """Draw by argmax(log p + g) with the same numbers g(seed, position) in every round (SCD with shared Gumbel noise).

    Judging and replacing use other numbers, so g stays unknown to whatever is settled before it.
    """

    fresh = False

    def __call__(self, law, before, noise, position, start):
        return law.sample(noise.shared(position)), law


fresh, greedy, target_noise = Independent(sampled), Independent(best), Independent(drawn)
maximal, gumbel = Maximal(), SharedGumbel()
COUPLERS: dict[str, Coupler] = {
    "fresh": fresh,
    "maximal": maximal,
    "gumbel": gumbel,
    "target-noise": target_noise,
    "greedy": greedy,
}


def check_pairing(couple: Coupler, accept: Accept) -> None:
    """Raise ValueError unless guesses drawn by `couple` may be judged by `accept`.

    A coupled guess follows its new law given all that was settled before it, as long as it had no say in that. Block verification
    ends a round where the whole block, later guesses included, says so: what is settled then tells something about the guesses
    behind it, and those that are kept no longer follow the law on record. Fresh draws know nothing of it.
    """
    if isinstance(accept, Block) and not couple.fresh:
        raise ValueError(
            f"{type(couple).__name__} keeps guesses from round to round, which block verification makes inexact: "
            "accept with token, or couple with fresh"
        )
