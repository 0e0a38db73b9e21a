"""Mixtures of Gaussians or Student's t, for heads with an explicit density (GIVT, Tschannen et al. 2024, arXiv 2312.02116).

A vector's coordinates form C independent groups, each a mixture of K components with one scale per coordinate. `joint` is one group of all
d coordinates, `per_channel` d groups of one. A value is the whole vector either way, and its density the product over the groups; judged
channel by channel, it would be accepted only if every channel was.

Residuals are drawn by thinning, which runs no network: one draw in the mean for every draft token judged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions.thinning import Density, spread
from mmspec.core.noise import Keys


@dataclass(frozen=True)
class Mixture(Density):
    """Distributions of vectors of C x E numbers.

    Log-probabilities are float64; draws have the means' dtype.

    Args:
        logits: unnormalised log-weights [..., C, K].
        mean: [..., C, K, E].
        scale: [..., C, K, E], positive: a component that is a point has no density.
        df: degrees of freedom of Student's t [..., C, K, E]; None for Gaussians.

    Raises:
        ValueError: for shapes that do not match.
    """

    logits: Tensor
    mean: Tensor
    scale: Tensor
    df: Tensor | None = None

    def __post_init__(self):
        shapes = [list(part.shape) for part in (self.mean, self.scale, self.df) if part is not None]
        if self.mean.dim() < 3 or list(self.logits.shape) != shapes[0][:-1] or any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                f"logits {list(self.logits.shape)}, means and scales {shapes} do not fit: give logits [..., C, K] and the others "
                "[..., C, K, E], or use Mixture.joint, Mixture.per_channel or Mixture.student"
            )

    @staticmethod
    def joint(logits: Tensor, mean: Tensor, scale: Tensor) -> "Mixture":
        """Make mixtures of K diagonal Gaussians over whole vectors.

        Args:
            logits: log-weights [..., K].
            mean: [..., K, d].
            scale: [..., K, d], or a shape that expands to it.

        Returns:
            Distributions [...].
        """
        return Mixture(logits[..., None, :], mean[..., None, :, :], scale.expand_as(mean)[..., None, :, :])

    @staticmethod
    def per_channel(logits: Tensor, mean: Tensor, scale: Tensor) -> "Mixture":
        """Make a mixture of K Gaussians for every coordinate.

        Args:
            logits: log-weights [..., d, K].
            mean: [..., d, K].
            scale: [..., d, K], or a shape that expands to it.

        Returns:
            Distributions [...].
        """
        return Mixture(logits, mean[..., None], scale.expand_as(mean)[..., None])

    @staticmethod
    def student(mean: Tensor, scale: Tensor, df: Tensor) -> "Mixture":
        """Make independent Student's t, one for every coordinate, as transformers' time series models with
        `distribution_output="student_t"` have.

        Args:
            mean: [..., d].
            scale: [..., d] or [..., 1].
            df: degrees of freedom [..., d] or [..., 1].

        Returns:
            Distributions [...].
        """
        scale, df = (part.expand_as(mean)[..., None, None] for part in (scale, df))
        return Mixture(torch.zeros_like(mean)[..., None], mean[..., None, None], scale, df)

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.mean.shape[-3] * self.mean.shape[-1]

    @property
    def streams(self) -> int:
        return self.mean.shape[-3] + 1  # one for every group's component, one for the numbers

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of `x` [..., C * E]: [...]."""
        spots = x.double().unflatten(-1, (self.mean.shape[-3], self.mean.shape[-1]))[..., None, :]
        scale = self.scale.double()
        z = (spots - self.mean.double()) / scale
        parts = (_normal(z) if self.df is None else _student(z, self.df.double())) - scale.log()
        return (parts.sum(-1) + self.logits.double().log_softmax(-1)).logsumexp(-1).sum(-1)

    def sample(self, keys: Keys) -> Tensor:
        """Draw vectors [..., C * E]: the component of group c by stream c, the numbers by the last stream."""
        streams = keys.branch(self.streams)
        which = streams[..., :-1].choose(self.logits)[..., None, None].expand(*self.mean.shape[:-2], 1, self.mean.shape[-1])
        mean, scale = (part.gather(-2, which).flatten(-3) for part in (self.mean, self.scale))
        if self.df is None:
            numbers = streams[..., -1].normal(self.width)
        else:
            numbers = _student_numbers(streams[..., -1], self.df.gather(-2, which).flatten(-3).double())
        return (mean + scale * numbers).to(self.mean.dtype)

    def mode(self) -> Tensor:
        """Return the mean of every group's heaviest component; a mixture's true mode has no closed form."""
        which = self.logits.argmax(-1, keepdim=True)[..., None]
        return self.mean.gather(-2, which.expand(*which.shape[:-1], self.mean.shape[-1])).flatten(-3)

    def tempered(self, temperature: float, weights: float = 1.0) -> "Mixture":
        """Scale the components and their log-weights, as GIVT does; rules are exact for the result if the drafter's are tempered likewise.

        Args:
            temperature: factor on every scale, above 0.
            weights: factor on the log-weights.

        Returns:
            Distributions [...].

        Raises:
            ValueError: for a temperature that leaves no density.
        """
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, but a mixture of points has no density: give a temperature above 0")
        return replace(self, scale=self.scale * temperature, logits=self.logits * weights)

    def picked(self, rows: Tensor, columns: Tensor) -> "Mixture":
        return self._each(lambda part: part[rows, columns])

    def last(self, count: int) -> "Mixture":
        return self._each(lambda part: part[:, part.shape[1] - count :])

    def where(self, mask: Tensor, other: "Mixture") -> "Mixture":
        return self._each(lambda one, two: torch.where(spread(mask, one), one, two), other)

    def cat(self, other: "Mixture") -> "Mixture":
        return self._each(lambda one, two: torch.cat([one, two], 1), other)

    def _each(self, change: Callable[..., Tensor], *others: "Mixture") -> "Mixture":
        """Every tensor of these distributions, beside those of `others`, changed."""
        sides = [(distribution.logits, distribution.mean, distribution.scale) for distribution in (self, *others)]
        tails = [distribution.df for distribution in (self, *others)]
        logits, mean, scale = (change(*parts) for parts in zip(*sides, strict=True))
        return Mixture(logits, mean, scale, None if self.df is None else change(*tails))


def _normal(z: Tensor) -> Tensor:
    return -0.5 * z**2 - 0.5 * math.log(2 * math.pi)


def _student(z: Tensor, df: Tensor) -> Tensor:
    return torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log() - (df + 1) / 2 * torch.log1p(z**2 / df)


def _student_numbers(keys: Keys, df: Tensor) -> Tensor:
    """Student's t of `df` [..., d] by two uniforms each (Bailey 1994): sqrt(df (u^(-2/df) - 1)) cos(2 pi v), [..., d]."""
    u, v = keys.branch(2 * df.shape[-1]).uniform().unflatten(-1, (2, df.shape[-1])).unbind(-2)
    return (df * torch.expm1(-2 / df * u.log())).sqrt() * (2 * math.pi * v).cos()
