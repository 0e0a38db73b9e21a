"""VibeVoice (Microsoft 2025): a language model that chooses between frames of sound and end tokens, and a diffusion head for the frames.

Each frame is decoded to sound and encoded again before the next one, drafted frames too: `vibevoice_network`. See `speech.latents` for
exactness. Two things differ from the original implementation. A row of a batch equals the row alone, whereas the original steps the
streams of all rows together once turns begin at different times. And voices are encoded without the random noise that the original adds.
"""

import copy
from collections.abc import Sequence
from inspect import signature
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.stopping import DefaultStopping
from mmspec.models.compat import is_vibevoice, vibevoice_scheduler
from mmspec.models.families.base import refuse_unsupported, text_prompt
from mmspec.models.target import HFTarget
from mmspec.speech.families.base import DRAWS, SpeechSampling, sampling_of
from mmspec.speech.latents.base import SIGMA_OUT, Inputs, LatentModel, Scale, checked_sigma
from mmspec.speech.latents.vibevoice_network import DenoisedLatent, Ids, Streams, VibeVoiceFamily

RATE = 24_000
"""Samples a second, without a processor: the model's config does not state it."""


class VibeVoice(LatentModel):
    """A `VibeVoiceForConditionalGeneration` as a speech model.

    Args:
        model: the model.
        processor: its processor, to encode texts.
        noise_scheduler: a deterministic scheduler of diffusers.
        sigma_out: standard deviation of the noise on every latent, in units of the latents' own; part of the model's distribution.

    The other options are those of the original model; None takes the value of its generation config.
    """

    sampling = SpeechSampling(1.0)

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        sigma_out: float = SIGMA_OUT,
        noise_scheduler: Any = None,
        num_diffusion_steps: int | None = None,
    ):
        refuse_unsupported(model.model.language_model)
        self.model, self.processor, self.sigma = model.eval(), processor, checked_sigma(sigma_out)
        own = model.generation_config
        found = noise_scheduler or getattr(own, "noise_scheduler", None) or vibevoice_scheduler(model, own)
        self.scheduler, self.steps = _deterministic(found), num_diffusion_steps or getattr(own, "num_diffusion_steps", None) or 10
        # of the other settings its class reads none: it takes the likeliest token whatever do_sample says
        scale = sampling_of(own, (*DRAWS, "guidance_scale")).guidance
        self.guidance = 1.0 if scale is None else scale
        reader = getattr(processor, "feature_extractor", None)
        self.rate = getattr(reader, "sampling_rate", RATE)
        self.pace = self.rate / model.config.audio_config.hop_length
        self.ids = Ids.of(model.config)

    def check(self, inputs: Inputs) -> None:
        """Raise ValueError for invalid prompts; see `LatentModel.check`."""
        ids, _ = text_prompt(inputs)
        known, places = self.model.config.text_config.vocab_size, int((ids == self.model.config.audio_token_id).sum())
        if int(ids.max()) >= known:
            raise ValueError(f"input_ids hold {int(ids.max())}, but the model knows {known} ids: prepare inputs with its own processor")
        if places and inputs.get("input_values") is None:
            raise ValueError(f"the prompts have {places} places for a voice, but no input_values: give the processor a voice")

    def read(self, texts: Sequence[str], voices: Sequence[str | None]) -> Inputs:
        """Return the processor's inputs for texts; see `LatentModel.read`."""
        said = [[{"role": "0", "content": [{"type": "text", "text": text}]}] for text in texts]
        return self.processor.apply_chat_template(said, tokenize=True, return_dict=True)

    def drafting(self, target: "VibeVoice", temperature: float, noise: Noise, guidance: float | None = None) -> Streams:
        """Return this model as a target or drafter of one call; see `LatentModel.drafting`."""
        own, theirs = self.model.model, target.model.model
        factor = theirs.latent_scaling_factor / own.latent_scaling_factor
        scale = Scale(factor.detach(), ((theirs.latent_bias_factor - own.latent_bias_factor) * theirs.latent_scaling_factor).detach())
        weight = 1.0 if guidance is None else float(guidance)
        sampler = DenoisedLatent(self.model, self.scheduler, self.steps, sqrt(temperature), weight, scale)
        family = VibeVoiceFamily(sampler, target.sigma, noise, self.ids)
        return Streams(HFTarget(self.model, family, reserve=256), family.streams)

    def own(self, drafter: Any) -> "VibeVoice | None":
        """Return the adapter of a drafter; see `LatentModel.own`."""
        if not isinstance(drafter, VibeVoice) and not is_vibevoice(drafter):
            return None
        found = drafter if isinstance(drafter, VibeVoice) else VibeVoice(drafter)
        mine, theirs = (each.model.config for each in (self, found))
        if theirs.audio_config.hidden_size != mine.audio_config.hidden_size:
            wide = theirs.audio_config.hidden_size, mine.audio_config.hidden_size
            raise ValueError(f"the drafter's latents are {wide[0]} wide, the target's {wide[1]}: draft with a model of its codec")
        if theirs.text_config.vocab_size != mine.text_config.vocab_size or found.ids != self.ids:
            raise ValueError("the drafter's ids are not the target's: draft with a model of the same processor")
        return found

    def stopping(self, inputs: Inputs, steps: int | None) -> DefaultStopping:
        """Return the stopping criteria of a call; see `LatentModel.stopping`."""
        most = steps or self.model.generation_config.max_new_tokens or int(30 * self.pace)
        return DefaultStopping(len(inputs["input_ids"]), most, lambda values: values[..., 0] == self.ids.end, device=self.model.device)

    def latents(self, values: list[Tensor]) -> Tensor:
        """Return latents [T, d] of a row's values; see `LatentModel.latents`."""
        said = torch.stack(values).float()
        return said[said[:, 0] == self.ids.frame, 1:]

    @property
    def sounds(self) -> bool:
        """True if there is a codec."""
        return True

    @torch.no_grad()
    def speak(self, latents: Tensor) -> Tensor:
        """Return the wave [S] of latents [T, d]; see `LatentModel.speak`."""
        net = self.model.model
        scaled = latents.to(self.model.dtype) / net.latent_scaling_factor - net.latent_bias_factor
        return net.audio_tower.decode(scaled[None], use_cache=True).audio.flatten().float().cpu()


def _deterministic(scheduler: Any) -> Any:
    """Return a copy of `scheduler`. ValueError for schedulers that draw noise at their steps."""
    found = copy.deepcopy(scheduler)
    name, kind = type(found).__name__, str(getattr(found.config, "algorithm_type", ""))
    draws = (
        "variance_noise" in signature(found.step).parameters and kind.startswith("sde")
        if kind
        else "generator" in signature(found.step).parameters
    )
    if draws:
        raise ValueError(
            f"noise_scheduler {name} draws noise at every step: take one that is deterministic, such as DPMSolverMultistepScheduler with "
            "algorithm_type='dpmsolver++'"
        )
    return found
