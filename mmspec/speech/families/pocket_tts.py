"""Pocket TTS (Kyutai 2025) and Gradium's Phonon: speech as latents, each made from noise in one call of a flow head or a few.

Two such heads never make the same latent, and a latent made by a map has no density to judge it by. So the target is the class's own law
with a little noise on every latent, sigma_out of its deviation: then drafts made from the same noise xi are judged as Gaussians, and the
sound has exactly the target's law whatever drafts it. `sigma_out=0` is the class's own law to the letter, for plain decoding alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, sqrt
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import Accept, Token
from mmspec.core.control import Control
from mmspec.core.decode import decode
from mmspec.core.family import refuse_unsupported
from mmspec.core.hf import HFTarget
from mmspec.core.limits import Limits
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Settled, Step, Verdict
from mmspec.core.stats import Stats
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.options import control_of, rule_of
from mmspec.speech.families.pocket_network import FlowSampler, Inputs, PocketFamily, Scale, budget, check_prompt
from mmspec.speech.family import Sampling, SpeechModel, one_voice_each
from mmspec.speech.generation import Speech
from mmspec.speech.hf_codec import WholeStream

SIGMA_OUT = 0.1
"""Deviation of the noise on a latent, in units of the latents' own: what the class calls normalised latents have deviation 1."""
OWN = {"num_flow_steps": 1, "eos_threshold": -4.0, "min_frames_before_eos": 6}
"""What the class generates with where its generation config says nothing."""
_IDS = "it writes latents, not ids"
_UNSUPPORTED = {
    "top_k": f"{_IDS}: leave top_k out, temperature is the variance of the noise",
    "top_p": f"{_IDS}: leave top_p out, temperature is the variance of the noise",
    "repetition_penalty": f"{_IDS}: leave repetition_penalty out",
    "samplers": f"{_IDS}: leave samplers out",
    "guidance": "it has no unconditional prompts: leave guidance out",
    "tree": "densities are judged along chains: leave tree out",
}


class Spoken(Limits):
    """Ends of utterances by the class's own rule: `after` [B] frames behind the first whose state says that speech has ended.

    The state a frame was drawn after is the target's own, told by what is settled. So where a row ends is a function of its frames, and
    the frames, cut there, keep their law. All of it stays on the device. `room` says how many frames a row may take; the first `least`
    do not end it.
    """

    def __init__(self, room: list[int], threshold: float, least: int, after: Tensor):
        super().__init__(len(room), max(room), ends=lambda values: self._over, device=after.device)
        self.left, self.remaining = torch.tensor(room, device=after.device), list(room)
        self.threshold, self.least, self.after = threshold, least, after
        self.since = torch.full_like(after, 1 << 40)  # the first frame whose state said so
        self._over = torch.zeros(len(room), 1, dtype=torch.bool, device=after.device)

    def settle(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Settled]:
        length = verdict.values.shape[1]
        place = draft.start[:, None] + torch.arange(length, device=draft.start.device)
        real = place < (draft.start + verdict.count)[:, None]
        said = (scored.p.ending[:, -length:] > self.threshold) & (place >= self.least) & real
        self.since = torch.minimum(self.since, torch.where(said, place, 1 << 40).amin(1))
        self._over = place >= (self.since + self.after)[:, None]
        return super().settle(draft, scored, verdict)


