"""Speech models and codecs: parts without a public name."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation import GenerateEncoderDecoderOutput


def whisper_window_changes(model: Any, frames: int) -> tuple[tuple[nn.Module, str, Any], ...]:
    """The changes, for `models.changed.replaced`, by which a Whisper encoder reads `frames` frames, an even number, instead of a window.

    Relies on `WhisperEncoder.forward` comparing the frames with `config.max_source_positions`, and on its adding the first
    `embed_positions.num_embeddings` rows of its positions (5.17 to 5.24).
    """
    encoder = model.get_encoder()
    config = copy.copy(encoder.config)
    config.max_source_positions = frames // 2
    return (encoder, "config", config), (encoder.embed_positions, "num_embeddings", frames // 2)


def csm_embeddings(model: Any, ids: Tensor, values: Tensor | None, cutoffs: Tensor | None) -> Tensor:
    """Embeddings [B, P, D] of a CSM prompt, its sound put in.

    Relies on `CsmForConditionalGeneration._merge_input_ids_with_input_values(ids, values, cutoffs)` (since 4.53).
    """
    return model._merge_input_ids_with_input_values(ids, values, cutoffs)["inputs_embeds"]


def pocket_placeholders(model: Any) -> Any:
    """The ids that stand for audio in Pocket TTS prompts. Relies on its `_placeholder_token_ids()`."""
    return model._placeholder_token_ids()


def vibevoice_scheduler(model: Any, generation: Any) -> Any:
    """The noise scheduler that VibeVoice makes where none is given. Relies on its `_build_default_noise_scheduler` (since 5.17)."""
    return model._build_default_noise_scheduler(generation)


def is_vibevoice(model: Any) -> bool:
    """True if `model` samples audio as VibeVoice does. Relies on its method `_sample_audio_latent` (since 5.17)."""
    return hasattr(model, "_sample_audio_latent")


def encodec_frame(codec: Any, codes: Tensor) -> Tensor:
    """Decode one chunk of EnCodec codes without joining it to others.

    Relies on `EncodecModel._decode_frame(codes)` (since 4.31).
    """
    return codec._decode_frame(codes)


def whisper_words(tokenizer: Any, ids: list[int], times: list[float], language: int | None) -> list[tuple[str, float, float]]:
    """The words of one segment, with their first and last second.

    Relies on Whisper tokenizers' `_decode_asr` (private, 5.17 to 5.24), which joins tokens to words as the language does.

    Args:
        tokenizer: Whisper's.
        ids: of the segment, timestamps included.
        times: seconds at which each token ends.
        language: the language's token, or None.
    """
    if language is not None:
        ids, times = [language, *ids], [0.0, *times]
    tokens, ends = torch.tensor([ids]), torch.tensor([times])
    _, found = tokenizer._decode_asr(
        [{"tokens": tokens, "token_timestamps": ends}], return_timestamps="word", return_language=False, time_precision=0.02
    )
    return [(each["text"], float(each["timestamp"][0]), float(each["timestamp"][1])) for each in found["chunks"]]


def whisper_token_times(model: Any, sequence: Tensor, attentions: tuple[Tensor, ...], prompt: int, frames: int) -> Tensor:
    """The seconds [P + T], from the window's first frame, at which the tokens of one row end.

    Relies on Whisper's `_extract_token_timestamps` (private, 5.17 to 5.24), and on `alignment_heads` of its generation config.

    Args:
        model: the Whisper.
        sequence: LongTensor [P + T], prompt and new tokens.
        attentions: cross-attentions [1, heads, P + T - 1, frames of the encoder] of every layer.
        prompt: P, the ids of the decoder's prompt.
        frames: log-mel frames of sound in the window.
    """
    outputs = GenerateEncoderDecoderOutput(sequences=sequence[None], cross_attentions=(attentions,))  # type: ignore[arg-type]
    heads = model.generation_config.alignment_heads
    return model._extract_token_timestamps(outputs, heads, num_frames=torch.tensor([frames]), num_input_ids=prompt)[0]
