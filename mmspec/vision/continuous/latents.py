"""Continuous tokens in the engine: distributions from states of the backbone.

A `ContinuousAR` with a mixture head gives a density. One with a diffusion head gives a chain: either the chain is the value
(`core.distributions.denoising_path`), or its noise is given and the rest is a Gaussian (`core.distributions.aligned`).

T steps of a head's chain, d numbers a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.chains.denoiser import SpeculativeDenoiser
from mmspec.core.chains.linear import LinearDraft
from mmspec.core.distributions.aligned import ChainSampler, aligned
from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.mixture import Mixture
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.distributions.protocol import Distribution
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.models.families.base import additive_mask
from mmspec.models.guidance import Guided
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.utils.strict import strict
from mmspec.vision.continuous.ar import scheduler
from mmspec.vision.continuous.flow_schedule import FlowSchedule
from mmspec.vision.continuous.heads import counted_head


@strict
@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a diffusion head. None takes the value of the model's config.

    Args:
        steps: steps of the chain.
        sigma_out: noise on every token, in units of a token's standard deviation.
        schedule: a diffusers scheduler; by default the one the head was trained with. NextStep-1's head takes a `FlowSchedule` instead.
        eta: DDIM's eta.
        every: the head is run at every so many states of the chain (`Denoiser`).
    """

    steps: int | None = None
    sigma_out: float | None = None
    schedule: Any = None
    eta: float | None = None
    every: int | None = None

    def over(self, other: "Sampling") -> "Sampling":
        """Fill in missing settings.

        Args:
            other: where missing settings are taken from.

        Returns:
            These settings, with missing ones from `other`.
        """
        pairs = ((getattr(self, part.name), getattr(other, part.name)) for part in fields(self))
        return Sampling(*(theirs if own is None else own for own, theirs in pairs))

    def filled(self, config: Any) -> "Sampling":
        """Fill in missing settings from a model's config.

        Args:
            config: the config of a `ContinuousAR`.

        Returns:
            Settings without a None.
        """
        shift = getattr(config, "timesteps_shift", None)  # of a flow-matching head
        return self.over(
            Sampling(config.head_steps, config.sigma_out, scheduler() if shift is None else FlowSchedule(shift), 1.0, config.every)
        )

    def noise_schedule(self, temperature: float) -> NoiseSchedule:
        """Compute the transitions of the chain.

        Args:
            temperature: factor on the noise of the chain's steps.

        Returns:
            The noise schedule.

        Raises:
            ValueError: for missing settings, and for schedules whose steps are not Gaussian.
        """
        steps, sigma_out, eta = self.steps, self.sigma_out, self.eta
        if steps is None or sigma_out is None or eta is None:
            raise ValueError("this sampling has missing settings: complete it by Sampling.filled(config)")
        return _kernel(self.schedule, steps, sigma_out, eta, temperature)


@lru_cache(maxsize=64)
def _kernel(schedule: Any, steps: int, sigma_out: float, eta: float, temperature: float) -> NoiseSchedule:
    """Return the noise schedule, cached because schedulers are evaluated step by step."""
    if isinstance(schedule, FlowSchedule):
        if eta != 1:
            raise ValueError(f"eta is {eta}, but a FlowSchedule has none: leave it out")
        return schedule.noise_schedule(steps, sigma_out, temperature)
    return NoiseSchedule.of(schedule, steps, sigma_out, eta=eta, temperature=temperature)


@dataclass(frozen=True)
class ChainDrafts:
    """Speculation inside the chains of a diffusion head.

    Args:
        draft_steps: as in `SpeculativeDenoiser.of`.
        linear: the linear model by which states are drafted, or None.
    """

    draft_steps: int | str | None = None
    linear: LinearDraft | None = None


@dataclass(frozen=True)
class LatentRequest:
    """Settings of a generation for every model in it: form of the values, noise, temperature, guidance, and speculation inside chains."""

    form: str  # density, path or aligned
    noise: Noise
    temperature: float = 1.0
    guidance: float | None = None
    chains: ChainDrafts | None = None


