"""Two Gaussians of equal scales: everything a rule asks of them is a matter of one coordinate.

In units of the scale, along e = (m_p - m_q) / |m_p - m_q|, the draft's coordinate s is N(0, 1) and the target's N(gap, 1); across e the
two distributions are the same. So, with Phi the normal distribution function (De Bortoli et al. 2025; Soen et al. 2026 for the weights):

    log p/q = gap (s - gap/2)                       accepted in the mean: 2 Phi(-gap/2), which is 1 - TV
    after a rejection: reflect s to gap - s         a measure-preserving map from (q - p)+ onto (p - q)+
    integral of (w p - q)+ = w Phi(-t) - Phi(-t - gap) at t = -gap/2 - log(w)/gap, all of it where s > gap/2 - log(w)/gap

All in float64, and never a density: only ratios. Coordinates of scale 0 are points: distributions that differ in one share nothing.
"""

import torch
from torch import Tensor

_HALVINGS = 60  # of an interval of some 14 scales: to the last bit
_FAR = 14.0  # scales behind which nothing of the half-line distribution is left that float64 could tell


def units(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """From `mean` to `x` [..., d] in scales [..., d] or [..., 1]: 0 where they are equal, whatever the scale."""
    away = x.double() - mean.double()
    return torch.where(away == 0, 0, away / scale.double())


def distance(gap: Tensor) -> Tensor:
    """|gap| of `gap` [..., d]: [...]. Infinite where points differ."""
    return torch.linalg.vector_norm(gap, dim=-1)


def agreement(gap: Tensor) -> Tensor:
    """2 Phi(-gap/2), what is accepted in the mean at distance `gap` [...]."""
    return torch.special.erfc(gap * 8**-0.5)


def direction(gap: Tensor) -> Tensor:
    """e [..., d] of `gap` [..., d]; 0 where there is none, or where only points differ: what is across it is kept as it is."""
    length = distance(gap)[..., None]
    return torch.where((length > 0) & length.isfinite(), gap / length.clamp_min(torch.finfo(gap.dtype).tiny), 0)


def reflected(z: Tensor, gap: Tensor) -> Tensor:
    """(I - 2 e e') z: what the draft's numbers `z` [..., d] become around the target's mean after a rejection."""
    e = direction(gap)
    return z - 2 * (e * z).sum(-1, keepdim=True) * e


def edge(weight: Tensor, gap: Tensor) -> Tensor:
    """Where w p > q begins: gap/2 - log(w)/gap for `weight` in [0, 1] and `gap` [...]. Infinite for distributions that agree."""
    return torch.where(gap > 0, gap / 2 - weight.log() / gap, torch.inf)


def below(s: Tensor) -> Tensor:
    """Phi(s), right to the last digits in the lower tail, too, where `torch.special.ndtr` keeps 1e-16 of 1."""
    return 0.5 * torch.special.erfc(-s * 0.5**0.5)


def beyond(weight: Tensor, gap: Tensor, s: Tensor) -> Tensor:
    """The integral of w p - q from `s` on."""
    return weight * below(gap - s) - below(-s)


def mass(weight: Tensor, gap: Tensor) -> Tensor:
    """The integral of (w p - q)+, [...]."""
    weight = weight.double()
    found = beyond(weight, gap, edge(weight, gap)).clamp(min=0)
    return torch.where(gap.isinf(), weight, found)


def half_line(weight: Tensor, gap: Tensor, uniform: Tensor) -> Tensor:
    """The coordinate s [...] of norm((w p - q)+) by `uniform` in (0, 1), [...]: its distribution function inverted by bisection."""
    weight = weight.double()
    low = edge(weight, gap)
    high, level = torch.maximum(low, gap) + _FAR, uniform * mass(weight, gap)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        more = beyond(weight, gap, middle) > level
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return high


def half_lined(weight: Tensor, gap: Tensor, uniform: Tensor, z: Tensor) -> Tensor:
    """Fresh numbers of norm((w p - q)+) around the draft's mean, [..., d]: along e by `uniform` [...], across it those of `z` [..., d].

    Where the distributions agree nothing is left of p, and where they share nothing all of it: both are given as p around its own mean, `z
        + gap`.
    """
    e, length = direction(gap), distance(gap)
    along = half_line(weight, length, uniform)[..., None] - (e * z).sum(-1, keepdim=True)
    plain = ((length > 0) & length.isfinite())[..., None]
    return torch.where(plain, z + along * e, z + gap)
