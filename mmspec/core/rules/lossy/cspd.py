"""CSpD, the published rule for tokens of diffusion heads (Wang et al. 2024, arXiv 2411.11925), with its factor and without.

Draft and target run their chains on the same noise (`core.distributions.aligned`), and a drafted token x is judged by the Gaussians of the
last step: accepted with min(1, S p(x) / q(x)), else drawn anew from p with (1 - q / (S p))+ until one is kept. S is the product, over the
steps before the last, of the draft's standard deviations over the target's, d times each. Given the shared noise the token is a draw from
p, so S has no place in the rule; with it the output is

    min(q, S p) + (1 - m) / (S - m) (S p - q)+,   m the mass of min(q, S p),

which is p for S = 1 only: where both have equal variances, or where S is left out. Then it is the token rule over aligned distributions.
For
small S the remaining region is a far tail: as in the authors' code, drawing stops after a number of tries, here with p's own first draw.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, UNMETERED
from mmspec.core.rules.token import Token, judge_chain

TRIES = 100
"""Draws of p before the residual under a factor is given up, as in the authors' code."""


@dataclass(frozen=True)
class CSpD:
    """The rule for one factor S; distribution-exact for S = 1, else lossy by an amount that is not metered.

    Args:
        log_factor: log S.
    """

    log_factor: float = 0.0
    coupled, uses_q, trees = False, True, False

    @staticmethod
    def of(target: NoiseSchedule, drafter: NoiseSchedule, width: int, factor: bool = True) -> "CSpD":
        """Make the rule for two chains.

        Args:
            target: the target's schedule.
            drafter: the drafter's schedule.
            width: numbers in a token, d.
            factor: include S; False leaves it out, which is exact.

        Returns:
            The rule.

        Raises:
            ValueError: where S is not defined: unequal numbers of steps, or steps without noise.
        """
        target.check_token("CSpD")
        if not factor:
            return CSpD()
        if target.steps != drafter.steps:
            raise ValueError(
                f"CSpD's factor compares step with step, but target and draft take {target.steps} and {drafter.steps}: "
                "give both the same number of steps, or factor=False"
            )
        target.check_path("CSpD's factor")
        drafter.check_path("CSpD's factor")
        return CSpD(width * float((drafter.std[:-1].log() - target.std[:-1].log()).sum()))

    @property
    def exactness(self) -> str:
        """ "distribution-exact" for a factor of 1, else "lossy (unmetered)"."""
        return UNMETERED if self.log_factor else DISTRIBUTION_EXACT

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return judge_chain(self, draft, scored, noise)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (p.log_ratio(q, x) + self.log_factor).exp().clamp(max=1)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        if not self.log_factor or q is None:
            return Token().replacement(p, q, x)
        return Tail(p, q, self.log_factor)


@dataclass(frozen=True)
class Tail:
    """norm((S p - q)+) by at most `TRIES` draws of p, of which the first is kept where none passes. Columns that are not `active` draw from
    p.
    """

    p: Any  # the target's distributions [B, N]
    q: Any  # the draft's distributions [B, N]
    log_factor: float  # log S
    active: Tensor | None = None  # [B, N] bool; None: all

    def sample(self, keys: Keys) -> Tensor:
        plain = self.p.sample(keys)
        rows, columns = (torch.arange(size, device=keys.words.device) for size in keys.words.shape)
        index = rows[:, None, None].expand(-1, len(columns), TRIES), columns[:, None].expand(len(rows), -1, TRIES)
        p, q = self.p.picked(*index), self.q.picked(*index)
        streams = keys.branch(self.p.streams + 2)  # the plain draw took the first ones
        fresh = p.sample(streams[..., -2].branch(TRIES))
        tail = (1 - (-p.log_ratio(q, fresh) - self.log_factor).exp()).clamp(min=0)
        first = streams[..., -1].branch(TRIES).below(tail).long().argmax(-1)  # the earliest that is kept; the first of all where none is
        found = fresh[rows[:, None], columns, first]
        return found if self.active is None else torch.where(self.active[..., None], found, plain)

    def where(self, mask: Tensor, other: Any) -> "Tail":
        """Select this distribution where `mask` [B, N], elsewhere `other`, which must be p.

        Args:
            mask: bool [B, N].
            other: distributions [B, N].

        Returns:
            Distributions [B, N].

        Raises:
            ValueError: for any other distribution.
        """
        if other is not self.p:
            raise ValueError("what CSpD's factor leaves of a distribution mixes with that distribution only: leave the budget out")
        return replace(self, active=mask if self.active is None else self.active & mask)
