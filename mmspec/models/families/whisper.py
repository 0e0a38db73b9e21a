"""Whisper: the decoder's prompt (start, language, task, timestamps) and the grammar of timestamp tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mmspec.core.processors.history import History, ban
from mmspec.models import compat
from mmspec.models.families.encoder_decoder import Encoded, EncoderDecoder, start_ids
from mmspec.models.slot_cache import SlotCache


@dataclass(frozen=True)
class Whisper(EncoderDecoder):
    """Whisper models. Every row has its own decoder prompt: the language is detected from each row's audio unless it is set."""

    def prepared(self, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """`inputs` with features of one whole window, the encoder's states and the decoder's prompt.

        Args:
            model: a `WhisperForConditionalGeneration`.
            inputs: `input_features` [B, mels, frames] or `encoder_outputs`; `decoder_input_ids` [B, P] are left as they are.

        Returns:
            The inputs, with `decoder_input_ids` [B, P] and, where the encoder had to run for them, `encoder_outputs`.

        Raises:
            ValueError: if the sound is longer than the model's window, or the language is unknown to the model.
        """
        found = dict(inputs)
        if self.source in found:
            found[self.source] = one_window(model, found[self.source])
        if found.get("decoder_input_ids") is None and (self.source in found or "encoder_outputs" in found):
            found |= self._opening(model, found)
        return found

    def prompt(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        return super().prompt(model, self.prepared(model, inputs))

    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Encoded]:
        if self.source in inputs:
            inputs = {**inputs, self.source: one_window(model, inputs[self.source])}
        return super().begin(model, inputs, capacity)

    @torch.no_grad()
    def _opening(self, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The decoder's prompt, and the encoder's states where the language is detected from them."""
        states = inputs.get("encoder_outputs")
        config = opening_config(model)
        if states is None and detects(model, config):
            states = model.get_encoder()(inputs[self.source], return_dict=True)
        rows = len(inputs[self.source]) if states is None else len(states[0])
        outputs = None if states is None else BaseModelOutput(last_hidden_state=states[0])
        try:
            ids = compat.whisper_opening(model, config, outputs, rows)
        except (AttributeError, KeyError, TypeError) as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"the generation config does not define the prompt of {type(model).__name__}: {why}") from None
        return {"decoder_input_ids": ids} | ({} if outputs is None else {"encoder_outputs": outputs})


def opening_config(model: Any) -> Any:
    """A copy of the model's generation config with what its prompt depends on filled in."""
    config = compat.copied(model.generation_config)
    config.decoder_start_token_id = start_ids(model)[0]
    config.return_timestamps = writes_timestamps(config)
    if config.return_timestamps and getattr(config, "no_timestamps_token_id", None) is None:
        raise ValueError(
            "generation_config.return_timestamps is on, but no_timestamps_token_id is not set: set it to the id of <|notimestamps|>"
        )
    return config


def writes_timestamps(config: Any) -> bool:
    """True if a generation config asks for timestamp tokens."""
    return bool(getattr(config, "return_timestamps", None))


def corresponding_ids(model: Any, drafter: Any) -> tuple[tuple[int, int], ...]:
    """Ids of a Whisper and of one that drafts for it which mean the same and which their tokenizers do not tell; none for other models.

    Timestamps, which tokenizers need not list, and for a drafter of one language the task: it ends the target's prompt where timestamps are
    written, and the drafter's own prompt ends in its start token there.
    """
    if {getattr(each.config, "model_type", None) for each in (model, drafter)} != {"whisper"}:
        return ()
    pairs = list(zip(_timestamp_ids(model), _timestamp_ids(drafter), strict=False))
    if getattr(drafter.generation_config, "is_multilingual", None) is False:
        tasks = getattr(model.generation_config, "task_to_id", None) or {}
        pairs += [(number, start_ids(drafter)[0]) for number in tasks.values()]
    return tuple(pairs)


def _timestamp_ids(model: Any) -> range:
    before = getattr(model.generation_config, "no_timestamps_token_id", None)
    return range(0) if before is None else range(before + 1, model.config.vocab_size)


def detects(model: Any, config: Any) -> bool:
    """True if transformers would detect the language: none is set, and `forced_decoder_ids` leave it open."""
    if getattr(config, "lang_to_id", None) is None or getattr(config, "language", None) is not None:
        return False
    forced = getattr(config, "forced_decoder_ids", None) or getattr(model.config, "forced_decoder_ids", None)
    if getattr(config, "task", None) is not None or not forced or forced[0][0] != 1:
        return True
    return forced[0][1] is None


def one_window(model: Any, features: Tensor) -> Tensor:
    """`features` [B, mels, frames] padded with zeros to the frames the encoder takes, as `generate` pads them.

    Raises:
        ValueError: if there are more frames than that, or another number of mel bins.
    """
    window = 2 * model.config.max_source_positions  # the encoder's second convolution halves the frames
    if features.dim() != 3 or features.shape[1] != model.config.num_mel_bins:
        expected = f"[batch, {model.config.num_mel_bins}, {window}]"
        raise ValueError(f"input_features has shape {list(features.shape)}: {type(model).__name__} takes {expected}")
    if features.shape[2] > window:
        raise ValueError(
            f"input_features has {features.shape[2]} frames, but {type(model).__name__} hears {window} at once: cut the sound into pieces "
            "(long-form transcription, which moves a window by the timestamps it writes, is not supported)"
        )
    return nn.functional.pad(features, (0, window - features.shape[2])) if features.shape[2] < window else features


@dataclass(frozen=True)
class Timestamps:
    """The grammar of Whisper's timestamp tokens, as `WhisperTimeStampLogitsProcessor` applies it, along every node's own path.

    Timestamps are the ids from `first` on. They come in pairs, except right before the end; they never decrease; the first token is one of
    the first `most + 1`; and where all timestamps together are likelier than every other token, one of them is generated.
    """

    first: int
    end: int
    most: int | None = None
    weighs: bool = True

    @classmethod
    def of(cls, config: Any) -> "Timestamps":
        """The grammar of a generation config. ValueError unless it has a single end token."""
        end = config.eos_token_id or config.bos_token_id
        if not isinstance(end, int):
            raise ValueError(f"generation_config.eos_token_id is {end!r}: with return_timestamps give one id")
        most = getattr(config, "max_initial_timestamp_index", None)
        return cls(config.no_timestamps_token_id + 1, end, most, compat.weighs_timestamps(config))

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        """Apply the grammar to scores [B, N, V]."""
        values = torch.arange(scores.shape[-1], device=scores.device)
        stamps = values >= self.first
        ids, real = history.last(2, outputs=True)
        ids, real = nn.functional.pad(ids, (2 - ids.shape[-1], 0)), nn.functional.pad(real, (2 - real.shape[-1], 0))
        last = real[..., -1] & (ids[..., -1] >= self.first)
        before = ~real[..., -2] | (ids[..., -2] >= self.first)
        least = self._least(history, last & ~before)
        banned = (values == self.first - 1) | (last & before)[..., None] & stamps
        banned = banned | (last & ~before)[..., None] & (values < self.end) | stamps & (values < least[..., None])
        opening = (history.position == 0)[..., None]
        banned = banned | opening & ~stamps
        if self.most is not None:
            banned = banned | opening & (values > self.first + self.most)
        return self._weighed(ban(scores, banned)) if self.weighs else ban(scores, banned)

    def _least(self, history: History, closing: Tensor) -> Tensor:
        """[B, N] the first timestamp that may be written: the last one on the path where that opened a pair which is to be closed, else
        the one after it."""
        rank = history.visible.cumsum(-1)
        output = history.visible & (rank > rank[..., -1:] - history.position[..., None])
        ids = history.ids[:, None, :].expand_as(output)
        slots = torch.arange(ids.shape[-1], device=ids.device)
        place = torch.where(output & (ids >= self.first), slots, -1).amax(-1, keepdim=True)
        last = ids.gather(-1, place.clamp_min(0))[..., 0]
        return torch.where(place[..., 0] < 0, self.first, last + (~closing).long())

    def _weighed(self, scores: Tensor) -> Tensor:
        """`scores` with text banned where the timestamps' summed probability is above every single text token's."""
        logs = scores.float().log_softmax(-1)
        stamps, text = logs[..., self.first :].logsumexp(-1), logs[..., : self.first].amax(-1)
        text_ids = torch.arange(scores.shape[-1], device=scores.device) < self.first
        return ban(scores, (stamps > text)[..., None] & text_ids)
