"""CosyVoice 2 and 3 (Du et al. 2024, arXiv 2412.10117; 2025, arXiv 2505.17589): text to speech codes, exactly; sound by its own package.

The language model writes codes under repetition-aware sampling, at least 2 and at most 20 for each token of text. As in the published code,
a text's minimum forbids one value, the first behind the codes, so that other values may end a row earlier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Processor, ban
from mmspec.models.families.registry import positions_of
from mmspec.models.family import Family
from mmspec.speech.families.base import SpeechModel, SpeechSampling
from mmspec.speech.families.codec_lm import LeastOutputs
from mmspec.speech.families.letters import padded
from mmspec.speech.language_models.cosyvoice_network import CosyVoiceFamily, CosyVoiceIds
from mmspec.speech.sampling.ras import repetition_aware
from mmspec.speech.sound.stream import SoundStream

PACE, RATE = 25, 24000
"""Codes and samples a second."""
LEAST, MOST = 2, 20
"""Codes for each token of text."""
PREFIX = "You are a helpful assistant.<|endofprompt|>"
"""Beginning of every prompt of version 3."""
SAMPLING = SpeechSampling(last=(repetition_aware(strike=True),))


@dataclass(frozen=True)
class CosyVoicePrompt:
    """A voice as the language model reads it, and as the flow decoder does.

    Args:
        text: the words said in the recording, as text.
        codes: the recording's codes.
        acoustic: what the flow decoder needs.
    """

    text: str
    codes: Sequence[int]
    acoustic: Any = None


class CosyVoiceSound(Protocol):
    """Protocol of what maps codes to sound, and voices to prompts."""

    rate: int
    voices: Sequence[str]

    def prompt(self, voice: Any) -> CosyVoicePrompt:
        """Read a voice: a name, a `VoiceSample`, or None."""
        ...

    def stream(self, voice: CosyVoicePrompt) -> SoundStream:
        """Open the stream of one row; it takes codes."""
        ...


@dataclass(frozen=True)
class MostOutputs:
    """Processor: row r ends by `end` after `most[r]` outputs."""

    end: int
    most: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        late = history.position >= torch.tensor(self.most, device=scores.device)[:, None]
        others = torch.arange(scores.shape[-1], device=scores.device) != self.end
        return ban(scores, late[..., None] & others)


@dataclass(frozen=True)
class CosyVoice(SpeechModel):
    """A CosyVoice 2 or 3: its language model, and what maps codes to sound.

    Args:
        model: a `cosyvoice_network`.
        tokenizer: the tokenizer of text.
        ids: the ids.
        codec: the flow decoder and vocoder; None for codes alone.
        sampling: default sampling settings.
    """

    model: Any
    tokenizer: Any
    ids: CosyVoiceIds
    codec: CosyVoiceSound | None = None
    sampling: SpeechSampling = field(default=SAMPLING)
    clones = True
    pace = float(PACE)

    @property
    def rate(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Samples a second."""
        return RATE if self.codec is None else self.codec.rate

    @property
    def voices(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the voices."""
        return () if self.codec is None else tuple(self.codec.voices)

    @property
    def longest(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Largest number of codes: half of the positions; the rest is for prompts."""
        return (positions_of(self.model) or 2 * 30 * PACE) // 2

    @cached_property
    def family(self) -> Family:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The family that drives the network."""
        return CosyVoiceFamily.of(self.model)

    @property
    def ends(self) -> Sequence[int]:
        """The values that end a row."""
        return range(self.ids.codes, self.ids.values)

    def drawn(self, sampling: SpeechSampling) -> SpeechSampling:
        """Return the settings of a call; at temperature 0 the likeliest value is taken, without repetition-aware sampling."""
        return replace(sampling, last=()) if sampling.temperature == 0 and sampling.last == self.sampling.last else sampling

    def encode(self, texts: Sequence[str], voices: Sequence[Any]) -> dict[str, Any]:
        """Return the prompts of a batch; see `SpeechModel.encode`."""
        if isinstance(texts, str) or not texts:
            raise ValueError("texts must be a list of texts: give at least one")
        told = [self._prompt(voice) for voice in voices]
        asked = [self._tokens(text) for text in texts]
        rows = [self._row(text, voice) for text, voice in zip(asked, told, strict=True)]
        most = max(map(len, rows))
        if most > self.longest:
            raise ValueError(f"a prompt of {most} ids is too long: the model takes {self.longest}; cut text or recording")
        found = {name: value.to(self.model.device) for name, value in padded(rows).items()}
        return found | {"said": torch.tensor([len(text) for text in asked]), "voices": told}

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        said = prompt["said"].tolist()
        least = LeastOutputs((self.ids.codes,), tuple(LEAST * count for count in said))
        return (least, MostOutputs(self.ids.end, tuple(MOST * count for count in said)))

    def stream(self) -> SoundStream:
        """Open a stream in the first voice; see `SpeechModel.stream`."""
        return self._stream(self._prompt(None))

    def streams(self, prompt: Any, rows: int) -> list[SoundStream]:
        """Open the streams of a batch in its voices; see `SpeechModel.streams`."""
        return [self._stream(voice) for voice in prompt["voices"]]

    def _stream(self, voice: CosyVoicePrompt) -> SoundStream:
        return Codes(_Silent() if self.codec is None else self.codec.stream(voice), self.ids.codes)

    def _prompt(self, voice: Any) -> CosyVoicePrompt:
        if self.codec is not None:
            return self.codec.prompt(voice)
        if voice is not None:
            raise ValueError("a recording is read by the package cosyvoice, which is not given: load with codec=")
        return CosyVoicePrompt("", ())

    def _row(self, text: list[int], voice: CosyVoicePrompt) -> list[int]:
        """Ids of one prompt: the start, the voice's text and the text, the task, the voice's codes."""
        before = PREFIX + voice.text if self.ids.version == 3 else voice.text
        tokens = [*(self._ids(before) if before else ()), *text]
        return [self.ids.start, *(self.ids.text + token for token in tokens), self.ids.task, *voice.codes]

    def _tokens(self, text: Any) -> list[int]:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words")
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]


class Codes:
    """Stream of values: codes go on to `sound`, values that end a row make none.

    Args:
        sound: the stream of codes.
        codes: number of codes.
    """

    def __init__(self, sound: SoundStream, codes: int):
        self.sound, self.codes = sound, codes

    def push(self, steps: list[int]) -> Any:
        """Decode the next values; see `SoundStream.push`."""
        return self.sound.push([step for step in steps if step < self.codes])

    def close(self) -> Any:
        """Return what is left; see `SoundStream.close`."""
        return self.sound.close()


class _Silent:
    """Stream without sound, of a model loaded without its acoustic part."""

    def push(self, steps: list[int]) -> Any:
        return iter(())

    def close(self) -> Any:
        return iter(())
