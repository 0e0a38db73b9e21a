"""Gaussians with one scale per coordinate or one for all, for steps whose values are vectors.

One value is a whole vector: its density is the product over the d coordinates. Where target and draft have equal scales (diffusion steps of
one schedule, tokens with a common output noise) everything is in closed form (`core.distributions.reflection`); where they do not, the
residual is drawn by thinning.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import reflection
from mmspec.core.distributions.thinning import Density, ResidualByThinning
from mmspec.core.noise import Keys


@dataclass(frozen=True)
class Gaussian(Density):
    """Distributions N(mean, scale^2).

    A scale of 0 makes a coordinate a point: a draft token is accepted only where the points of both distributions are equal.
    Log-probabilities are float64; draws have the mean's dtype.

    Args:
        mean: [..., d], floating point.
        scale: standard deviations [..., d], or [..., 1] for all d; other dimensions are expanded to the mean's.

    Raises:
        ValueError: for whole numbers, or shapes that do not match.
    """

    mean: Tensor
    scale: Tensor

    def __post_init__(self):
        if not self.mean.is_floating_point():
            raise ValueError(f"mean is {self.mean.dtype}: a Gaussian's values are vectors of floating-point numbers")
        if self.scale.dim() == 0 or self.scale.shape[-1] not in (1, self.mean.shape[-1]):
            raise ValueError(
                f"scale is {list(self.scale.shape)} for vectors of {self.mean.shape[-1]}: give one for every coordinate, or [..., 1]"
            )
        object.__setattr__(self, "scale", self.scale.expand(*self.mean.shape[:-1], self.scale.shape[-1]))

    @staticmethod
    def guided(cond: "Gaussian", uncond: "Gaussian", weight: float | Tensor) -> "Gaussian":
        """Combine two Gaussians by classifier-free guidance, norm(cond^(1 + w) uncond^(-w)).

        The precision is (1 + w) / s_c^2 - w / s_u^2. Where it is not positive the product cannot be normalised; there s_u is clamped up to
        s_c, which gives scale s_c and mean (1 + w) m_c - w m_u. Use the result for the target and the draft alike.

        Args:
            cond: conditional distributions [...].
            uncond: unconditional distributions [...].
            weight: w, a number or [..., 1].

        Returns:
            Distributions [...].
        """
        ratio = (cond.scale / uncond.scale) ** 2
        share = 1 + weight - weight * ratio  # the precision in units of 1 / s_c^2
        ratio, share = (torch.where(share > 0, number, 1) for number in (ratio, share))
        mean = ((1 + weight) * cond.mean - weight * ratio * uncond.mean) / share
        return Gaussian(mean, cond.scale / share.sqrt())

    @property
    def streams(self) -> int:
        return 0

    def log_prob(self, x: Tensor) -> Tensor:
        """Compute log-densities [...], float64. A point counts 0 where `x` equals it, minus infinity elsewhere."""
        scale, z = self.scale.double(), reflection.units(x, self.mean, self.scale)
        density = -0.5 * z**2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return torch.where(scale > 0, density, torch.where(z == 0, 0.0, -torch.inf)).sum(-1)

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        if not isinstance(q, Gaussian):
            return super().log_ratio(q, x)
        (own, theirs), gap = (reflection.units(x, distribution.mean, distribution.scale) for distribution in (self, q)), self.gap(q)
        scale, other = self.scale.double(), q.scale.double()
        plain = torch.where(scale == other, gap * (theirs - gap / 2), (other / scale).log() + 0.5 * (theirs - own) * (theirs + own))
        points = torch.where((scale == 0) & (own != 0), -torch.inf, torch.inf)  # one of the two is a point here: all or nothing
        points = torch.where((scale > 0) & (theirs == 0), -torch.inf, points)
        points = torch.where((scale == 0) & (other == 0) & (own == theirs), 0.0, points)
        return torch.where((scale > 0) & (other > 0), plain, points).sum(-1)

    def gap(self, q: "Gaussian") -> Tensor:
        """Compute the distance from the mean of `q` to this mean, in units of the scale.

        Args:
            q: other Gaussians [...].

        Returns:
            [..., d], float64.
        """
        return reflection.units(self.mean, q.mean, self.scale)

    def alike(self, q: Any) -> Tensor:
        """Compare scales.

        Args:
            q: any distributions [...].

        Returns:
            bool [...], true where `q` is a Gaussian of the same scales.
        """
        if not isinstance(q, Gaussian):
            return torch.zeros(self.mean.shape[:-1], dtype=torch.bool, device=self.mean.device)
        return (self.scale == q.scale).all(-1)

    def sample(self, keys: Keys) -> Tensor:
        return (self.mean + self.scale * keys.normal(self.mean.shape[-1])).to(self.mean.dtype)

    def mode(self) -> Tensor:
        return self.mean

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Any:
        """Make norm((weight * p - q)+): by reflection of `x`, in closed form where there is a weight, by thinning for unequal scales."""
        return self if q is None else GaussianLeft(self, q, x, weight)

    def mass(self, q: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Compute the integral of (weight * p - q)+.

        Args:
            q: Gaussians [...] of the same scales.
            x: values [..., d]; not read.
            weight: [...].

        Returns:
            [...], float64.

        Raises:
            ValueError: when scales differ; there is no closed form.
        """
        if not bool(self.alike(q).all()):
            raise ValueError("the scales of target and draft differ, and block verification needs equal ones: take the token rule")
        return reflection.mass(weight, reflection.distance(self.gap(q)))

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """Compute the distance to `q` where scales are equal; (1 - p(x) / q(x))+ elsewhere, unbiased for `x` drawn from `q`."""
        estimate = super().tv(q, x)
        if not isinstance(q, Gaussian):
            return estimate
        return torch.where(self.alike(q), torch.special.erf(reflection.distance(self.gap(q)) * 8**-0.5), estimate)

    def fresh(self, q: "Gaussian", weight: Tensor, keys: Keys) -> Tensor:
        """Draw from norm((weight * p - q)+) without using the rejected value.

        Args:
            q: Gaussians [...] of the same scales.
            weight: [...].
            keys: streams [...].

        Returns:
            Values [..., d].
        """
        scale, gap = self.scale.double(), self.gap(q)
        z = reflection.half_lined(weight, gap, keys.branch(1)[..., 0].uniform(), keys.normal(self.mean.shape[-1])) - gap
        return (self.mean + torch.where(scale > 0, z * scale, 0)).to(self.mean.dtype)

    def mirrored(self, q: "Gaussian", x: Tensor) -> Tensor:
        """Reflect rejected values to where p has more density than `q`.

        Args:
            q: Gaussians [...] of the same scales.
            x: values [..., d] drawn from `q` and rejected with probability 1 - min(1, p/q).

        Returns:
            Values [..., d].
        """
        scale = self.scale.double()
        z = reflection.reflected(reflection.units(x, q.mean, q.scale), self.gap(q))
        return (self.mean + torch.where(scale > 0, z * scale, 0)).to(self.mean.dtype)

    def tempered(self, temperature: float) -> "Gaussian":
        """Scale the standard deviations.

        Args:
            temperature: factor on every scale.

        Returns:
            Distributions [...].
        """
        return replace(self, scale=self.scale * temperature)

    def picked(self, rows: Tensor, columns: Tensor) -> "Gaussian":
        return Gaussian(self.mean[rows, columns], self.scale[rows, columns])

    def last(self, count: int) -> "Gaussian":
        first = self.mean.shape[1] - count
        return Gaussian(self.mean[:, first:], self.scale[:, first:])

    def where(self, mask: Tensor, other: "Gaussian") -> "Gaussian":
        return Gaussian(*(torch.where(mask[..., None], one, two) for one, two in self._beside(other)))

    def cat(self, other: "Gaussian") -> "Gaussian":
        return Gaussian(*(torch.cat([one, two], 1) for one, two in self._beside(other)))

    def _beside(self, other: "Gaussian") -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Means and scales of both, scales equally wide."""
        wide = max(self.scale.shape[-1], other.scale.shape[-1])
        own, theirs = (distribution.scale.expand(*distribution.scale.shape[:-1], wide) for distribution in (self, other))
        return (self.mean, other.mean), (own, theirs)


@dataclass(frozen=True)
class GaussianLeft(ResidualByThinning):
    """norm((w P - Q)+) for a Gaussian P, in closed form where Q has equal scales.

    Without a weight the residual's value is `x` itself, reflected; this is right only where x ~ Q was rejected with 1 - min(1, P/Q). With a
    weight a new value is drawn by the residual's keys.
    """

    def sample(self, keys: Keys) -> Tensor:
        p, q = self.p, self.q
        alike = p.alike(q)
        active = torch.ones_like(alike) if self.active is None else self.active
        drawn = ResidualByThinning(p, q, self.x, self.weight, active & ~alike).sample(keys)
        if not isinstance(q, Gaussian):
            return drawn
        closed = p.mirrored(q, self.x) if self.weight is None else p.fresh(q, self.weight, keys)
        return torch.where((active & alike)[..., None], closed, drawn)
