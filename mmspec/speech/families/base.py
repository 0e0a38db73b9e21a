"""How a model writes speech: what every adapter states, and sound from what it writes, piece by piece.

A step is what one pass of the model commits: a code (`CodecLM` and its kin) or a frame of K codes (`frames.FrameModel`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.processors.pipeline import Processor
from mmspec.core.stopping import EndTest
from mmspec.models.guidance import Guided
from mmspec.models.target import Family
from mmspec.speech.sound.stream import SoundStream


@dataclass(frozen=True)
class SpeechSampling:
    """How steps are drawn. A model has settings it is meant to be drawn with; a call may change any of them."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    guidance: float | None = None  # classifier-free guidance, for models that have unconditional prompts
    last: tuple[Processor, ...] = ()  # samplers that go behind all others, such as `speech.sampling.ras.RepetitionAware`


class SpeechModel(ABC):
    """A text-to-speech model: `model` is the network, `rate` the samples and `pace` the steps of a second of sound."""

    model: Any
    rate: int
    pace: float
    voices: tuple[str, ...] = ()  # those it can be asked for; none where it has one voice only, or takes voices some other way
    longest: int | None = None  # steps it can write
    lead: int = 0  # steps that a row takes beyond those its sound is made of: a delay's
    sampling: SpeechSampling = SpeechSampling()

    @abstractmethod
    def encode(self, texts: Sequence[str], voices: Sequence[str | None]) -> Any:
        """The prompts of a batch, as the family's target takes them. ValueError names the first text or voice it cannot say, and why."""
        ...

    @property
    @abstractmethod
    def family(self) -> Family:
        """How the engine drives the network."""
        ...

    @property
    @abstractmethod
    def ends(self) -> Sequence[int] | EndTest:
        """The steps that end a row, or what tells them."""
        ...

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """What may never be said: bans and forced codes, by position and history. They go before every sampler."""
        return ()

    def closing(self, steps: int) -> tuple[Processor, ...]:
        """What must be said for a row to end well within `steps`, where that is known beforehand. It goes before `rules`."""
        return ()

    def paired(self, prompt: Any) -> Any:
        """`prompt`, and behind it as many rows that tell nothing, for guidance. ValueError where the model has no such prompts."""
        raise ValueError(f"{type(self.model).__name__} has no unconditional prompts: leave guidance out")

    def guided(self, steps: tuple[Processor, ...], sampling: SpeechSampling) -> Guided:
        """How what is said of both halves is mixed, before the processors `steps`. ValueError for a scale the model does not take."""
        assert sampling.guidance is not None
        return Guided(steps, sampling.guidance)

    @abstractmethod
    def stream(self) -> SoundStream:
        """Sound of one row, step by step."""
        ...

    def sound(self, steps: list[Any]) -> Tensor:
        """The wave [samples] of a row's steps."""
        import torch

        stream = self.stream()
        pieces = [*stream.push(steps), *stream.close()]
        return torch.cat(pieces) if pieces else torch.zeros(0)


def one_voice_each(voice: str | Sequence[str] | None, texts: Sequence[str], known: Sequence[str]) -> list[str | None]:
    """A voice for every text. ValueError for one that is not `known`, or for other than one or one each."""
    if voice is not None and not isinstance(voice, str | list | tuple):
        raise ValueError(f"voice is a {type(voice).__name__}: give the name of a voice, or one per text")
    voices: list[str | None] = [voice] * len(texts) if voice is None or isinstance(voice, str) else [*voice]
    if len(voices) != len(texts):
        raise ValueError(f"{len(voices)} voices for {len(texts)} texts: give one voice, or one a text")
    for one in voices:
        if one is not None and one not in known:
            valid = f"valid: {', '.join(known)}" if known else "this model takes none, leave voice out"
            raise ValueError(f"unknown voice {one!r}; {valid}")
    return voices


def sampling_of(config: Any) -> dict[str, Any]:
    """What transformers' `generate` samples with under `config`: temperature 0 where it does not sample."""
    if not config.do_sample:
        return {"temperature": 0.0}
    temperature, most = config.temperature, config.top_k  # None: `generate`'s own
    return {
        "temperature": 1.0 if temperature is None else temperature,
        "top_k": 50 if most is None else most,
        "top_p": config.top_p,
        "min_p": config.min_p,
    }
