"""Base of speech models: what every adapter provides, and streamed sound.

A step is what one pass of the model commits: a code (`CodecLM`) or a frame of K codes (`frames.FrameModel`).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import MinP, Pipeline, pipeline
from mmspec.core.stopping import EndTest
from mmspec.models.compat import generation_defaults
from mmspec.models.family import Family
from mmspec.models.guidance import Guided
from mmspec.run.drop_in.arguments import READ_ELSEWHERE, unread_field
from mmspec.speech.sound.stream import SoundStream
from mmspec.speech.sound.voice_sample import VoiceSample
from mmspec.utils.names import shown


@dataclass(frozen=True)
class SpeechSampling:
    """Sampling settings of a model; a call may override any of them."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    guidance: float | None = None  # classifier-free guidance, for models that have unconditional prompts
    last: tuple[Processor, ...] = ()  # samplers that go behind all others, such as `speech.sampling.ras.RepetitionAware`

    def processors(self) -> Pipeline:
        """Return the settings as processors, without guidance."""
        names = ("temperature", "top_k", "top_p", "repetition_penalty")
        return Pipeline((*pipeline(**{name: getattr(self, name) for name in names}).steps, *self.last))


class SpeechModel(ABC):
    """Base class of text-to-speech models.

    Attributes:
        model: the network.
        rate: samples a second.
        pace: steps a second.
        voices: names of the voices; empty if there is one voice only, or voices are given in another way.
        clones: True if a voice may be a `VoiceSample`.
        longest: largest number of steps, or None.
        usual: largest number of steps of a call that gives no duration; None for `longest`.
        lead: steps of a row beyond those of its sound, such as a delay's.
        sampling: default sampling settings.
        forced: True if `closing` ends rows that reach their longest duration, as if they had ended by themselves.
    """

    model: Any
    rate: int
    pace: float
    voices: tuple[str, ...] = ()  # those it can be asked for; none where it has one voice only, or takes voices some other way
    clones: bool = False
    longest: int | None = None  # steps it can write
    usual: int | None = None
    lead: int = 0  # steps that a row takes beyond those its sound is made of: a delay's
    sampling: SpeechSampling = SpeechSampling()
    forced: bool = False

    @abstractmethod
    def encode(self, texts: Sequence[str], voices: Sequence[Any]) -> Any:
        """Return the prompts of a batch as the family's target takes them. ValueError names the first invalid text or voice."""
        ...

    @property
    @abstractmethod
    def family(self) -> Family:
        """The family that drives the network."""
        ...

    @property
    @abstractmethod
    def ends(self) -> Sequence[int] | EndTest:
        """The steps that end a row, or a test for them."""
        ...

    @property
    def draws_always(self) -> bool:
        """True if a part of a step is drawn at temperature 0, too, unless the accept rule takes the likeliest one."""
        return False

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints: banned and forced codes, by position and history. They run before every sampler."""
        return ()

    def drawn(self, sampling: SpeechSampling) -> SpeechSampling:
        """Return the settings of a call as the pipeline applies them, for models whose samplers replace temperature and truncation."""
        return sampling

    def closing(self, steps: int) -> tuple[Processor, ...]:
        """Return the constraints that end a row within `steps`, where these are known. They run before `rules`."""
        return ()

    def paired(self, prompt: Any) -> Any:
        """Return `prompt` with as many unconditional rows after it, for guidance. ValueError for models without such prompts."""
        raise ValueError(f"{type(self.model).__name__} has no unconditional prompts: leave guidance out")

    def guided(self, steps: tuple[Processor, ...], sampling: SpeechSampling) -> Guided:
        """Return how conditional and unconditional scores are combined, before the processors `steps`. ValueError for an unsupported
        scale.
        """
        assert sampling.guidance is not None
        return Guided(steps, sampling.guidance)

    @abstractmethod
    def stream(self) -> SoundStream:
        """Open a stream that decodes the steps of one row to sound."""
        ...

    def streams(self, prompt: Any, rows: int) -> list[SoundStream]:
        """Open the streams of a batch.

        Args:
            prompt: what `encode` returned.
            rows: number of rows.

        Returns:
            One stream per row.
        """
        return [self.stream() for _ in range(rows)]

    def sound(self, steps: list[Any]) -> Tensor:
        """Return the wave [samples] of a row's steps."""
        import torch

        stream = self.stream()
        pieces = [*stream.push(steps), *stream.close()]
        return torch.cat(pieces) if pieces else torch.zeros(0)


