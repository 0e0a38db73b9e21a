"""Whisper's transcription loop, transformers' own, with every window decoded speculatively: short and long sound, in batches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from mmspec.models import compat
from mmspec.speech.recognition.decoding import RecognitionDecoding, finish_reason_of
from mmspec.speech.recognition.options import TranscriptionOptions
from mmspec.speech.recognition.transcript import Segment, Transcript, Word
from mmspec.speech.recognition.word_times import token_times
from mmspec.utils.names import nearest, shown

FALLBACK: dict[str, Any] = {
    "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "compression_ratio_threshold": 1.35,
    "logprob_threshold": -1.0,
    "no_speech_threshold": 0.6,
}
"""Whisper's temperature fallback (Radford et al. 2022, section 4.5), the ratio as transformers measures it, over tokens."""


def transcribe_whisper(
    model: Any, processor: Any, waves: Sequence[Tensor], options: TranscriptionOptions, decoding: RecognitionDecoding
) -> list[Transcript]:
    """Transcribe one batch.

    Args:
        model: a `WhisperForConditionalGeneration`.
        processor: its processor.
        waves: float32 [T] at the extractor's rate. All of them fit the model's window, or none does.
        options: how to transcribe.
        decoding: decodes the windows.

    Returns:
        One transcript a wave.

    Raises:
        ValueError: for options that the model does not support.
    """
    long = len(waves[0]) > processor.feature_extractor.n_samples
    features, mask = features_of(processor.feature_extractor, waves)
    arguments = whisper_arguments(options, model, processor, long)
    decoding.begin()
    with attention_restored(model):
        found = model.generate(
            features.to(model.device, model.dtype), attention_mask=mask.to(model.device), custom_generate=decoding, **arguments
        )
    codes = {number: code for code, number in (getattr(model.generation_config, "lang_to_id", None) or {}).items()}
    rate, rows = processor.feature_extractor.sampling_rate, []
    for row, wave in enumerate(waves):
        spoken = next((number for number in decoding.prompts[row] if number in codes), None)
        segments = found["segments"][row]
        ids = [number for part in segments for number in part["tokens"].tolist()]
        times = token_times(model, segments, int(mask[row].sum())) if options.timestamps == "word" else [None] * len(segments)
        parts = tuple(_segment(processor.tokenizer, part, spoken, ends) for part, ends in zip(segments, times, strict=True))
        rows.append(
            Transcript(
                text=processor.tokenizer.decode(ids, skip_special_tokens=True).strip(),
                language="en" if spoken is None else codes[spoken].strip("<|>"),
                seconds=len(wave) / rate,
                segments=parts if long or options.timestamps else (),
                tokens=tuple(ids),
                finish_reason=finish_reason_of(model, [_window_ids(part["result"]) for part in segments]),
            )
        )
    return rows


def whisper_arguments(options: TranscriptionOptions, model: Any, processor: Any, long: bool) -> dict[str, Any]:
    """Return the options as the arguments of Whisper's `generate`.

    Args:
        options: how to transcribe.
        model: the Whisper.
        processor: its processor.
        long: whether the recordings are longer than the window.

    Raises:
        ValueError: for a language or a translation that the model has not learnt.
    """
    found: dict[str, Any] = {"return_timestamps": True if long or options.timestamps else False, "return_segments": True}
    found |= {"return_token_timestamps": True} if options.timestamps == "word" else {}
    found |= FALLBACK if options.fallback else {"temperature": 0.0}
    found |= {"condition_on_prev_tokens": True} if options.condition and long else {}
    found |= {} if options.max_new_tokens is None else {"max_new_tokens": options.max_new_tokens}
    if options.prompt is not None:
        found["prompt_ids"] = processor.tokenizer.get_prompt_ids(options.prompt, return_tensors="pt").to(model.device)
    return found | _spoken(options, model)


def _spoken(options: TranscriptionOptions, model: Any) -> dict[str, Any]:
    config = model.generation_config
    if not getattr(config, "is_multilingual", False) or getattr(config, "lang_to_id", None) is None:
        if options.language not in (None, "en", "english") or options.task != "transcribe":
            wanted = f"translate {options.language or 'speech'}" if options.task == "translate" else f"write down {options.language!r}"
            raise ValueError(f"{type(model).__name__} of this checkpoint knows English only and cannot {wanted}: give a multilingual one")
        return {}
    known = (*TO_LANGUAGE_CODE, *TO_LANGUAGE_CODE.values())
    if options.language is not None and options.language.lower() not in known and options.language not in (config.lang_to_id or {}):
        near = nearest(options.language, TO_LANGUAGE_CODE)
        raise ValueError(f"language is {shown(options.language)}{near}: give a name such as german, or a code such as de")
    return {"task": options.task} | ({} if options.language is None else {"language": options.language})


def features_of(extractor: Any, waves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return log-mel features [B, mels, F] and their mask [B, F] of waves [T], each as it is alone.

    Args:
        extractor: Whisper's feature extractor.
        waves: all of them fit the window, whose frames F then are; or none does, and F are the frames of the longest.
    """
    long = len(waves[0]) > extractor.n_samples
    padding = {"truncation": False, "padding": "longest"} if long else {}
    found = [
        extractor(wave.numpy(), sampling_rate=extractor.sampling_rate, return_attention_mask=True, return_tensors="pt", **padding)
        for wave in waves
    ]
    longest = max(each["input_features"].shape[-1] for each in found)
    pads = [longest - each["input_features"].shape[-1] for each in found]
    features = [torch.nn.functional.pad(each["input_features"], (0, pad)) for each, pad in zip(found, pads, strict=True)]
    masks = [torch.nn.functional.pad(each["attention_mask"], (0, pad)) for each, pad in zip(found, pads, strict=True)]
    return torch.cat(features), torch.cat(masks)


@contextmanager
def attention_restored(model: Any) -> Iterator[None]:
    """Put back the attention implementation, which `generate` sets to eager where it returns the times of tokens."""
    before = compat.attention_of(model.config)
    try:
        yield
    finally:
        if compat.attention_of(model.config) != before:
            model.set_attn_implementation(before)


def _window_ids(result: Any) -> Tensor:
    """The ids [P + T] of a segment's window, as `generate` returns them."""
    return result if isinstance(result, Tensor) else result["sequences"]


def _segment(tokenizer: Any, part: dict[str, Any], spoken: int | None, ends: list[float] | None) -> Segment:
    ids = part["tokens"].tolist()
    words: tuple[Word, ...] = ()
    if ends is not None:
        found = compat.whisper_words(tokenizer, ids, ends, spoken)
        words = tuple(Word(text, start, end) for text, start, end in found)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Segment(text, float(part["start"]), float(part["end"]), words)
