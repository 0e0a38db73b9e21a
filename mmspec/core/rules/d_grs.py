"""D-GRS: several drafts of one Gaussian step, judged together (Bullo et al. 2026, arXiv 2609.17691).

K siblings drawn independently from q = N(m_q, scale^2) are judged in the order drawn against p = N(m_p, scale^2). Only their coordinate s
along m_p - m_q matters (`core.distributions.reflection`), with rho(s) = p/q there. Begin with l = 0 and g = 1; take a sibling with
probability min(1, (rho - l)+ / g); after a rejection l becomes l + g, and g the remaining mass of (p - l q)+. After the last rejection the
value is drawn from norm((p - l q)+), a half-line distribution in s. One of K siblings is taken with probability 1 - g_{K+1}, which is
2 Phi(-gap/2) for one and more for several.

It is a sibling rule of `siblings.Walk`, for trees whose siblings are independent draws from one Gaussian, such as combs and static trees
that draw with replacement.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import reflection
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Keys
from mmspec.core.rules.siblings import Walk


@dataclass(frozen=True)
class Claimed:
    """The residual norm((p - l q)+) for Gaussians of equal scales; p itself where l is 0.

    Args:
        p: the target's distributions [B, 1].
        q: the draft's distributions [B, 1].
        claim: l [B, 1], float64.
    """

    p: Gaussian
    q: Gaussian
    claim: Tensor

    @staticmethod
    def of(p: Any, q: Any, count: Tensor) -> "Claimed":
        """Make the residual before any sibling was tried; a residual of earlier siblings is returned as it is.

        Args:
            p: the target's distributions [B, 1], or their residual.
            q: the draft's distributions [B, 1].
            count: [B, 1] siblings of each row.

        Returns:
            The residual.

        Raises:
            ValueError: for other distributions than Gaussians of equal scales.
        """
        if isinstance(p, Claimed):
            return p
        if not (isinstance(p, Gaussian) and isinstance(q, Gaussian) and bool((p.alike(q) | (count == 0)).all())):
            raise ValueError("D-GRS judges siblings drawn from Gaussians with the target's own scales: draft with those, or take token")
        return Claimed(p, q, torch.zeros(p.mean.shape[:-1], dtype=torch.float64, device=p.mean.device))

    @property
    def gap(self) -> Tensor:
        """Distance of the means in units of the scale, [B, 1]."""
        return reflection.distance(self.p.gap(self.q))

    @property
    def mass(self) -> Tensor:
        """g, the integral of (p - l q)+, [B, 1]."""
        claim = self.claim.clamp(min=1)
        return torch.where(self.claim > 0, claim * reflection.mass(1 / claim, self.gap), 1)

    def taken(self, x: Tensor) -> Tensor:
        """Compute the probability of taking a sibling.

        Args:
            x: siblings [B, 1, d].

        Returns:
            [B, 1].
        """
        over = (self.p.log_ratio(self.q, x).exp() - self.claim).clamp(min=0)
        mass = self.mass
        return torch.where(mass > 0, over / mass, 1).clamp(max=1)

    def refused(self) -> "Claimed":
        """Make the residual after a rejection.

        Returns:
            The residual with l + g in place of l.
        """
        return replace(self, claim=self.claim + self.mass)

    def where(self, mask: Tensor, other: Any) -> "Claimed":
        other = other if isinstance(other, Claimed) else Claimed(other, self.q, torch.zeros_like(self.claim))
        return Claimed(self.p.where(mask, other.p), self.q.where(mask, other.q), torch.where(mask, self.claim, other.claim))

    def sample(self, keys: Keys) -> Tensor:
        rest = self.p.fresh(self.q, 1 / self.claim.clamp(min=1), keys)
        return torch.where((self.claim > 0)[..., None], rest, self.p.sample(keys))


@dataclass(frozen=True)
class DGRS:
    """The sibling rule for siblings drawn independently from one Gaussian. p, q: [B, 1]."""

    uses_q, points, tables = True, False, False

    def take_prob(self, p: Any, q: Any, x: Tensor, index: int, count: Tensor) -> Tensor:
        return Claimed.of(p, q, count).taken(x)

    def refuse(self, p: Any, q: Any, x: Tensor, index: int, count: Tensor) -> tuple[Any, Any]:
        return Claimed.of(p, q, count).refused(), q

    def refusal(self, p: Any, q: Any, x: Tensor, index: int, count: Tensor) -> Tensor:
        now = Claimed.of(p, q, count)
        return torch.where(now.mass > 0, now.refused().mass / now.mass, 0)


def dgrs() -> Walk:
    """Make the D-GRS rule for trees.

    Returns:
        A rule for `accept=`.
    """
    return Walk(DGRS())
