"""Noise-aligned coupling: exact speculation for heads that are black boxes (Wang et al. 2024, arXiv 2411.11925, made exact).

A token of such a head is f(z, xi) + sigma_out e: what a sampler makes of its state z and its noise xi, whatever the sampler (an ancestral
chain, an ODE, a single step), and one last Gaussian noise, which is a part of what the model is. Here xi is a function of the seed and
the output position alone. Given all xi the model is an ordinary autoregressive one whose tokens are Gaussians with equal scales, target
and drafter alike; any rule that is exact for those (token by reflection, block, D-GRS) is exact for every xi, and so on the whole. As
both samplers are fed the same noise, their means are close; a draft token is accepted with 2 Phi(-|f_p - f_q| / (2 sigma_out)) in the mean.

The published rule multiplies the ratio by a factor of the two chains' variances, which is what makes it inexact: `core.rules.lossy.cspd`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Keys


class Sampler(Protocol):
    """A head, from what it is told and standard normal noise to the mean of a token. Deterministic."""

    @property
    def rows(self) -> int:
        """Vectors of noise it wants for a token."""
        ...

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        """Means [..., d] of tokens, told `z` [..., D] and fed `noise` [..., rows, d]."""
        ...


@dataclass(frozen=True)
class ChainSampler:
    """A diffusion head's chain up to the mean of its last step: fed x_T and the noise of every step but that."""

    denoiser: Denoiser

    @property
    def rows(self) -> int:
        return self.denoiser.steps

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        last = torch.zeros_like(noise[..., :1, :])
        return self.denoiser.walk(z, torch.cat([noise, last], -2))[1][..., -1, :]


def aligned(z: Tensor, sampler: Sampler, sigma_out: float, keys: Keys, width: int) -> Gaussian:
    """The distributions [B, N] of tokens of `width` numbers, told `z` [B, N, D], with the noise that `keys` [B, N] give (`Noise.aligned`).

    With `sigma_out` 0 they are points, which can be drawn, but on which target and drafter never agree.
    """
    noise = keys.branch(sampler.rows).normal(width).to(z.dtype)
    mean = sampler(z, noise)
    return Gaussian(mean, torch.full_like(mean[..., :1], sigma_out))
