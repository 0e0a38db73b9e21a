"""Noise-aligned coupling: exact speculation for black-box sampler heads (Wang et al. 2024, arXiv 2411.11925, made exact).

A token of such a head is f(z, xi) + sigma_out e: the sampler's output for its conditioning z and noise xi (an ancestral chain, an ODE or a
single step), plus one final Gaussian noise that is a part of the model. Here xi is a function of the seed and the output position alone.
Given all xi, target and drafter are ordinary autoregressive models whose tokens are Gaussians of equal scale. Any rule that is exact for
those (token by reflection, block, D-GRS) is exact for every xi, and so overall. Since both samplers get the same noise, their means are
close; a draft token is accepted with mean probability 2 Phi(-|f_p - f_q| / (2 sigma_out)).

The published rule multiplies the ratio by a factor of the two chains' variances, which makes it inexact: see `core.rules.lossy.cspd`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Keys


class Sampler(Protocol):
    """A deterministic head: from conditioning and standard normal noise to the mean of a token."""

    @property
    def rows(self) -> int:
        """Vectors of noise needed for one token."""
        ...

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        """Run the sampler.

        Args:
            z: conditioning [..., D].
            noise: standard normal [..., rows, d].

        Returns:
            Means of the tokens [..., d].
        """
        ...


@dataclass(frozen=True)
class ChainSampler:
    """A diffusion head's chain up to the mean of its last step, given x_T and the noise of every step but the last.

    Args:
        denoiser: the head and its chain.
    """

    denoiser: Denoiser

    @property
    def rows(self) -> int:
        return self.denoiser.steps

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        last = torch.zeros_like(noise[..., :1, :])
        return self.denoiser.walk(z, torch.cat([noise, last], -2))[1][..., -1, :]


def aligned(z: Tensor, sampler: Sampler, sigma_out: float, keys: Keys, width: int) -> Gaussian:
    """Make the distributions of tokens whose samplers share their noise.

    Args:
        z: conditioning [B, N, D].
        sampler: the head.
        sigma_out: standard deviation of the final noise. With 0 the distributions are points, on which target and drafter never agree.
        keys: streams [B, N] of `Noise.aligned`.
        width: numbers in a token, d.

    Returns:
        Gaussians [B, N] of equal scale.
    """
    noise = keys.branch(sampler.rows).normal(width).to(z.dtype)
    mean = sampler(z, noise)
    return Gaussian(mean, torch.full_like(mean[..., :1], sigma_out))