class PocketTTS(SpeechModel):
    """A `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`, and its processor, which brings the codec.

    Without a processor prompts are what it returned, and `codec` is its audio tokenizer; with neither there are latents, and no sound.
    `voices` are latents [T, width] by name. `sigma_out` is the deviation of the noise on every latent, in units of the latents' own: a
    part of what the model is, plain or drafted. The other options are the class's own; where None, its generation config's.
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
        if not 0 <= sigma_out < inf:
            raise ValueError(
                f"sigma_out is {sigma_out}: a deviation is a number from 0 on; {SIGMA_OUT} is usual, 0 for plain decoding only"
            )
        self.model, self.processor, self.presets, self.sigma = model.eval(), processor, dict(voices or {}), sigma_out
        self.voices, self.pace = tuple(self.presets), float(model.config.frame_rate)
        self.codec = getattr(processor, "audio_tokenizer", None) if codec is None else codec
        self.rate = self.codec.config.sampling_rate if self.codec is not None else 24_000
        given = {"num_flow_steps": num_flow_steps, "eos_threshold": eos_threshold, "min_frames_before_eos": min_frames_before_eos}
        own = model.generation_config
        found = {name: next(v for v in (given[name], getattr(own, name, None), OWN[name]) if v is not None) for name in OWN}
        self.flow_steps, self.threshold, self.least = found.values()
        self.sampling = Sampling((1.0 if own.temperature is None else own.temperature) if own.do_sample else 0.0)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str] | Inputs, voices: Sequence[str | None]) -> Inputs:
        """Prompts from texts, or what the class's processor returned for them."""
        inputs = texts if isinstance(texts, Mapping) else self._read(texts, voices)
        check_prompt(self.model, inputs)
        return inputs

    def _read(self, texts: Sequence[str], voices: Sequence[str | None]) -> Inputs:
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"texts is {texts!r}: give a list of texts that are not empty, or what the model's processor returned")
        if self.processor is None:
            raise ValueError("texts need a processor: make PocketTTS with the model's own, or give what that returned")
        if len({voice is None for voice in voices}) > 1:
            raise ValueError("some texts have a voice and some none: give a voice for each text, or for none")
        said = [[{"role": "user", "content": _content(text, voice)}] for text, voice in zip(texts, voices, strict=True)]
        spoken = [self.presets[voice] for voice in voices if voice is not None]
        prompts = self.processor.apply_chat_template(said, tokenize=False)
        return self.processor(text=prompts, audio_prompt_latents=spoken or None, padding=True, padding_side="left", return_tensors="pt")

    # --- the engine's parts -------------------------------------------------------------------------------------------

    @property
    def family(self) -> Any:
        raise ValueError("a model of latents is driven anew for every call, by its noise: see `drafting`")

    def drafting(self, target: "PocketTTS", temperature: float, noise: Noise) -> PocketFamily:
        """This model as one that writes in the latents of `target`, for one call."""
        sampler = FlowSampler(self.model, self.flow_steps, sqrt(temperature), Scale.between(self.model, target.model))
        return PocketFamily(sampler, target.sigma, noise)

    @property
    def ends(self) -> Any:
        raise ValueError("where an utterance ends is told by states, not by its latents: see `Spoken`")

    # --- sound --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def speak(self, latents: Tensor) -> Tensor:
        """The wave [S] of one row's latents [T, d], as the codec takes them."""
        if self.processor is not None:
            return self.processor.decode(latents)
        codec = self.codec
        return codec.decode(latents[None].to(codec.device, codec.dtype)).audio_values.flatten().float().cpu()

    def stream(self) -> WholeStream:
        """Sound from latents, all of it at the end."""
        return WholeStream(lambda steps: self.speak(torch.stack(steps)))

    # --- a call -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def synthesize(
        self,
        texts: Sequence[str] | Inputs,
        drafter: Any = None,
        accept: str | Accept = "exact",
        seed: int | Sequence[int] = 0,
        *,
        voice: str | Sequence[str] | None = None,
        max_seconds: float | None = None,
        draft_length: int | str | Control = "auto",
        on_sound: Callable[[int, Tensor], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        temperature: float | None = None,
        **others: Any,
    ) -> Speech:
        """As `mmspec.speech.synthesize`, which calls it. `tokens` are latents [B, S, d], as the class's own generation gives them."""
        clock = perf_counter()
        _refuse(others)
        rows = len(texts["input_ids"]) if isinstance(texts, Mapping) else len(texts)
        inputs = self.encode(texts, [None] * rows if isinstance(texts, Mapping) else one_voice_each(voice, texts, self.voices))
        heat, rule = self.sampling.temperature if temperature is None else temperature, _rule(accept)
        if not 0 <= heat < inf:
            raise ValueError(f"temperature is {heat}: the variance of the noise is a number from 0 on; 0 for no noise, 0.7 is usual")
        noise, stats = Noise.from_seed(seed, rows, self.model.device), Stats(exactness=rule.exactness)
        target = HFTarget(self.model, self.drafting(self, heat, noise), reserve=256)
        guesser, limits = self._drafter(drafter, target, heat, noise), self._limits(inputs, max_seconds)
        for step in decode(target, guesser, rule, inputs, limits=limits, noise=noise, control=control_of(draft_length, guesser)):
            stats.add(step)
            if on_step is not None:
                on_step(step)
        return self._sounded(limits, stats, clock, on_sound)

    def _limits(self, inputs: Inputs, max_seconds: float | None) -> Spoken:
        rows, device = len(inputs["input_ids"]), self.model.device
        if max_seconds is not None and int(max_seconds * self.pace) < 1:
            raise ValueError(f"max_seconds is {max_seconds}: ask for at least {1 / self.pace:.3g}, one frame of this model")
        room = budget(self.model, inputs) if max_seconds is None else [int(max_seconds * self.pace)] * rows
        after = torch.as_tensor(inputs.get("frames_after_eos", 1), device=device).expand(rows).clone()
        return Spoken(room, self.threshold, self.least, after)

    def _drafter(self, drafter: Any, target: HFTarget, temperature: float, noise: Noise) -> Any:
        """ValueError for what cannot draft latents, or not these."""
        if drafter is None or isinstance(drafter, NoDraft):
            return NoDraft()
        if not self.sigma > 0:
            raise ValueError(
                f"sigma_out is {self.sigma}, and two heads never make the same latent: make PocketTTS with sigma_out above 0 "
                f"({SIGMA_OUT} is usual), or leave drafter out"
            )
        if hasattr(drafter, "begin"):
            return drafter
        own = drafter if isinstance(drafter, PocketTTS) else PocketTTS(drafter) if hasattr(drafter, "sample_latent") else None
        if own is None:
            named = repr(drafter) if isinstance(drafter, str) else type(drafter).__name__
            raise ValueError(f"drafter {named} writes no latents: draft with a smaller model of the target's class, or leave drafter out")
        _same_latents(self.model, own.model)
        return ModelDrafter(replace(target, model=own.model, family=own.drafting(self, temperature, noise)))

    def _sounded(self, limits: Spoken, stats: Stats, clock: float, on_sound: Callable[[int, Tensor], None] | None) -> Speech:
        rows = [self.model.denormalize_latents(torch.stack(row).float()) for row in limits.outputs]
        waves, first = [], [float("nan")] * len(rows)
        for row, latents in enumerate(rows if self.codec is not None else ()):
            waves.append(self.speak(latents))
            first[row] = perf_counter() - clock
            if on_sound is not None:
                on_sound(row, waves[-1])
        lengths = torch.tensor([len(row) for row in rows], device=self.model.device)
        tokens, worst = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [float("nan")] * len(rows)
        return Speech(waves, self.rate, tokens, lengths, stats, first, worst, perf_counter() - clock)


