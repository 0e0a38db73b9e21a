"""Closed forms for two Gaussians of equal scales.

In units of the scale, along e = (m_p - m_q) / |m_p - m_q|, the draft's coordinate s is N(0, 1) and the target's N(gap, 1); across e the
two distributions are equal. With Phi the normal distribution function (De Bortoli et al. 2025; Soen et al. 2026 for the weights):

    log p/q = gap (s - gap/2)                       mean acceptance 2 Phi(-gap/2) = 1 - TV
    after a rejection: reflect s to gap - s         a measure-preserving map from (q - p)+ onto (p - q)+
    integral of (w p - q)+ = w Phi(-t) - Phi(-t - gap) at t = -gap/2 - log(w)/gap, located where s > gap/2 - log(w)/gap

All in float64, and only ratios of densities. Coordinates of scale 0 are points: distributions that differ in one share no mass.
"""

import torch
from torch import Tensor

_HALVINGS = 60  # of an interval of some 14 scales: to the last bit
_FAR = 14.0  # scales behind which nothing of the half-line distribution is left that float64 could tell


def units(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Express `x` relative to `mean` in units of `scale`.

    Args:
        x: [..., d].
        mean: [..., d].
        scale: [..., d] or [..., 1].

    Returns:
        [..., d], float64; 0 where they are equal, whatever the scale.
    """
    away = x.double() - mean.double()
    return torch.where(away == 0, 0, away / scale.double())


def distance(gap: Tensor) -> Tensor:
    """Compute the length of a gap.

    Args:
        gap: [..., d].

    Returns:
        [...]; infinite where points differ.
    """
    return torch.linalg.vector_norm(gap, dim=-1)


def agreement(gap: Tensor) -> Tensor:
    """Compute the mean acceptance 2 Phi(-gap/2).

    Args:
        gap: distance [...].

    Returns:
        [...].
    """
    return torch.special.erfc(gap * 8**-0.5)


def direction(gap: Tensor) -> Tensor:
    """Compute the unit vector e of a gap.

    Args:
        gap: [..., d].

    Returns:
        [..., d]; 0 where there is no gap or it is infinite.
    """
    length = distance(gap)[..., None]
    return torch.where((length > 0) & length.isfinite(), gap / length.clamp_min(torch.finfo(gap.dtype).tiny), 0)


def reflected(z: Tensor, gap: Tensor) -> Tensor:
    """Reflect rejected values: (I - 2 e e') z.

    Args:
        z: the draft's numbers around its mean [..., d], in units of the scale.
        gap: [..., d].

    Returns:
        Numbers around the target's mean [..., d].
    """
    e = direction(gap)
    return z - 2 * (e * z).sum(-1, keepdim=True) * e


def edge(weight: Tensor, gap: Tensor) -> Tensor:
    """Compute where w p > q begins, gap/2 - log(w)/gap.

    Args:
        weight: w in [0, 1], [...].
        gap: distance [...].

    Returns:
        [...]; infinite for equal distributions.
    """
    return torch.where(gap > 0, gap / 2 - weight.log() / gap, torch.inf)


def below(s: Tensor) -> Tensor:
    """Compute Phi(s), accurate in the lower tail, too, where `torch.special.ndtr` is accurate to 1e-16 of 1 only.

    Args:
        s: [...].

    Returns:
        [...].
    """
    return 0.5 * torch.special.erfc(-s * 0.5**0.5)


def beyond(weight: Tensor, gap: Tensor, s: Tensor) -> Tensor:
    """Compute the integral of w p - q from `s` on.

    Args:
        weight: w [...].
        gap: distance [...].
        s: [...].

    Returns:
        [...].
    """
    return weight * below(gap - s) - below(-s)


def mass(weight: Tensor, gap: Tensor) -> Tensor:
    """Compute the integral of (w p - q)+.

    Args:
        weight: w in [0, 1], [...].
        gap: distance [...].

    Returns:
        [...], float64.
    """
    weight = weight.double()
    found = beyond(weight, gap, edge(weight, gap)).clamp(min=0)
    return torch.where(gap.isinf(), weight, found)


def half_line(weight: Tensor, gap: Tensor, uniform: Tensor) -> Tensor:
    """Draw the coordinate s of norm((w p - q)+), by bisection of its distribution function.

    Args:
        weight: w in [0, 1], [...].
        gap: distance [...].
        uniform: in (0, 1), [...].

    Returns:
        [...], float64.
    """
    weight = weight.double()
    low = edge(weight, gap)
    high, level = torch.maximum(low, gap) + _FAR, uniform * mass(weight, gap)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        more = beyond(weight, gap, middle) > level
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return high


def half_lined(weight: Tensor, gap: Tensor, uniform: Tensor, z: Tensor) -> Tensor:
    """Draw numbers of norm((w p - q)+) around the draft's mean.

    Where the distributions are equal nothing is left of p, and where they share no mass all of it is: both give `z + gap`, a draw of p.

    Args:
        weight: w in [0, 1], [...].
        gap: [..., d].
        uniform: in (0, 1), [...]; used along e.
        z: standard normal [..., d]; used across e.

    Returns:
        [..., d], float64.
    """
    e, length = direction(gap), distance(gap)
    along = half_line(weight, length, uniform)[..., None] - (e * z).sum(-1, keepdim=True)
    plain = ((length > 0) & length.isfinite())[..., None]
    return torch.where(plain, z + along * e, z + gap)
