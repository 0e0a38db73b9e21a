"""Models of continuous speech latents, generated from noise by a flow or diffusion head: what is common to all of them.

Two such heads never give the same latent, and a deterministic map has no density. So the target is the original distribution with a small
Gaussian noise on every latent, of `sigma_out` standard deviations. Drafts from the same noise xi are then judged as Gaussians
(`core.distributions.aligned`), and the sound has the target's distribution under any drafter. `sigma_out=0` is the original distribution,
for plain decoding only.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import run
from mmspec.core.noise import Noise
from mmspec.core.protocols import Target
from mmspec.core.records import Step
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.none import NoDraft
from mmspec.run.request import Request
from mmspec.speech.codecs.streams import WholeStream
from mmspec.speech.families.base import SpeechModel, one_voice_each
from mmspec.speech.sound.speech import Speech, decode_rows

Inputs = Mapping[str, Tensor]
"""Output of a model's processor for a batch: input_ids, attention_mask and further inputs of the model."""
PLACE = 2.0**20
"""Prompt position `p` of `P` holds PLACE + P - 1 - p, exact in float32 and far above any latent."""
SIGMA_OUT = 0.1
"""Default standard deviation of the noise on a latent, in units of the latents' own, which is 1 before scaling."""
_IDS = "it writes latents, not ids"
_UNSUPPORTED = {
    "top_k": f"{_IDS}: leave top_k out, temperature is the variance of the noise",
    "top_p": f"{_IDS}: leave top_p out, temperature is the variance of the noise",
    "repetition_penalty": f"{_IDS}: leave repetition_penalty out",
    "samplers": f"{_IDS}: leave samplers out",
    "guidance": "it has no unconditional prompts: leave guidance out",
    "tree": "densities are judged along chains: leave tree out",
}


@dataclass(frozen=True)
class Scale:
    """Affine map from a model's latents to another's: own * `factor` + `shift`.

    Args:
        factor: one number or [d].
        shift: one number or [d].
    """

    factor: Tensor
    shift: Tensor

    def out(self, latents: Tensor) -> Tensor:
        """Map `latents` [..., d] of this model to the other model's scale."""
        return latents * self.factor + self.shift

    def back(self, latents: Tensor) -> Tensor:
        """Map `latents` [..., d] of the other model to this model's scale."""
        return (latents - self.shift) / self.factor


