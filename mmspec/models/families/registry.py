"""The family that drives a model, and the number of positions it has."""

from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES,
    MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
)

from mmspec.models.compat import argument_names, recomputes_at_rope_switch
from mmspec.models.compat.mixers import mixers_of
from mmspec.models.families.alibi import Alibi, uses_alibi
from mmspec.models.families.base import DecoderOnly, configured_positions, refuse_unsupported
from mmspec.models.families.cache_window import CacheWindow
from mmspec.models.families.encoder_decoder import DecoderAlone, EncoderDecoder, positions_limit
from mmspec.models.families.hybrid import HybridDecoder, MultimodalHybrid
from mmspec.models.families.local_attention import LocalAttention
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import HEARING, PACKED_SIGHT, SIGHT, SIGHT_AND_HEARING, STRIP_SIGHT, TILED_SIGHT, Multimodal
from mmspec.models.families.position_tables import PositionTable
from mmspec.models.families.rope_lengths import RopeLengths, stretched_limit
from mmspec.models.families.rope_switch import RopeSwitch
from mmspec.models.families.whisper import Whisper
from mmspec.models.family import Family

_MODALITIES = {
    **dict.fromkeys(("audioflamingo3", "glmasr", "qwen2_audio", "qwen3_asr", "voxtral"), HEARING),
    **dict.fromkeys(("aya_vision", "gemma3", "glm4v", "idefics2", "idefics3", "internvl", "llava", "paligemma"), SIGHT),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm", "vipllava"), SIGHT),
    **dict.fromkeys(("llava_next", "llava_onevision", "mistral3"), TILED_SIGHT),
    **dict.fromkeys(
        ("cohere2_vision", "deepseek_vl", "got_ocr2", "pp_chart2table", "ovis2", "glm46v", "glmga", "glm4v_moe", "glm_ocr"), SIGHT
    ),
    **dict.fromkeys(("llava_next_video", "lighton_ocr"), TILED_SIGHT),
}
_MODALITIES |= dict.fromkeys(("aria", "deepseek_vl_hybrid", "exaone4_5", "fuyu", "hunyuan_vl", "kimi_k25", "llama4", "paddleocr_vl"), SIGHT)
_MODALITIES |= dict.fromkeys(("qianfan_ocr", "video_llama_3", "video_llava", "hyperclovax_vision_v2", "cosmos3_omni", "janus"), SIGHT)
_MODALITIES |= dict.fromkeys(("muse_glimmer", "minimax_m3_vl", "cohere_compass", "emu3", "step3p7", "chameleon"), SIGHT)
_MODALITIES |= dict.fromkeys(("gemma4", "gemma4_unified", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), SIGHT_AND_HEARING)
_MODALITIES |= dict.fromkeys(("fun_asr_nano", "granite_speech", "moss_transcribe_diarize", "musicflamingo"), HEARING)
_MODALITIES |= {**dict.fromkeys(("qwen3_5", "qwen3_5_moe", "lfm3_vl"), SIGHT), "lfm2_vl": PACKED_SIGHT}
_MODALITIES |= dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"), STRIP_SIGHT)
HEARS = tuple(kind for kind, modality in _MODALITIES.items() if modality is HEARING)
SEES = (*(kind for kind, modality in _MODALITIES.items() if modality is not HEARING), "mllama")
_OTHER_INPUTS = {  # arguments of `forward` besides text
    *("input_features", "input_values", "audio_input_features"),
    *("pixel_values", "pixel_values_videos", "image_pixel_values", "flattened_patches", "protein_input_ids"),
}
_FRAME_BOUND = ("kyutai_speech_to_text", "voxtral_realtime")


def family_of(model: Any) -> Family:
    """The family that drives `model`; ValueError for models mmspec cannot run."""
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise ValueError(
            f"{type(model).__name__} is not a transformers generation model (it has no language model head or no generate): "
            "pass what AutoModelForCausalLM.from_pretrained returned"
        )
    config = model.config
    _refuse_sound(model)
    if config.is_encoder_decoder:
        return (Whisper if config.model_type == "whisper" else EncoderDecoder).of(model)
    if config.model_type == "whisper":
        return DecoderAlone.of(model)
    if config.model_type in (*_MODALITIES, "mllama"):
        _refuse_rope_by_length(model)
    if config.model_type in _MODALITIES and not HybridDecoder.drives(model):
        return (MultimodalHybrid if mixers_of(model) else Multimodal).of(model, _MODALITIES[config.model_type])
    if config.model_type == "mllama":
        return Mllama.of(model)
    _refuse_other_modalities(model)
    return _decoder_of(model)


def _decoder_of(model: Any) -> DecoderOnly:
    """The family of a causal language model, by its states and by where its attention takes positions from."""
    if HybridDecoder.drives(model):
        return HybridDecoder.of(model)
    if uses_alibi(model):
        return Alibi.of(model)
    for family in (LocalAttention, PositionTable):
        if family.drives(model):
            return family.of(model)
    if RopeLengths.drives(model):
        return (RopeSwitch if recomputes_at_rope_switch(model) else RopeLengths).of(model)
    if CacheWindow.drives(model):
        return CacheWindow.of(model)
    return DecoderOnly.of(model)


def _refuse_sound(model: Any) -> None:
    """ValueError for models that transformers lists as generating audio: their tokens are not text."""
    name = type(model).__name__
    if name in MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES.values() or name in MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES.values():
        raise ValueError(f"{name} writes sound, not text: use mmspec.speech.synthesize, or plain transformers generation")


def _refuse_rope_by_length(model: Any) -> None:
    """ValueError for models that read more than text and whose rope depends on the length of the sequence."""
    if RopeLengths.drives(model):
        raise ValueError(
            f"{type(model).__name__} has dynamic rope or longrope, which is supported for text alone: use plain transformers generation"
        )


def _refuse_other_modalities(model: Any) -> None:
    """ValueError for models that read more than text and are not listed above: as plain decoders they would ignore it."""
    if not mixers_of(model):
        refuse_unsupported(model)  # no family could drive these
    name = type(model).__name__
    if model.config.model_type in _FRAME_BOUND:
        raise ValueError(
            f"{name} writes one token for every frame of sound it has received, so nothing can be drafted ahead of the sound: "
            "use plain transformers generation for this model"
        )
    if _OTHER_INPUTS & argument_names(model):
        raise ValueError(f"{name} reads pictures or sound; supported besides text: whisper, {', '.join(HEARS + SEES)}")


def positions_of(model: Any) -> int | None:
    """The number of positions of a model; None if they are relative and without limit."""
    if getattr(model.config, "is_encoder_decoder", False):
        return positions_limit(model)
    config = model.config.get_text_config(decoder=True)
    stretched = stretched_limit(model)
    if stretched is not None:
        return stretched
    return configured_positions(config)
