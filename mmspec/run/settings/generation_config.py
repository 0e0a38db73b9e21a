"""Settings of a model's generation config: applied, refused by name, or documented as not read.

Those of `mmspec.text.generate` first; a beam search differs in what `beam_settings` says.

Applied: settings that change greedy output and have a speculative form. Refused: settings that change greedy output and have none. Not
read,
because the call has arguments for them: lengths (`max_length`, `max_new_tokens`) and sampling (`do_sample`, `temperature`, `top_k`,
`top_p`, `min_p`, `top_h`, `typical_p`, `epsilon_cutoff`, `eta_cutoff`). Not read, because they do not change tokens: caches, assistants,
outputs, `renormalize_logits`, `length_penalty` and `early_stopping` (of beams), `remove_invalid_values` (NaN is an error here).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation import logits_process as known

from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.processors.sequence import SequenceBias, biases_of
from mmspec.models.families.whisper import Timestamps, writes_timestamps
from mmspec.run.settings.processors import constraints, end_ids

_ONE = "set model.generation_config.{name} = {off} to decode one path a row"
_OFF = "set model.generation_config.{name} = {off} to decode without it"
_REFUSED: dict[str, tuple[Callable[[Any], bool], Any, str]] = {  # name: (is it on?, what turns it off, how to mend it)
    "num_beams": (lambda v: v > 1, 1, _ONE),
    "num_beam_groups": (lambda v: v > 1, None, _ONE),
    "diversity_penalty": (lambda v: v != 0, None, _ONE),
    "constraints": (lambda v: True, None, _ONE),
    "force_words_ids": (lambda v: True, None, _ONE),
    "num_return_sequences": (lambda v: v > 1, 1, "set model.generation_config.{name} = {off} and repeat the prompt instead"),
    "penalty_alpha": (lambda v: v > 0, None, _OFF),
    "dola_layers": (lambda v: True, None, _OFF),
    "guidance_scale": (lambda v: v != 1, None, _OFF),
    "watermarking_config": (lambda v: True, None, _OFF),
    "token_healing": (bool, False, _OFF),
    "max_time": (lambda v: True, None, _OFF),
    "cache_implementation": (lambda v: v == "quantized", None, "a quantized cache changes tokens: " + _OFF),
    "no_speech_threshold": (lambda v: True, None, _OFF),
    "stop_strings": (
        lambda v: True,
        None,
        "pass stops=[mmspec.text.StopStrings(strings, tokenizer.decode)] and set model.generation_config.{name} = {off}",
    ),
}
_FORCED = "it would leave the catalogue's paths: " + _OFF
_REFUSED_OF_BEAMS = {  # the call has arguments for the numbers of beams and lists
    **{name: (on, off, _OFF) for name, (on, off, _) in _REFUSED.items() if name not in ("num_beams", "num_return_sequences")},
    "forced_bos_token_id": (lambda v: True, None, _FORCED),
    "forced_eos_token_id": (lambda v: True, None, _FORCED),
    "renormalize_logits": (bool, False, _OFF),
}


def refuse_settings(model: Any, refused: Mapping[str, tuple[Callable[[Any], bool], Any, str]] = _REFUSED) -> None:
    """Raise ValueError for a setting of the model's generation config that changes greedy output and is not supported."""
    config = model.generation_config
    for name, (on, off, mend) in refused.items():
        value = getattr(config, name, None)
        if value is not None and on(value):
            raise ValueError(
                f"{type(model).__name__}'s generation_config.{name} is {_short(value)}, which is not supported: "
                + mend.format(name=name, off=off)
            )


def one_path(model: Any) -> str | None:
    """Turn off beam search in the generation config of a loaded model. Returns a description of the change; None if nothing changed."""
    config, found = model.generation_config, []
    for name, (on, off, mend) in _REFUSED.items():
        value = getattr(config, name, None)
        if mend is _ONE and value is not None and on(value):
            found.append(f"{name} {_short(value)}")
            setattr(config, name, off)
    return f"its generation config asks for {', '.join(found)}: decoding one path a row instead" if found else None


def settings(
    model: Any,
    family: Any,
    inputs: Mapping[str, Any],
    prompt: tuple[Tensor, Tensor],
    max_new_tokens: int,
    repetition_penalty: float | Sequence[float] | None = None,
) -> tuple[Processor, ...]:
    """Return the processors of a model's generation config, in transformers' order.

    Args:
        model: the target.
        family: its family; ids that it reads but never generates are banned.
        inputs: the request; an encoder's `input_ids` LongTensor [B, T] are read from here.
        prompt: ids LongTensor [B, P] and mask bool [B, P] of the decoder's prompt.
        max_new_tokens: position of a forced end token.
        repetition_penalty: overrides the config's; None for the config's.

    Raises:
        ValueError: for settings that change greedy output and have no speculative form.
    """
    refuse_settings(model)
    found = _steps(model, inputs, prompt, max_new_tokens, repetition_penalty, getattr(family, "never_generated_ids", ()))
    config = model.generation_config
    if writes_timestamps(config) and model.config.model_type == "whisper":
        found.append(Timestamps.of(config))
    return tuple(found)


