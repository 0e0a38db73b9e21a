"""Voxtral's transcription request (Mistral AI 2025) from its processor's own tokens.

`VoxtralProcessor.apply_transcription_request` needs the package mistral-common; the request that it makes is built here without.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.speech.families.letters import padded

SPECIAL = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", "[TRANSCRIBE]")


def transcription_request(model: Any, processor: Any, waves: Sequence[Tensor], language: str | None) -> Mapping[str, Tensor]:
    """Return the inputs of `generate` for one batch.

    Args:
        model: a `VoxtralForConditionalGeneration`.
        processor: its processor.
        waves: float32 [T] at the extractor's rate.
        language: the code of what is spoken, such as "en"; None to let the model detect it.

    Returns:
        input_ids and attention_mask [B, P], padded on the left; input_features [C, M, F], the windows of all recordings.

    Raises:
        ValueError: for a language that is no code of two letters, and a tokenizer without the tokens of a request.
    """
    if language is not None and not (len(language) == 2 and language.isascii() and language.isalpha() and language.islower()):
        raise ValueError(f"language is {language!r}: Voxtral takes a code of two letters, such as en")
    tokenizer = processor.tokenizer
    start, begin, sound_begin, sound, end, transcribe = _special(tokenizer)
    told = [] if language is None else tokenizer.encode(f"lang:{language}", add_special_tokens=False)
    features = [_windows(processor.feature_extractor, wave) for wave in waves]
    rows = [[start, begin, sound_begin, *[sound] * (len(each) * _tokens(model)), end, *told, transcribe] for each in features]
    return {**padded(rows), "input_features": torch.cat(features)}


def _special(tokenizer: Any) -> list[int]:
    known = tokenizer.get_vocab()
    for token in SPECIAL:
        if token not in known:
            raise ValueError(f"the tokenizer lacks {token}, with which Voxtral is asked to transcribe: load the model's own processor")
    return [known[token] for token in SPECIAL]


def _windows(extractor: Any, wave: Tensor) -> Tensor:
    """The windows [C, M, F] of a recording, the last one padded with silence."""
    whole = {"padding": True, "truncation": False, "pad_to_multiple_of": extractor.n_samples}
    found = extractor(wave.numpy(), sampling_rate=extractor.sampling_rate, return_tensors="pt", **whole).input_features[0]
    return found.unflatten(-1, (-1, extractor.nb_max_frames)).transpose(0, 1)


def _tokens(model: Any) -> int:
    """The places that a window takes in the prompt: its positions, several of them side by side."""
    config = model.config.audio_config
    return config.max_source_positions * config.hidden_size // config.intermediate_size
