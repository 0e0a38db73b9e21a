"""Which family drives a model, and how many positions it has."""

from inspect import signature
from typing import Any

from mmspec.core.encoder_decoder import T5, Bart, DecoderAlone, EncoderDecoder
from mmspec.core.family import DecoderOnly, refuse_unsupported
from mmspec.core.hf import Family
from mmspec.core.mllama import Mllama
from mmspec.core.multimodal import HEARING, SIGHT, TILED_SIGHT, Multimodal

_BY_MODEL_TYPE = {
    "t5": T5,
    "mt5": T5,
    "bart": Bart,
    "mbart": Bart,
    "whisper": EncoderDecoder,
}
_SENSING = {
    **dict.fromkeys(("audioflamingo3", "glmasr", "qwen2_audio", "qwen3_asr", "voxtral"), HEARING),
    **dict.fromkeys(("aya_vision", "gemma3", "glm4v", "idefics2", "idefics3", "internvl", "llava", "paligemma"), SIGHT),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm", "vipllava"), SIGHT),
    **dict.fromkeys(("llava_next", "llava_onevision", "mistral3"), TILED_SIGHT),
    **dict.fromkeys(
        ("cohere2_vision", "deepseek_vl", "got_ocr2", "pp_chart2table", "ovis2", "glm46v", "glmga", "glm4v_moe", "glm_ocr"), SIGHT
    ),
    **dict.fromkeys(("llava_next_video", "lighton_ocr"), TILED_SIGHT),
}
HEARS = tuple(kind for kind, sense in _SENSING.items() if sense is HEARING)
SEES = (*(kind for kind, sense in _SENSING.items() if sense is not HEARING), "mllama")
_SENSES = {  # what `forward` takes besides text
    *("input_features", "input_values", "audio_input_features"),
    *("pixel_values", "pixel_values_videos", "image_pixel_values", "flattened_patches", "protein_input_ids"),
}
_FRAME_BOUND = ("kyutai_speech_to_text", "voxtral_realtime")


def family_of(model: Any) -> Family:
    """The family that drives `model`; ValueError, in one line, for models mmspec cannot run."""
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise ValueError(
            f"{type(model).__name__} is not a transformers generation model: pass what AutoModelForCausalLM.from_pretrained returned"
        )
    config = model.config
    if config.is_encoder_decoder:
        if config.model_type not in _BY_MODEL_TYPE:
            known = ", ".join(sorted(_BY_MODEL_TYPE))
            raise ValueError(f"encoder-decoder models of type {config.model_type!r} are not supported; supported: {known}")
        return _BY_MODEL_TYPE[config.model_type].of(model)
    if config.model_type == "whisper":
        return DecoderAlone.of(model)
    if config.model_type in _SENSING:
        return Multimodal.of(model, _SENSING[config.model_type])
    if config.model_type == "mllama":
        return Mllama.of(model)
    _refuse_other_senses(model)
    return DecoderOnly.of(model)


def _refuse_other_senses(model: Any) -> None:
    """ValueError for models that read more than text and are not listed above: as plain decoders they would run blind."""
    refuse_unsupported(model)  # no family could drive these
    name = type(model).__name__
    if model.config.model_type in _FRAME_BOUND:
        raise ValueError(
            f"{name} writes one token for every frame of sound it has received, so nothing can be guessed ahead of the sound: "
            "use plain transformers generation for this model"
        )
    if _SENSES & signature(model.forward).parameters.keys():
        raise ValueError(f"{name} reads pictures or sound; supported besides text: whisper, {', '.join(HEARS + SEES)}")


def positions_of(model: Any) -> int | None:
    """The positions a model has room for; None where they are relative and without limit."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "model_type", "") in ("t5", "mt5"):
        return None
    for name in ("max_target_positions", "max_position_embeddings"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return None
