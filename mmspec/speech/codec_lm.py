"""Codec language models: a causal model that writes codec codes behind a text, in one stream of ids (Llasa, Orpheus, CosyVoice and kin).

Several books may share the stream, one after the other (Orpheus writes 7 ids a frame). A drafter needs no more than the target's ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.families import family_of, positions_of
from mmspec.core.hf import Family
from mmspec.core.processors import Processor, Suppress
from mmspec.speech.family import Sampling, SoundStream, SpeechModel, one_voice_each


class Codec(Protocol):
    """Sound from codes."""

    def stream(self) -> SoundStream:
        """Of one row; it takes codes."""
        ...


@dataclass(frozen=True)
class Letters:
    """Texts to ids by a tokenizer and a template that holds {text} and, where there are voices, {voice}."""

    tokenizer: Any
    template: str = "{text}"
    voices: tuple[str, ...] = ()
    longest: int | None = None  # ids of a prompt

    def __call__(self, texts: Sequence[str], voices: Sequence[str | None]) -> dict[str, Tensor]:
        """Ids [B, P] and their mask. ValueError for a text that is empty, has what the tokenizer lacks, or is too long."""
        if isinstance(texts, str):
            raise ValueError(f"texts is the one text {texts!r}: give a list of texts, one an utterance")
        if not texts:
            raise ValueError("no texts: give at least one")
        chosen = one_voice_each(voices, texts, self.voices)
        told = [voice or next(iter(self.voices), None) for voice in chosen]
        prompts = [self.template.format(text=self._checked(text), voice=voice) for text, voice in zip(texts, told, strict=True)]
        found = self.tokenizer(prompts, return_tensors="pt", padding=True)
        lengths = found["attention_mask"].sum(1).tolist()
        if self.longest is not None and max(lengths) > self.longest:
            worst = texts[lengths.index(max(lengths))]
            raise ValueError(
                f"text {_short(worst)} is too long: {max(lengths)} ids where the model takes {self.longest}; cut it into sentences"
            )
        return {key: found[key] for key in ("input_ids", "attention_mask")}

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words to say")
        lacking = self.tokenizer.unk_token_id
        if lacking is not None and lacking in self.tokenizer(text)["input_ids"]:
            bad = next((mark for mark in text if lacking in self.tokenizer(f"a{mark}a")["input_ids"]), text)
            raise ValueError(f"text {_short(text)} has {bad!r}, which the tokenizer lacks: write it in words it has")
        return text


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


@dataclass(frozen=True)
class CodecLM(SpeechModel):
    """`model` writes ids `first` .. `first + codes - 1` for codes, and `end` behind the last one.

    `longest` is bounded by the model's positions, less the longest prompt.
    """

    model: Any
    codec: Codec
    letters: Letters
    first: int
    codes: int
    end: int
    rate: int
    pace: float
    sampling: Sampling = field(default_factory=Sampling)
    extra: tuple[Processor, ...] = ()  # further rules: the order of books, a least length

    @property
    def voices(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.letters.voices

    @property
    def longest(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        positions = positions_of(self.model)
        return None if positions is None else positions - (self.letters.longest or 0)

    @property
    def ids(self) -> Tensor:
        """The ids of codes 0, 1, ... [V]: where rules that know codes find them."""
        return torch.arange(self.first, self.first + self.codes)

    def encode(self, texts: Sequence[str], voices: Sequence[str | None]) -> dict[str, Tensor]:
        return {key: value.to(self.model.device) for key, value in self.letters(texts, voices).items()}

    @cached_property
    def family(self) -> Family:  # pyright: ignore[reportIncompatibleVariableOverride]
        return family_of(self.model)

    @property
    def ends(self) -> Sequence[int]:
        return (self.end,)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        size = self.model.config.get_text_config(decoder=True).vocab_size
        spoken = {self.end, *range(self.first, self.first + self.codes)}
        return (Suppress(tuple(i for i in range(size) if i not in spoken)), *self.extra)

    def stream(self) -> SoundStream:
        return _Codes(self.codec.stream(), self.first, self.end)


class _Codes:
    """Ids to codes; the end is no sound."""

    def __init__(self, sound: SoundStream, first: int, end: int):
        self.sound, self.first, self.end = sound, first, end

    def push(self, steps: list[int]) -> Iterator[Tensor]:
        return self.sound.push([step - self.first for step in steps if step != self.end])

    def close(self) -> Iterator[Tensor]:
        return self.sound.close()