class Latents:
    """Family of one model in one generation: values are tokens [d], or chains of states [T + 1, d].

    The prompt is one position, the class; its value is not read.

    Args:
        model: the network.
        request: settings of the generation.
        sampling: of a diffusion head.
        net: the head; by default the model's.
    """

    def __init__(self, model: Any, request: LatentRequest, sampling: Sampling, net: Any = None):
        config = model.config
        self.model, self.request, self.width, self.noise_schedule = model, request, config.channels, None
        self.net: Any = model.head if net is None else net
        if config.head == "diffusion":
            sampling = sampling.filled(config)
            self.noise_schedule = sampling.noise_schedule(request.temperature).to(model.device)
            self.head = counted_head(self.net, request.guidance)
            self.denoiser = self._denoiser(self.noise_schedule, 1 if sampling.every is None else sampling.every)

    def _denoiser(self, noise_schedule: NoiseSchedule, every: int) -> Denoiser:
        chains = self.request.chains
        if chains is None or every > 1:
            return Denoiser(self.head, noise_schedule, every)
        linear = None if chains.linear is None else chains.linear.to(self.model.device)
        return SpeculativeDenoiser.of(self.head, noise_schedule, chains.draft_steps, linear, self.request.guidance)

    @property
    def value(self) -> tuple[int, ...]:
        """Shape of a value."""
        return (self.denoiser.steps + 1, self.width) if self.request.form == "path" else (self.width,)

    def prompt(self, model: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return one position for each row of `inputs`, the class numbers [R]."""
        ids = torch.zeros(len(inputs), 1, *self.value, dtype=torch.float32, device=inputs.device)
        return ids, torch.ones(len(inputs), 1, dtype=torch.bool, device=inputs.device)

    def begin(self, model: Any, inputs: Tensor, capacity: int) -> tuple[SlotCache, Tensor]:
        """Open the cache and the state of one generation; see the family protocol."""
        return SlotCache(self.model.config.num_hidden_layers, capacity), self.model.prefix(inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Tensor, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Return states [R, keep, D] of the last `keep` columns, the head's input."""
        cells = layout.positions - 1  # the class stands at position 0
        embeds = torch.where((cells < 0)[..., None], state, model.embed(tokens_of(layout.ids, self.width), cells))
        return model(embeds, cells, additive_mask(layout, embeds.dtype), cache)[0][:, -keep:], None

    def token_embeddings(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Embed tokens as the backbone reads them.

        Args:
            tokens: [R, M, d].
            cells: LongTensor [R, M], their places in raster order.

        Returns:
            [R, M, D].
        """
        return self.model.embed(tokens, cells)

    def conditioning(self, hidden: Tensor, cells: Tensor) -> Tensor:
        """Make the head's conditioning.

        Args:
            hidden: last hidden states [R, M, D].
            cells: LongTensor [R, M], places of the tokens that they predict.

        Returns:
            [R, M, D].
        """
        return hidden

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Distribution:
        """Return the distributions for states [R, N, D]; for guided pairs [B, N, ...]."""
        if isinstance(processors, Guided):
            cond, uncond = raw.chunk(2)
            raw, history = torch.cat([cond, uncond], -1), replace(history, position=history.position[: len(cond)])
        if self.noise_schedule is None:
            return self._density(raw)
        if self.request.form == "path":
            return DenoisingPath(raw, self.denoiser, self.width)  # pyright: ignore[reportReturnType]
        keys = self.request.noise.aligned(history.position)
        return aligned(raw, ChainSampler(self.denoiser), self.noise_schedule.sigma_out, keys, self.width)  # pyright: ignore[reportReturnType]

    def _density(self, z: Tensor) -> Any:
        head, scale = self.net, self.request.guidance
        if scale is None:
            return Mixture.joint(*head(z)).tempered(self.request.temperature)
        cond, uncond = (Gaussian(mean[..., 0, :], std[..., 0, :]) for _, mean, std in (head(part) for part in z.chunk(2, -1)))
        return Gaussian.guided(cond, uncond, scale - 1).tempered(self.request.temperature)


def tokens_of(values: Tensor, width: int) -> Tensor:
    """Return the tokens [R, M, d] of values [R, M, d], or of chains [R, M, T + 1, d]."""
    return values if values.dim() == 3 else values[..., -1, :]