def one_voice_each(voice: Any, texts: Sequence[str], known: Sequence[str], clones: bool = False) -> list[Any]:
    """Return a voice for every text.

    Args:
        voice: a name, a `VoiceSample`, a list with one of them or None per text, or None.
        texts: the texts.
        known: names of the model's voices.
        clones: True if the model takes recordings.

    Returns:
        One voice per text.

    Raises:
        ValueError: for an unknown voice, a recording where none is taken, or a wrong number of voices.
    """
    if voice is not None and not isinstance(voice, str | VoiceSample | list | tuple):
        raise ValueError(f"voice is a {type(voice).__name__}: give the name of a voice or a VoiceSample, or one per text")
    voices: list[Any] = [*voice] if isinstance(voice, list | tuple) else [voice] * len(texts)
    if len(voices) != len(texts):
        raise ValueError(f"{len(voices)} voices for {len(texts)} texts: give one voice, or one a text")
    for one in voices:
        if isinstance(one, VoiceSample):
            if not clones:
                raise ValueError("this model takes no recordings as voices: leave the VoiceSample out")
        elif one is not None and one not in known:
            without = "give a VoiceSample, or leave voice out" if clones else "this model takes none, leave voice out"
            raise ValueError(f"unknown voice {shown(one)}; " + (f"valid: {', '.join(known)}" if known else without))
    return voices


DRAWS = ("do_sample", "temperature", "top_k", "top_p", "min_p")
"""Settings of a generation config that all families of codes apply."""


def sampling_of(config: Any, honoured: Collection[str] = DRAWS) -> SpeechSampling:
    """Return the sampling settings of a generation config: the one place that reads them, for all families.

    Args:
        config: the generation config, such as a published checkpoint has it.
        honoured: settings that the family applies: of `DRAWS`, and of guidance_scale and repetition_penalty.

    Returns:
        The settings; temperature 0 where the config does not sample. None stands for `generate`'s own number.

    Raises:
        ValueError: naming a setting that changes steps and is not applied, or whose value is invalid.
    """
    usual, drawn = generation_defaults(), config.do_sample
    if drawn not in (None, True, False):
        raise ValueError(f"generation_config.do_sample is {drawn!r}: give true or false")
    if unread := unread_field(config, {*honoured, *READ_ELSEWHERE}):
        name, value, off = unread
        raise ValueError(f"generation_config.{name} is {value!r}, which this family does not apply: set it to {off}")
    found: dict[str, Any] = {
        name: getattr(config, name, None) for name in (*DRAWS, "repetition_penalty", "guidance_scale") if name in honoured
    }
    found |= {name: usual.get(name) for name in ("temperature", "top_k") if name in found and found[name] is None}
    scale, penalty, least = (found.pop(name, None) for name in ("guidance_scale", "repetition_penalty", "min_p"))
    if not found.pop("do_sample", False):
        found, least = {"temperature": 0.0}, None
    numbers: dict[str, Any] = found | {"min_p": least, "repetition_penalty": penalty}
    if lists := [name for name, value in numbers.items() if isinstance(value, list | tuple)]:
        raise ValueError(f"generation_config.{lists[0]} is {numbers[lists[0]]!r}: give one number")
    try:
        pipeline(**numbers)
    except ValueError as error:
        raise ValueError(f"generation_config.{error}") from None
    if scale is not None and not (isinstance(scale, (int, float)) and 0 <= scale < inf):
        raise ValueError(f"generation_config.guidance_scale is {scale!r}: give a number from 0 on; 1 is no guidance")
    return SpeechSampling(**found, repetition_penalty=penalty, guidance=scale, last=(MinP(least),) if least else ())
