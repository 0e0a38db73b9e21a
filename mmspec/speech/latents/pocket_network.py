"""Pocket TTS as a family: a backbone over latents, and a flow head that maps its state and noise to the next latent.

A value is a latent y [d] in the target's normalised space. Given the noise xi of its position, a function of the row's seed, the target's
distribution is y ~ N(f(z, xi), sigma^2), z the backbone's state, so a draft made from the same xi can be judged
(`core.distributions.aligned`). Prompt positions hold `PLACE` and more in every entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.aligned import aligned
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.models.compat import pocket_placeholders
from mmspec.models.compat.cache_name import CALLERS_NAMES, cache_keyword
from mmspec.models.families.base import attention_mask, text_prompt
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.latents.base import PLACE, Inputs, Scale


@dataclass(frozen=True)
class FlowSampler:
    """f(z, xi): the model's own `sample_latent` with noise of deviation `spread`, in the target's normalised space."""

    model: Any
    steps: int
    spread: float
    scale: Scale
    rows = 1

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        """Return latents [..., d] for states `z` [..., D] and standard normal `noise` [..., 1, d]."""
        dtype = self.model.dtype
        found = self.model.sample_latent(z.flatten(0, -2).to(dtype), (noise.flatten(0, -3)[:, 0] * self.spread).to(dtype), self.steps)
        return self.scale.out(found.float()).view(*z.shape[:-1], -1)


@dataclass(frozen=True)
class LatentDistribution(Gaussian):
    """Distributions of latents, with the logits of the end of speech after the same states. Selections of it are plain Gaussians."""

    ending: Tensor  # [...] logits


@dataclass(frozen=True)
class PocketFamily:
    """Family of `PocketTTSForConditionalGeneration` and similar models for one call; `noise` is the input of the flow head.

    `sigma` is the deviation of the noise added to every latent; 0 gives point masses.
    """

    sampler: FlowSampler
    sigma: float
    noise: Noise

    def prompt(self, model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the ids and the mask of a prompt; see the family protocol."""
        ids, mask = text_prompt(inputs)
        place = PLACE + torch.arange(ids.shape[1] - 1, -1, -1, device=model.device, dtype=torch.float32)
        return place[None, :, None].expand(*ids.shape, model.config.latent_dim), mask.to(model.device)

    def begin(self, model: Any, inputs: Inputs, capacity: int) -> tuple[SlotCache, Tensor]:
        """Open the cache and the state of one generation; see the family protocol."""
        return SlotCache(model.config.num_hidden_layers, capacity), embed_pocket_prompt(model, inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Tensor, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, None]:
        """Return the last hidden states [B, keep, D]. Other hidden states are taken by hooks."""
        net, place = model.model, layout.ids.amin(-1) - PLACE
        prompt = (place >= 0)[..., None]
        embeds = net.embed_audio_latents(self.sampler.scale.back(torch.where(prompt, 0.0, layout.ids)))
        index = (state.shape[1] - 1 - place).clamp(0, state.shape[1] - 1).long()
        given = state.gather(1, index[..., None].expand(*index.shape, state.shape[-1]))
        hidden = net(
            inputs_embeds=torch.where(prompt, given.to(embeds.dtype), embeds),
            attention_mask=attention_mask(layout.visible, model),
            position_ids=layout.positions,
            **cache_keyword(net, cache),
            use_cache=True,
        ).last_hidden_state
        return hidden[:, -keep:], None

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> LatentDistribution:
        """Return the distributions of the next latents from states [B, N, D]."""
        model, keys = self.sampler.model, self.noise.aligned(history.position)
        ending = model.eos_head(raw.to(model.dtype))[..., 0].float()
        if self.sigma > 0:
            distribution = aligned(raw, self.sampler, self.sigma, keys, model.config.latent_dim)
            return LatentDistribution(distribution.mean, distribution.scale, ending)
        mean = self.sampler(raw, keys.branch(self.sampler.rows).normal(model.config.latent_dim).to(raw.dtype))
        return LatentDistribution(mean, torch.zeros_like(mean[..., :1]), ending)


def embed_pocket_prompt(model: Any, inputs: Inputs) -> Tensor:
    """Return embeddings [B, P, D] of prompts, equal to those of the model's own forward."""
    net, config = model.model, model.config
    ids = inputs["input_ids"].to(model.device)
    embeds = net.embed_tokens(ids)
    embeds = torch.where((ids == config.audio_bos_token_id)[..., None], net.embed_audio_latents(net.bos_latent), embeds)
    voices = inputs.get("audio_prompt_latents")
    if voices is None:
        return embeds
    mask = inputs.get("audio_prompt_latents_mask")
    frames = voices.flatten(0, 1) if mask is None else voices[mask.bool()]
    given = net.audio_prompt_proj(frames.to(net.audio_prompt_proj.weight))
    return embeds.masked_scatter((ids == config.audio_prompt_token_id)[..., None], given.to(embeds.dtype))


def check_prompt(model: Any, inputs: Inputs) -> None:
    """Raise ValueError for prompts that the model cannot continue."""
    for name in inputs.keys() & set(CALLERS_NAMES):
        raise ValueError(f"inputs hold {name}: give the voice as audio_prompt_latents, or as one of the model's voices")
    ids, mask = text_prompt(inputs)
    config, place = model.config, torch.arange(ids.shape[1], device=ids.device)
    last = ids.gather(1, torch.where(mask, place, 0).amax(1, keepdim=True))[:, 0]
    if (last != config.audio_bos_token_id).any():
        row = int((last != config.audio_bos_token_id).nonzero()[0])
        raise ValueError(
            f"prompt {row} ends with id {int(last[row])}, not with the first place of sound ({config.audio_bos_token_id}): "
            "prepare inputs with the model's processor"
        )
    known = model.get_input_embeddings().num_embeddings
    if int(ids.max()) >= known:
        raise ValueError(f"input_ids hold {int(ids.max())}, but the model knows {known} ids: prepare inputs with its own processor")
    _check_voices(model, inputs, int((ids == config.audio_prompt_token_id).sum()))


def _check_voices(model: Any, inputs: Inputs, places: int) -> None:
    voices, mask = inputs.get("audio_prompt_latents"), inputs.get("audio_prompt_latents_mask")
    if voices is None:
        if places:
            raise ValueError(f"the prompts have {places} places for a voice, but no audio_prompt_latents: give the processor a voice")
        return
    width, count = model.model.audio_prompt_proj.in_features, voices.shape[:2].numel() if mask is None else int(mask.sum())
    if voices.shape[-1] != width:
        raise ValueError(f"audio_prompt_latents are {voices.shape[-1]} wide, but the model takes voices {width} wide: encode them for it")
    if count != places:
        raise ValueError(f"the voices have {count} frames, but the prompts {places} places for them: prepare both with one processor call")


def budget(model: Any, inputs: Inputs) -> list[int]:
    """Return the largest number of frames of every row, by the ids of its own text, as the class allows."""
    ids, mask = text_prompt(inputs)
    other = torch.tensor(pocket_placeholders(model), device=ids.device)
    words = (~torch.isin(ids, other) & mask).sum(1).tolist()
    return [ceil((count / 3 + 2) * model.config.frame_rate) for count in words]
