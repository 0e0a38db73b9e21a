"""Diffusion networks in closed form: the optimal network for data from a mixture of isotropic Gaussians, whose distribution is known."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

Levels = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Timesteps [M] -> signal and noise levels of a state, [M] each."""


def variance_preserving(scheduler: Any) -> Levels:
    """Return the signal and noise levels of diffusers' DDPM and DDIM schedulers."""
    table = scheduler.alphas_cumprod.double()
    return lambda timesteps: (table[timesteps.long()].sqrt(), (1 - table[timesteps.long()]).sqrt())


def interpolating(timesteps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the levels of flow matching; timesteps are 1000 times the noise level."""
    noise = timesteps.double() / 1000
    return 1 - noise, noise


@dataclass(frozen=True)
class GaussianMixtureData:
    """Data from a mixture of isotropic Gaussians with equal weights.

    Args:
        means: float [K, D].
        deviations: float [K].
    """

    means: Tensor
    deviations: Tensor

    @staticmethod
    def random(size: int, components: int = 5, seed: int = 0) -> "GaussianMixtureData":
        """Return a mixture with means in [-2, 2] a coordinate and deviations in [0.1, 0.25]."""
        keys = torch.Generator().manual_seed(seed)
        means = torch.rand(components, size, generator=keys, dtype=torch.float64) * 4 - 2
        return GaussianMixtureData(means, torch.rand(components, generator=keys, dtype=torch.float64) * 0.15 + 0.1)

    def blurred(self, amount: float, seed: int = 1) -> "GaussianMixtureData":
        """Return this mixture with errors in its means of `amount` deviations a coordinate, for a drafter."""
        off = torch.randn(self.means.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return GaussianMixtureData(self.means + amount * self.deviations[:, None] * off, self.deviations)

    def expected(self, x: Tensor, signal: Tensor, noise: Tensor) -> Tensor:
        """Return the mean of the data [M, D] given states `x` [M, D] with levels `signal` [M] and `noise` [M]."""
        signal, variance = signal[:, None], (signal[:, None] * self.deviations) ** 2 + noise[:, None] ** 2  # [M, K]
        away = x[:, None] - signal[..., None] * self.means  # [M, K, D]
        scores = -0.5 * away.square().sum(-1) / variance - 0.5 * x.shape[-1] * variance.log()
        pull = (signal * self.deviations**2 / variance)[..., None]
        return (scores.softmax(-1)[..., None] * (self.means + pull * away)).sum(1)


class MixtureNet(nn.Module):
    """The optimal network for `mixture`, called like a UNet2DModel. It predicts "epsilon", "sample", "v_prediction" or a "flow"."""

    def __init__(self, mixture: GaussianMixtureData, levels: Levels, predicts: str = "epsilon", shape: tuple[int, int, int] | None = None):
        super().__init__()
        self.mixture, self.levels, self.predicts = mixture, levels, predicts
        channels, height, width = shape or (mixture.means.shape[1], 1, 1)
        self.config = SimpleNamespace(in_channels=channels, out_channels=channels, sample_size=(height, width))
        self.dtype, self.device = torch.float64, torch.device("cpu")

    def forward(self, sample: Tensor, timestep: Tensor) -> SimpleNamespace:
        x = sample.flatten(1).double()
        signal, noise = self.levels(timestep.expand(len(x)))
        data = self.mixture.expected(x, signal, noise)
        signal, noise = signal[:, None], noise[:, None]
        blend = (x - signal * data) / noise  # the noise in the state
        out = {"epsilon": blend, "sample": data, "v_prediction": signal * blend - noise * data, "flow": blend - data}[self.predicts]
        return SimpleNamespace(sample=out.view_as(sample).to(sample.dtype))