def _content(text: str, voice: str | None) -> list[dict[str, str]]:
    return [{"type": "audio"}] * (voice is not None) + [{"type": "text", "text": text}]


def _rule(accept: str | Accept) -> Accept:
    """The rule a name stands for; "exact" is the token rule. ValueError for rules that wait for equal values, or for trees."""
    rule = Token() if accept == "exact" else rule_of(accept, 1.0)
    if rule.trees or rule.coupled or not rule.uses_q:
        raise ValueError(
            f"accept rule {type(rule).__name__} is none for latents, which are never equal and hang in no tree: "
            "accept with 'exact', 'token' or 'block'"
        )
    return rule


def _refuse(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and not (name == "guidance" and value == 1):
            raise ValueError(f"{name} is {value!r}, but a model of latents has none: {_UNSUPPORTED.get(name, 'leave it out')}")


def _same_latents(target: Any, drafter: Any) -> None:
    """ValueError unless `drafter` reads the prompts of `target` and writes its latents."""
    own, other = target.config, drafter.config
    if other.latent_dim != own.latent_dim:
        raise ValueError(
            f"the drafter's latents are {other.latent_dim} wide, the target's {own.latent_dim}: draft with a model of its codec"
        )
    if other.vocab_size != own.vocab_size or drafter._placeholder_token_ids() != target._placeholder_token_ids():
        raise ValueError("the drafter's ids are not the target's: draft with a model of the same processor")
    wide = [each.model.audio_prompt_proj.in_features for each in (target, drafter)]
    if wide[0] != wide[1]:
        raise ValueError(f"the drafter takes voices {wide[1]} wide, the target {wide[0]} wide: draft with a model of the same processor")