class LatentModel(SpeechModel):
    """A model of latents.

    Attributes:
        processor: the processor that encodes texts.
        sigma: standard deviation of the noise on every latent, a part of the model's distribution.
        guidance: default scale of classifier-free guidance; None for models without guidance.
    """

    processor: Any
    sigma: float
    guidance: float | None = None  # that the model is meant to be drawn with; None where it has none

    # --- what a model says of itself ----------------------------------------------------------------------------------

    @abstractmethod
    def drafting(self, target: Any, temperature: float, noise: Noise, guidance: float | None) -> Target:
        """Return this model as a target or drafter that generates latents of `target` (possibly itself), for one call with `noise`."""

    @abstractmethod
    def stopping(self, inputs: Inputs, steps: int | None) -> DefaultStopping:
        """Return the stopping criteria: at most `steps` steps, by default the limit of the original model."""

    @abstractmethod
    def latents(self, values: list[Tensor]) -> Tensor:
        """Return latents [T, d] of a row's values, on the codec's scale."""

    @abstractmethod
    def speak(self, latents: Tensor) -> Tensor:
        """Return the waveform [S] of one row's latents [T, d], on the codec's scale."""

    @property
    @abstractmethod
    def sounds(self) -> bool:
        """True if there is a codec."""

    @abstractmethod
    def own(self, drafter: Any) -> Any:
        """Return the adapter of `drafter` if it can draft for this model; None for other kinds of model.

        ValueError for a model of the right kind that does not fit.
        """

    def check(self, inputs: Inputs) -> None:
        """Raise ValueError for prompts that the model cannot continue."""

    @abstractmethod
    def read(self, texts: Sequence[str], voices: Sequence[str | None]) -> Inputs:
        """Return the processor's inputs for texts."""

    # --- a call -------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str] | Inputs, voices: Sequence[str | None]) -> Inputs:
        """Return prompts from texts, or from what the model's processor returned for them."""
        if not isinstance(texts, Mapping):
            if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
                raise ValueError(f"texts is {texts!r}: give a list of texts that are not empty, or what the model's processor returned")
            if self.processor is None:
                raise ValueError(f"texts need a processor: make {type(self).__name__} with the model's own, or give what that returned")
            texts = self.read(texts, voices)
        self.check(texts)
        return texts

    @property
    def family(self) -> Any:
        raise ValueError("the family of a model of latents depends on the call's noise: see `drafting`")

    @property
    def ends(self) -> Any:
        raise ValueError("`stopping` decides where a row ends")

    def stream(self) -> WholeStream:
        """Return a stream that decodes all sound when it is closed."""
        return WholeStream(lambda steps: self.speak(torch.stack(steps)))

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
        guidance: float | None = None,
        **others: Any,
    ) -> Speech:
        """As `mmspec.speech.synthesize`, which calls it. `tokens` are latents [B, T, d] on the codec's scale; `lengths` count them."""
        clock = perf_counter()
        _refuse(others if self.guidance is not None else {"guidance": guidance, **others})
        rows = len(texts["input_ids"]) if isinstance(texts, Mapping) else len(texts)
        inputs = self.encode(texts, [None] * rows if isinstance(texts, Mapping) else one_voice_each(voice, texts, self.voices))
        degree = self.sampling.temperature if temperature is None else temperature
        request = Request.of(drafter=drafter, accept="token" if accept == "exact" else accept, draft_length=draft_length, temperature=1.0)
        rule = _checked_rule(request.rule())
        if not 0 <= degree < inf:
            raise ValueError(f"temperature is {degree}: the variance of the noise is a number from 0 on; 0 for no noise, 0.7 is usual")
        noise, stats = Noise.from_seed(seed, rows, self.model.device), Stats(exactness=rule.exactness)
        told = (self, degree, noise, self.guidance if guidance is None else guidance)
        target: Any = self.drafting(*told)
        resolved = request.resolve(target, rule, lambda drafter: self._drafting(drafter, told))
        stopping = self.stopping(inputs, self._steps(max_seconds))
        counted = {"control": resolved.control, "stats": stats, "on_step": on_step}
        for _ in run(target, resolved.drafter, rule, inputs, stopping=stopping, noise=noise, **counted):
            pass
        return self._sounded(stopping, stats, clock, on_sound)

    def _steps(self, max_seconds: float | None) -> int | None:
        if max_seconds is not None and int(max_seconds * self.pace) < 1:
            raise ValueError(f"max_seconds is {max_seconds}: ask for at least {1 / self.pace:.3g}, one frame of this model")
        return None if max_seconds is None else int(max_seconds * self.pace)

    def _drafting(self, drafter: Any, told: tuple[Any, ...]) -> Target | None:
        """Return a model as a target that drafts; None for plain decoding and for drafter objects. ValueError for anything else."""
        if drafter is None or isinstance(drafter, NoDraft):
            return None
        if not self.sigma > 0:
            raise ValueError(
                f"sigma_out is {self.sigma}, and two heads never make the same latent: make {type(self).__name__} with sigma_out above 0 "
                f"({SIGMA_OUT} is usual), or leave drafter out"
            )
        if hasattr(drafter, "begin"):
            return None
        own = self.own(drafter)
        if own is None:
            named = repr(drafter) if isinstance(drafter, str) else type(drafter).__name__
            raise ValueError(f"drafter {named} writes no latents: draft with a smaller model of the target's class, or leave drafter out")
        return own.drafting(*told)

    def _sounded(self, stopping: DefaultStopping, stats: Stats, clock: float, on_sound: Callable[[int, Tensor], None] | None) -> Speech:
        rows = [self.latents(row) for row in stopping.outputs]
        waves, first = [], [float("nan")] * len(rows)
        if self.sounds:
            waves, first = decode_rows([len(row) for row in rows], lambda row: self.speak(rows[row]), clock, on_sound)
        lengths = torch.tensor([len(row) for row in rows], device=self.model.device)
        tokens, worst = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [float("nan")] * len(rows)
        return Speech(
            tokens, lengths, stats, waves, self.rate, first, worst, perf_counter() - clock, finish_reasons=tuple(stopping.finish_reasons)
        )


def checked_sigma(sigma_out: float) -> float:
    """Return `sigma_out`. ValueError unless it is a number from 0 on."""
    if not 0 <= sigma_out < inf:
        raise ValueError(f"sigma_out is {sigma_out}: a deviation is a number from 0 on; {SIGMA_OUT} is usual, 0 for plain decoding only")
    return sigma_out


def _checked_rule(rule: Accept) -> Accept:
    """Return `rule`. ValueError for rules that test values for equality, and for rules for trees."""
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
