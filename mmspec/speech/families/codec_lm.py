"""Codec language models: a causal model that writes codec codes after a text, in one stream of ids (Llasa, Orpheus, CosyVoice).

Several books may share the stream, one after the other: Orpheus writes 7 ids a frame, and which ids are allowed depends on the position. A
drafter needs only the target's ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Processor, ban
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.family import Family
from mmspec.models.proof.require import require
from mmspec.speech.families.base import SpeechModel, SpeechSampling
from mmspec.speech.families.letters import Letters
from mmspec.speech.sampling.codebook_order import InterleavedCodebooks
from mmspec.speech.sound.stream import AfterCodes, SoundStream


class Codec(Protocol):
    """Protocol of codecs: sound from codes."""

    def stream(self) -> SoundStream:
        """Open the stream of one row; it takes codes, or frames of K codes."""
        ...


@dataclass(frozen=True)
class LeastOutputs:
    """Processor: forbids `ends` before row r has `least[r]` outputs (CosyVoice: twice as many as its text has ids)."""

    ends: tuple[int, ...]
    least: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        early = history.position < torch.tensor(self.least, device=scores.device)[:, None]
        ends = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
        ends[list(self.ends)] = True
        return ban(scores, early[..., None] & ends)


@dataclass(frozen=True)
class CodecLM(SpeechModel):
    """A codec language model: writes ids `first` .. `first + codes - 1` for codes, and `end` after the last one.

    Args:
        model: the causal model.
        codec: the codec.
        letters: maps texts to prompts.
        first: id of code 0.
        codes: number of codes.
        end: id after the last code.
        rate: samples a second.
        pace: ids a second.
        sampling: default sampling settings.
        extra: further constraints.
        books: half-open ranges of ids for each place of a frame of several ids. The codec then takes frames; an incomplete last frame
            makes no sound.
        least: smallest number of ids for each id of the text.
        usual: most ids of a call that gives no `max_seconds`.
    """

    model: Any
    codec: Codec
    letters: Letters
    first: int
    codes: int
    end: int
    rate: int
    pace: float
    sampling: SpeechSampling = field(default_factory=SpeechSampling)
    extra: tuple[Processor, ...] = ()  # further rules
    books: tuple[tuple[int, int], ...] = ()
    least: float = 0.0
    usual: int | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        tokenizer: Any,
        codec: Any,
        *,
        pattern: str,
        end: str,
        template: str = "{text}",
        voices: Sequence[str] = (),
        places: int = 1,
        skip: int = 0,
        codes: int | None = None,
        longest: int | None = None,
        sampling: SpeechSampling | None = None,
        extra: Sequence[Processor] = (),
        least: float = 0.0,
        usual: int | None = None,
    ) -> "CodecLM":
        """The language model `model` whose ids are found by the names of its tokens.

        Args:
            tokenizer: its tokenizer, which has the codes' tokens too.
            codec: sound from codes: `HFCodec`, `WindowCodec`, or anything with `rate`, `pace` (codes a second), `size` and `stream()`.
            pattern: the name of a code's token, such as "<|s_{}|>" (Llasa) or "<custom_token_{}>" (Orpheus).
            end: the name of the token behind the last code.
            template: the prompt around {text} and, where there are voices, {voice}.
            places: ids a frame. The token of code c at place k then is number `skip` + k * codes + c of the pattern.
            skip: the pattern's number of code 0.
            codes: codes of a book, where the codec does not say.
            longest: ids a prompt may have; by default a quarter of the model's positions.
            least: ids at least for each id of the text.
            usual: most ids of a call that gives no `max_seconds`; by default what the model has room for.

        Raises ValueError, in one line, where the tokenizer or the model lacks what is needed.
        """
        size = codes or getattr(codec, "size", None)
        if size is None:
            raise ValueError("nothing says how many codes a book has: give codes")
        first = _first_of(tokenizer, pattern, skip, size * places)
        (stop,) = ids_of(tokenizer, [end], "end")
        values, most = model.config.get_text_config(decoder=True).vocab_size, max(stop, first + size * places - 1)
        if most >= values:
            raise ValueError(f"{end} and {pattern} need ids up to {most}, but the model has {values} values: resize its embeddings")
        positions = positions_of(model)
        longest = longest or (None if positions is None else positions // 4)
        letters = Letters(tokenizer, template, tuple(voices), longest)
        books = InterleavedCodebooks.of_sizes(first, [size] * places).ranges if places > 1 else ()
        drawn = SpeechSampling() if sampling is None else sampling
        pace = codec.pace * places
        return cls(model, codec, letters, first, size * places, stop, codec.rate, pace, drawn, tuple(extra), books, least, usual)

    @property
    def voices(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the voices."""
        return self.letters.voices

    @property
    def clones(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if a voice may be a recording."""
        return self.letters.clones

    @property
    def longest(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Largest number of ids: the model's positions less the longest prompt."""
        positions = positions_of(self.model)
        return None if positions is None else positions - (self.letters.longest or 0)

    def encode(self, texts: Sequence[str], voices: Sequence[Any]) -> dict[str, Tensor]:
        """Return the prompts of a batch; see `SpeechModel.encode`."""
        prompt = {key: value.to(self.model.device) for key, value in self.letters(texts, voices).items()}
        return prompt | {"said": torch.tensor([self.letters.count(text) for text in texts])} if self.least else prompt

    @cached_property
    def family(self) -> Family:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The family that drives the network."""
        return family_of(self.model)

    @property
    def trees(self) -> bool:
        """True if trees may be drafted. ValueError where a self-test shows that the model cannot be run exactly."""
        return require(self.model, self.family).trees

    @property
    def ends(self) -> Sequence[int]:
        """The ids that end a row."""
        return (self.end,)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The ids of each place of a frame."""
        return self.books or ((self.first, self.first + self.codes),)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        spoken: list[Processor] = [InterleavedCodebooks(self.places, (self.end,))]
        if self.least:
            spoken.append(LeastOutputs((self.end,), tuple(int(self.least * count) for count in prompt["said"].tolist())))
        return (*spoken, *self.extra)

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return _Codes(self.codec.stream(), self.places, self.end)

    def streams(self, prompt: Any, rows: int) -> list[SoundStream]:
        """Open the streams of a batch; where a prompt ends in codes of a recording, its sound goes before and is left out."""
        if "codes" not in prompt:
            return super().streams(prompt, rows)
        real = [ids[mask.bool()] for ids, mask in zip(prompt["input_ids"], prompt["attention_mask"], strict=True)]
        before = [(ids[len(ids) - count :] - self.first).tolist() for ids, count in zip(real, prompt["codes"].tolist(), strict=True)]
        return [_Codes(AfterCodes(self.codec.stream(), codes, self._samples), self.places, self.end) for codes in before]

    @property
    def _samples(self) -> int:
        """Samples of a code."""
        return round(self.rate / self.pace)


class _Codes:
    """Maps ids to codes, and to frames once they are complete; the end makes no sound."""

    def __init__(self, sound: SoundStream, places: tuple[tuple[int, int], ...], end: int):
        self.sound, self.places, self.end = sound, places, end
        self.begun: list[int] = []  # codes of a frame that is not whole yet

    def push(self, steps: list[int]) -> Iterator[Tensor]:
        return self.sound.push([frame for step in steps if step != self.end for frame in self._frame(step)])

    def _frame(self, step: int) -> Iterator[Any]:
        """The frame that id `step` completes, if it does."""
        self.begun.append(step - self.places[len(self.begun)][0])
        if len(self.begun) == len(self.places):
            frame, self.begun = self.begun, []
            yield frame if len(self.places) > 1 else frame[0]

    def close(self) -> Iterator[Tensor]:
        return self.sound.close()


def ids_of(tokenizer: Any, names: list[str], what: str) -> list[int]:
    """Return the ids of tokens by their names.

    Args:
        tokenizer: the tokenizer.
        names: the tokens.
        what: what to check, for the message.

    Returns:
        An id each.

    Raises:
        ValueError: for the first token that the tokenizer lacks.
    """
    ids = tokenizer.convert_tokens_to_ids(names)
    for name, one in zip(names, ids, strict=True):
        if one is None or (one == tokenizer.unk_token_id and name != tokenizer.unk_token):
            raise ValueError(f"the tokenizer has no token {name!r}: check {what}, or load the tokenizer that came with the model")
    return ids


def _first_of(tokenizer: Any, pattern: str, skip: int, count: int) -> int:
    """Id of the first of `count` tokens named by `pattern`. ValueError unless their ids are consecutive."""
    if pattern.format("x") == pattern:
        raise ValueError(f"pattern {pattern!r} has no place for a number: write it as {{}}, such as <|s_{{}}|>")
    ids = ids_of(tokenizer, [pattern.format(number) for number in range(skip, skip + count)], "pattern, skip and codes")
    wrong = next((place for place, one in enumerate(ids) if one != ids[0] + place), None)
    if wrong is not None:
        name = pattern.format(skip + wrong)
        raise ValueError(f"token {name!r} has id {ids[wrong]}, not {ids[0] + wrong}: the ids of {pattern} must follow one another")
    return ids[0]