def beam_settings(model: Any, inputs: Mapping[str, Any], prompt: tuple[Tensor, Tensor], levels: int) -> tuple[Processor, ...]:
    """Return the processors that transformers' constrained beam search of paths of a catalogue would apply to log-probabilities.

    Not read beside what `settings` does not read: `num_beams` and `num_return_sequences`, for which the call has arguments. All paths are
    equally long, so that `length_penalty` and `early_stopping` change no list.

    Args:
        model: the target.
        inputs: the request; an encoder's `input_ids` LongTensor [B, T] are read from here.
        prompt: ids LongTensor [B, P] and mask bool [B, P] of the decoder's prompt.
        levels: tokens of a path.

    Returns:
        The processors, in transformers' order.

    Raises:
        ValueError: for settings that change lists and have no speculative form, or force tokens that no path has.
    """
    refuse_settings(model, _REFUSED_OF_BEAMS)
    return tuple(_steps(model, inputs, prompt, levels))


def _steps(
    model: Any,
    inputs: Mapping[str, Any],
    prompt: tuple[Tensor, Tensor],
    max_new_tokens: int,
    repetition_penalty: float | Sequence[float] | None = None,
    never_generated_ids: Sequence[int] = (),
) -> list[Processor]:
    config, (ids, mask) = model.generation_config, prompt
    found: list[Processor] = []
    if config.sequence_bias:
        found.append(SequenceBias(biases_of(known.SequenceBiasLogitsProcessor(config.sequence_bias).sequence_bias)))
    found += _encoder_penalties(model, inputs, ids, mask)
    penalty = config.repetition_penalty if repetition_penalty is None else repetition_penalty
    found += pipeline(repetition_penalty=penalty).steps
    found += constraints(config, ids.shape[1], max_new_tokens, never_generated_ids)
    return found + _by_own_length(config, mask)


@dataclass(frozen=True)
class PerRow:
    """A transformers processor for each row, called with that row's unpadded ids, once per node."""

    processors: tuple[LogitsProcessor, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        out = scores.clone()
        for row, node, ids in history.paths():
            out[row, node] = self.processors[row](ids[None], scores[row, node][None])[0]  # pyright: ignore[reportArgumentType]
        return out


def _encoder_penalties(model: Any, inputs: Mapping[str, Any], ids: Tensor, mask: Tensor) -> list[Processor]:
    """Return penalties and bans that depend on the prompt or the encoder's input. As in transformers, none without such ids."""
    config, found = model.generation_config, []
    penalty, size = config.encoder_repetition_penalty, config.encoder_no_repeat_ngram_size
    if model.config.is_encoder_decoder:
        if inputs.get("input_ids") is None:
            return found
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")  # pyright: ignore[reportAssignmentType]
    if not ((penalty and penalty != 1) or size):
        return found
    rows = [row if mask is None else row[keep.bool()] for row, keep in zip(ids, ids if mask is None else mask, strict=True)]
    most = model.config.get_text_config(decoder=True).vocab_size
    if penalty and penalty != 1:
        unique = [row[row < most].unique()[None] for row in rows]
        found.append(PerRow(tuple(known.EncoderRepetitionPenaltyLogitsProcessor(float(penalty), row) for row in unique)))
    if size:
        prompts: list[Any] = [row[None] for row in rows]
        found.append(PerRow(tuple(known.EncoderNoRepeatNGramLogitsProcessor(size, prompt) for prompt in prompts)))
    return found


def _by_own_length(config: Any, mask: Tensor) -> list[Processor]:
    """Return processors that count prompt tokens, by each row's own length, as `generate` would for the row alone."""
    ends, found = end_ids(config), []
    decay = config.exponential_decay_length_penalty
    padded = config.min_length and not bool(mask.all())
    if not ends or not (decay or padded):
        return found
    lengths = mask.sum(1).tolist()
    if padded:
        found.append(PerRow(tuple(known.MinLengthLogitsProcessor(config.min_length, ends, device=str(mask.device)) for _ in lengths)))
    if decay:
        stop = torch.tensor(ends, device=mask.device)
        found.append(PerRow(tuple(known.ExponentialDecayLengthPenalty(tuple(decay), stop, length) for length in lengths)))
    return found


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (int, float, str, list, tuple)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
