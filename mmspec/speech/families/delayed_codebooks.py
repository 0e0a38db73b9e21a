"""Base of models with delayed codebooks: an encoder that reads the text once, delayed frames, and sound from complete frames only."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.distributions.frame import Frame
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.rows.changes import join_tensors, rows_of
from mmspec.models.families.base import attention_mask
from mmspec.models.family import Family
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache, with_cross_attention
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import SpeechModel
from mmspec.speech.families.letters import Letters
from mmspec.speech.sampling.delay import frame_distribution, undelayed
from mmspec.speech.sampling.recorded import RecordedFrames
from mmspec.speech.sound.stream import SoundStream

Inputs = Mapping[str, Tensor]
"""One prompt as the class's tokenizer or processor returns it: input_ids [1, P] and their attention_mask."""


@dataclass(frozen=True)
class Texts:
    """Texts as ids, padded on the right; for guidance followed by as many unconditional rows."""

    ids: Tensor  # [R, P]
    mask: Tensor  # [R, P] bool
    writer: "DelayModel"  # that is to say them
    untold: int = 0  # rows that tell nothing, the last ones
    recorded: RecordedFrames | None = None  # recordings that the frames continue

    @property
    def twins(self) -> "Texts":
        """The texts followed by as many unconditional rows."""
        recorded = None if self.recorded is None else self.recorded.twins
        return replace(self, ids=self.ids.repeat(2, 1), mask=self.mask.repeat(2, 1), untold=len(self.ids), recorded=recorded)


class EncodedText:
    """What a session keeps of its encoder. Its rows may change; see `core.rows.changes.ChangesRows`.

    Args:
        cache: the pair of caches around the session's slots.
        states: [R, P, D] as the decoder's cross-attention reads them.
        told: bool [R, P], which of them are of the text.
        decoder: the module that reads them.
    """

    def __init__(self, cache: Any, states: Tensor, told: Tensor, decoder: Any):
        self.cache, self.states, self.told, self.decoder = cache, states, told, decoder
        self._measure()

    joinable = True

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows."""
        self.states, self.told = rows_of(self.states, rows), rows_of(self.told, rows)
        for layer in self._layers:
            layer.keys, layer.values = rows_of(layer.keys, rows), rows_of(layer.values, rows)
        self._measure()

    def join_rows(self, other: "EncodedText") -> None:
        """Append the rows of another one; shorter texts are padded on the right."""
        self.states, self.told = (join_tensors(getattr(self, name), getattr(other, name), left=False) for name in ("states", "told"))
        for mine, theirs in zip(self._layers, other._layers, strict=True):
            mine.keys, mine.values = _joined(mine.keys, theirs.keys), _joined(mine.values, theirs.values)
        self._measure()

    @property
    def _layers(self) -> list[Any]:
        """The decoder layers' keys and values of the text [R, heads, P, width], once there are any."""
        return [layer for layer in self.cache.cross_attention_cache.layers if layer.is_initialized]

    def _measure(self) -> None:
        self.mask = attention_mask(self.told[:, None], self.decoder)  # [R, 1, 1, P] as its attention takes it


def _joined(one: Tensor, other: Tensor) -> Tensor:
    """Keys or values [A, heads, P, width] and [B, heads, Q, width] as [A + B, heads, max(P, Q), width]."""
    return join_tensors(one.transpose(1, 2), other.transpose(1, 2), left=False).transpose(1, 2)


def letters_of(processor: Any, longest: int | None = None) -> Letters | None:
    """Texts as ids by a processor's tokenizer, or a tokenizer; None without either."""
    return None if processor is None else Letters(getattr(processor, "tokenizer", processor), longest=longest)


