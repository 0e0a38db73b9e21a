"""Pocket TTS (Kyutai 2025) and Gradium's Phonon: latents by a flow head, with one or a few calls of it for each. See `speech.latents`."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Committed, Draft, Scored, Verdict
from mmspec.core.stopping import DefaultStopping
from mmspec.models.compat import pocket_placeholders
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.target import HFTarget
from mmspec.speech.families.base import sampling_of
from mmspec.speech.latents.base import SIGMA_OUT, Inputs, LatentModel, Scale, checked_sigma
from mmspec.speech.latents.pocket_network import FlowSampler, PocketFamily, budget, check_prompt

OWN = {"num_flow_steps": 1, "eos_threshold": -4.0, "min_frames_before_eos": 6}
"""Defaults of the original model for settings that its generation config lacks."""


class Spoken(DefaultStopping):
    """Stopping criteria of the original models: a row ends `after` [B] frames behind the first whose state predicts the end of speech.

    The state is the target's own, computed from committed frames, so the end of a row is a function of its frames, and the cut frames keep
    their distribution. All of it stays on the device. `frames_left` is the largest number of frames of a row; the first `least` frames
    cannot end it.
    """

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

    def __init__(self, frames_left: list[int], threshold: float, least: int, after: Tensor):
        super().__init__(len(frames_left), max(frames_left), ends=lambda values: self._over, device=after.device)
        self.left, self.remaining = torch.tensor(frames_left, device=after.device), list(frames_left)
        self.threshold, self.least, self.after = threshold, least, after
        self.since = torch.full_like(after, 1 << 40)  # the first frame whose state predicted the end
        self._over = torch.zeros(len(frames_left), 1, dtype=torch.bool, device=after.device)

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Record what the round committed."""
        length = verdict.values.shape[1]
        place = draft.start[:, None] + torch.arange(length, device=draft.start.device)
        real = place < (draft.start + verdict.count)[:, None]
        said = (scored.p.ending[:, -length:] > self.threshold) & (place >= self.least) & real
        self.since = torch.minimum(self.since, torch.where(said, place, 1 << 40).amin(1))
        self._over = place >= (self.since + self.after)[:, None]
        return super().commit(draft, scored, verdict)

    def _at_end(self, row: int) -> bool:
        return len(self.outputs[row]) > int(self.since[row] + self.after[row])


