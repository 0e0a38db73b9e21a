"""Which family drives a model, and how many positions it has."""

from typing import Any

from mmspec.core.encoder_decoder import T5, Bart, EncoderDecoder
from mmspec.core.family import DecoderOnly
from mmspec.core.hf import Family

_BY_MODEL_TYPE = {
    "t5": T5,
    "mt5": T5,
    "bart": Bart,
    "mbart": Bart,
    "whisper": EncoderDecoder,
}


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
    if getattr(config, "vision_config", None) is not None or getattr(config, "audio_config", None) is not None:
        raise ValueError(
            f"{type(model).__name__} reads pictures or sound; only text-in decoders and speech recognisers are supported so far"
        )
    return DecoderOnly.of(model)


def positions_of(model: Any) -> int | None:
    """The positions a model has room for; None where they are relative and without limit."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "model_type", "") in ("t5", "mt5"):
        return None
    for name in ("max_target_positions", "max_position_embeddings"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return None
