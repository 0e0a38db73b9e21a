"""Recognisers other than Whisper: those that read sound alone, as Moonshine, and those that read it within a prompt, as GLM-ASR."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mmspec.models.families.registry import positions_of
from mmspec.speech.recognition.decoding import RecognitionDecoding, finish_reason_of
from mmspec.speech.recognition.options import TranscriptionOptions
from mmspec.speech.recognition.transcript import Transcript
from mmspec.speech.recognition.voxtral import transcription_request

HEAR_ALONE = ("moonshine",)
"""Model types that read sound without a prompt of words."""
UNMASKED = (*HEAR_ALONE, "granite_speech")
"""Model types whose encoder reads padding, too."""
PROMPTED = (
    *("audioflamingo3", "glmasr", "granite_speech", "musicflamingo"),
    *("qwen2_5_omni_thinker", "qwen2_audio", "qwen3_asr", "qwen3_omni_moe_thinker", "voxtral"),
)
"""Model types that read sound within a prompt and are tested with their processors."""
INSTRUCTION = "Transcribe the speech."
"""What models that converse are asked where their processor has no transcription request of its own."""
MOST = 448
"""Tokens that are written about one recording, or part of one, by default, where the model has positions for them."""


def transcribe_prompted(
    model: Any, processor: Any, waves: Sequence[Tensor], options: TranscriptionOptions, decoding: RecognitionDecoding
) -> list[Transcript]:
    """Transcribe one batch by one call of the model's own `generate`, greedily.

    Args:
        model: a model of transformers that reads sound.
        processor: its processor.
        waves: float32 [T] at the extractor's rate.
        options: how to transcribe; see `refuse_whispers_own`.
        decoding: decodes the batch.

    Returns:
        One transcript a wave, without times.

    Raises:
        ValueError: for options that the processor's request does not take.
    """
    inputs = request_inputs(model, processor, waves, options)
    decoding.begin()
    prompt = 0 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    most = options.max_new_tokens or min(MOST, (positions_of(model) or 10 * MOST) - max(1, prompt))
    ids = model.generate(**inputs, custom_generate=decoding, do_sample=False, num_beams=1, max_new_tokens=most)
    rate = extractor_of(processor).sampling_rate
    return [
        Transcript(
            text=text.strip(),
            language=options.language,
            seconds=len(wave) / rate,
            tokens=tuple(row.tolist()),
            finish_reason=finish_reason_of(model, [row]),
        )
        for wave, row, text in zip(waves, ids[:, prompt:], written_texts(processor, ids[:, prompt:]), strict=True)
    ]


def check_recogniser(model: Any) -> None:
    """Raise ValueError for a model that `mmspec.speech.transcribe` does not drive."""
    if getattr(model.config, "model_type", None) not in ("whisper", *HEAR_ALONE, *PROMPTED):
        raise ValueError(
            f"{type(model).__name__} is no recogniser: mmspec.speech.transcribe takes Whisper, {', '.join((*HEAR_ALONE, *PROMPTED))}"
        )


def refuse_whispers_own(model: Any, options: TranscriptionOptions) -> None:
    """Raise ValueError for options that only Whisper has.

    Args:
        model: the recogniser.
        options: those of the call.
    """
    asked = {"timestamps": options.timestamps, "fallback": options.fallback, "condition": options.condition}
    for name, value in asked.items():
        if value:
            raise ValueError(f"{name} is {value!r}, but {type(model).__name__} has none: leave it out, or take a Whisper")


def batch_key(model: Any, wave: Tensor) -> int:
    """Return what the recordings of a batch must share, so that each is written down as it would be alone.

    Args:
        model: the recogniser. Moonshine's encoder takes its mean over time, padding included, and Granite Speech's has no mask: they read
            recordings of one length together.
        wave: float32 [T].
    """
    return len(wave) if model.config.model_type in UNMASKED else 0


def extractor_of(processor: Any) -> Any:
    """Return the feature extractor of a recogniser's processor, under the name that the processor gives it."""
    return processor.feature_extractor if hasattr(processor, "feature_extractor") else processor.audio_processor


def request_inputs(model: Any, processor: Any, waves: Sequence[Tensor], options: TranscriptionOptions) -> Mapping[str, Any]:
    """Return the inputs of `generate` for one batch: the processor's transcription request, a conversation, or the sound alone.

    Args:
        model: the recogniser.
        processor: its processor.
        waves: float32 [T] at the extractor's rate.
        options: how to transcribe.

    Raises:
        ValueError: for options that the request does not take.
    """
    rate, sounds = extractor_of(processor).sampling_rate, [wave.numpy() for wave in waves]
    request = getattr(processor, "apply_transcription_request", None)
    if model.config.model_type == "voxtral":
        _refuse(type(processor).__name__, task=options.task, prompt=options.prompt)
        inputs = transcription_request(model, processor, waves, options.language)
    elif request is not None:
        inputs = request(audio=sounds, return_tensors="pt", **_asked(type(processor).__name__, request, options))
    elif processor.chat_template is not None:
        _refuse(type(processor).__name__, language=options.language, task=options.task)
        content = [{"type": "audio", "audio_url": "sound"}, {"type": "text", "text": options.prompt or INSTRUCTION}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
        padded = {"padding": True, "padding_side": "left"}  # the sound is padded as the processor does by default
        inputs = processor(text=[text] * len(sounds), audio=sounds, text_kwargs=padded, sampling_rate=rate, return_tensors="pt")
    else:
        _refuse(type(processor).__name__, language=options.language, task=options.task, prompt=options.prompt)
        inputs = processor(sounds, sampling_rate=rate, return_tensors="pt", padding=True)
    return {name: _moved(value, model) for name, value in inputs.items()}


def written_texts(processor: Any, ids: Tensor) -> list[str]:
    """Return the words of every row, without what the model writes around them.

    Args:
        processor: whose `decode` may know how to take that away.
        ids: LongTensor [B, T], the written tokens.
    """
    known = inspect.signature(processor.decode).parameters
    bare: dict[str, Any] = {"strip_prefix": True} if "strip_prefix" in known else {}
    bare |= {"return_format": "transcription_only"} if "return_format" in known else {}
    return processor.decode(ids, skip_special_tokens=True, **bare)


def _asked(name: str, request: Any, options: TranscriptionOptions) -> dict[str, Any]:
    """Return the options as the request's arguments."""
    known = inspect.signature(request).parameters
    language = next((each for each in ("language", "source_language") if each in known), None)
    found = {} if language is None or options.language is None else {language: options.language}
    _refuse(name, **({"language": options.language} if language is None else {}))
    if options.task == "translate" and "target_language" in known:
        found["target_language"] = "en"
    else:
        _refuse(name, task=options.task)
    if "prompt" in known:
        return found if options.prompt is None else found | {"prompt": options.prompt}
    _refuse(name, prompt=options.prompt)
    return found


def _refuse(name: str, **options: str | None) -> None:
    for option, value in options.items():
        if value is not None and (option, value) != ("task", "transcribe"):
            raise ValueError(f"{option} is {value!r}, but the request of {name} has none: leave it out")


def _moved(value: Any, model: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