class PocketTTS(LatentModel):
    """A `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration` as a speech model.

    Args:
        model: the model.
        processor: its processor, which has the codec. Without one, prompts are what it returned.
        codec: the audio tokenizer, if there is no processor; without either, results have latents but no sound.
        voices: latents [T, width] by name.
        sigma_out: standard deviation of the noise on every latent, in units of the latents' own; part of the model's distribution.

    The other options are those of the original model; None takes the value of its generation config.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        codec: Any = None,
        voices: Mapping[str, Tensor] | None = None,
        sigma_out: float = SIGMA_OUT,
        num_flow_steps: int | None = None,
        eos_threshold: float | None = None,
        min_frames_before_eos: int | None = None,
    ):
        refuse_unsupported(model)
        self.model, self.processor, self.presets, self.sigma = model.eval(), processor, dict(voices or {}), checked_sigma(sigma_out)
        self.voices, self.pace = tuple(self.presets), float(model.config.frame_rate)
        self.codec = getattr(processor, "audio_tokenizer", None) if codec is None else codec
        self.rate = self.codec.config.sampling_rate if self.codec is not None else 24_000
        given = {"num_flow_steps": num_flow_steps, "eos_threshold": eos_threshold, "min_frames_before_eos": min_frames_before_eos}
        own = model.generation_config
        found = {name: next(v for v in (given[name], getattr(own, name, None), OWN[name]) if v is not None) for name in OWN}
        self.flow_steps, self.threshold, self.least = found.values()
        self.sampling = sampling_of(own, ("do_sample", "temperature"))  # the variance of the noise: there are no ids to truncate

    def check(self, inputs: Inputs) -> None:
        """Raise ValueError for invalid prompts; see `LatentModel.check`."""
        check_prompt(self.model, inputs)

    def read(self, texts: Sequence[str], voices: Sequence[str | None]) -> Inputs:
        """Return the processor's inputs for texts; see `LatentModel.read`."""
        if len({voice is None for voice in voices}) > 1:
            raise ValueError("some texts have a voice and some none: give a voice for each text, or for none")
        said = [[{"role": "user", "content": _content(text, voice)}] for text, voice in zip(texts, voices, strict=True)]
        spoken = [self.presets[voice] for voice in voices if voice is not None]
        prompts = self.processor.apply_chat_template(said, tokenize=False)
        return self.processor(text=prompts, audio_prompt_latents=spoken or None, padding=True, padding_side="left", return_tensors="pt")

    def drafting(self, target: "PocketTTS", temperature: float, noise: Noise, guidance: float | None = None) -> HFTarget:
        """Return this model as a target or drafter of one call; see `LatentModel.drafting`."""
        own, theirs = self.model, target.model
        scale = Scale(own.latent_std / theirs.latent_std, (own.latent_mean - theirs.latent_mean) / theirs.latent_std)
        sampler = FlowSampler(own, self.flow_steps, sqrt(temperature), scale)
        return HFTarget(own, PocketFamily(sampler, target.sigma, noise), reserve=256)

    def own(self, drafter: Any) -> "PocketTTS | None":
        """Return the adapter of a drafter; see `LatentModel.own`."""
        if isinstance(drafter, PocketTTS) or hasattr(drafter, "sample_latent"):
            found = drafter if isinstance(drafter, PocketTTS) else PocketTTS(drafter)
            _same_latents(self.model, found.model)
            return found
        return None

    def stopping(self, inputs: Inputs, steps: int | None) -> DefaultStopping:
        """Return the stopping criteria of a call; see `LatentModel.stopping`."""
        rows, device = len(inputs["input_ids"]), self.model.device
        frames_left = budget(self.model, inputs) if steps is None else [steps] * rows
        after = torch.as_tensor(inputs.get("frames_after_eos", 1), device=device).expand(rows).clone()
        return Spoken(frames_left, self.threshold, self.least, after)

    def latents(self, values: list[Tensor]) -> Tensor:
        """Return latents [T, d] of a row's values; see `LatentModel.latents`."""
        return self.model.denormalize_latents(torch.stack(values).float())

    @property
    def sounds(self) -> bool:
        """True if there is a codec."""
        return self.codec is not None

    @torch.no_grad()
    def speak(self, latents: Tensor) -> Tensor:
        """Return the wave [S] of latents [T, d]; see `LatentModel.speak`."""
        if self.processor is not None:
            return self.processor.decode(latents)
        codec = self.codec
        return codec.decode(latents[None].to(codec.device, codec.dtype)).audio_values.flatten().float().cpu()


def _content(text: str, voice: str | None) -> list[dict[str, str]]:
    return [{"type": "audio"}] * (voice is not None) + [{"type": "text", "text": text}]


def _same_latents(target: Any, drafter: Any) -> None:
    """Raise ValueError unless `drafter` reads the prompts of `target` and generates its latents."""
    own, other = target.config, drafter.config
    if other.latent_dim != own.latent_dim:
        raise ValueError(
            f"the drafter's latents are {other.latent_dim} wide, the target's {own.latent_dim}: draft with a model of its codec"
        )
    if other.vocab_size != own.vocab_size or pocket_placeholders(drafter) != pocket_placeholders(target):
        raise ValueError("the drafter's ids are not the target's: draft with a model of the same processor")
    wide = [each.model.audio_prompt_proj.in_features for each in (target, drafter)]
    if wide[0] != wide[1]:
        raise ValueError(f"the drafter takes voices {wide[1]} wide, the target {wide[0]} wide: draft with a model of the same processor")