class DelayModel(SpeechModel):
    """An encoder of texts and a decoder of K books, of which book k lags `delays[k]` steps. Also the engine's family for it.

    A step's value is the frame of ids the decoder commits at once, forced ones included. A drafter reads the texts with its own encoder.
    """

    delays: tuple[int, ...]
    codes: int  # ids of a book that stand for sound, the first ones
    size: int  # ids of a book, those that do not included
    start: int  # what all books hold before the first step
    layers: int
    codec: Any  # anything with `stream`, `rate` and `pace`, such as `hf_codec.HFCodec`
    letters: Letters | None = None

    def _sounding(self, codec: Any) -> None:
        self.codec = codec if hasattr(codec, "stream") else HFCodec(codec)
        self.rate, self.pace = self.codec.rate, self.codec.pace

    @abstractmethod
    def hear(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Run the encoder on `texts`; returns its states [R, P, D] and their mask [R, P]."""
        ...

    @abstractmethod
    def scores(self, layout: Layout, heard: EncodedText, keep: int) -> Tensor:
        """Scores [R, keep, K, V] after the last `keep` columns of `layout`."""
        ...

    # --- prompts ------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def known(self) -> int:
        """Ids the text encoder knows."""
        ...

    def encode(self, texts: Sequence[str | Inputs], voices: Sequence[Any]) -> Texts:
        """From texts, where the adapter has a tokenizer, or from what the class's own tokenizer or processor returned for one each."""
        if isinstance(texts, (str, Mapping)) or not len(texts):
            raise ValueError("texts must be a list of one prompt or more: a text each, or what the class's tokenizer returned for it")
        rows = [self._row(text, voice, number) for number, (text, voice) in enumerate(zip(texts, voices, strict=True))]
        most = max(len(ids) for ids, _ in rows)
        ids, mask = (torch.stack([F.pad(row[part], (0, most - len(row[0]))) for row in rows]) for part in (0, 1))
        return Texts(ids.to(self.model.device), mask.bool().to(self.model.device), self)

    def _row(self, text: Any, voice: Any, number: int) -> tuple[Tensor, Tensor]:
        """Ids [P] and their mask [P] of one prompt."""
        if not isinstance(text, Mapping) and self.letters is None:
            raise ValueError(f"text {text!r} needs a tokenizer: give the adapter one, or a list of what the class's tokenizer returned")
        inputs: Any = text if isinstance(text, Mapping) else self.letters([text], [voice])  # pyright: ignore[reportOptionalCall]
        ids = torch.as_tensor(inputs["input_ids"]) if "input_ids" in inputs else None
        if ids is None or ids.dim() != 2 or len(ids) != 1 or ids.shape[1] == 0:
            raise ValueError(f"prompt {number} must hold input_ids [1, length]: give what the tokenizer returned for one text")
        if not 0 <= int(ids.min()) <= int(ids.max()) < self.known:
            worst = int(ids.max()) if int(ids.max()) >= self.known else int(ids.min())
            raise ValueError(f"prompt {number} holds id {worst}, but the text encoder knows {self.known}: use the model's own tokenizer")
        mask = inputs.get("attention_mask")
        return ids[0], torch.ones_like(ids[0]) if mask is None else torch.as_tensor(mask)[0]

    def paired(self, prompt: Texts) -> Texts:
        """Return the prompt with unconditional rows; see `SpeechModel.paired`."""
        return prompt.twins

    # --- the engine's family ------------------------------------------------------------------------------------------

    @property
    def family(self) -> Family:
        """The family that drives the network: this object."""
        return self  # pyright: ignore[reportReturnType]

    def prompt(self, model: Any, inputs: Texts) -> tuple[Tensor, Tensor]:
        """One frame [R, 1, K] that says nothing yet, or the recordings' frames [R, P, K]; and the mask."""
        if inputs.recorded is not None:
            return inputs.recorded.frames, inputs.recorded.mask
        frames = torch.full((len(inputs.ids), 1, len(self.delays)), self.start, device=inputs.ids.device)
        return frames, torch.ones_like(frames[..., 0], dtype=torch.bool)

    @torch.no_grad()
    def begin(self, model: Any, inputs: Texts, capacity: int) -> tuple[SlotCache, EncodedText]:
        """Open the cache and the state of one generation; see the family protocol."""
        theirs = inputs.writer
        if (theirs.delays, theirs.size, theirs.start) != (self.delays, self.size, self.start):
            raise ValueError(
                f"the drafter writes {self.size} ids a book behind delays {self.delays}, the target {theirs.size} behind {theirs.delays}: "
                "draft with a model of the same codec"
            )
        states, mask = self.hear(inputs)
        cache = SlotCache(self.layers, capacity)
        return cache, EncodedText(with_cross_attention(cache), states, mask, self.decoder)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: EncodedText, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Scores [R, keep, K, V]. Hidden states are taken by hooks (`models.stack.tapped`), never here."""
        return self.scores(layout, state, keep), None

    @property
    @abstractmethod
    def decoder(self) -> Any:
        """The module whose attention reads the slots."""
        ...

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Frame:
        """Return the distribution of the frame after each column."""
        return frame_distribution(raw, history, processors)

    # --- sound --------------------------------------------------------------------------------------------------------

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return DelayStream(self.codec.stream(), self.delays, self.codes)


class DelayStream:
    """Undoes the delay: a frame is passed on once its last book has been committed; special codes are left out."""

    def __init__(self, sound: SoundStream, delays: Sequence[int], codes: int):
        self.sound, self.delays, self.codes = sound, delays, codes
        self.steps: list[list[int]] = []
        self.done = 0  # frames passed on

    def push(self, steps: list[list[int]]) -> Iterator[Tensor]:
        """Decode the next codes and return the sound they complete."""
        self.steps += steps
        frames = undelayed(self.steps, self.delays, self.done)
        self.done += len(frames)
        return self.sound.push([frame for frame in frames if max(frame) < self.codes])

    def close(self) -> Iterator[Tensor]:
        """Return what is left of the stream; see `SoundStream.close`."""
        return self.sound.close()
