"""Qwen3-TTS as published: `config.json` of type qwen3_tts, its weights and tokenizer, and the codec in `speech_tokenizer`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.models.checkpoint_loading import json_object
from mmspec.models.compat.qwen_tts import hearing_mimi
from mmspec.speech.codecs.qwen3_tts import Qwen3TTSCodec, Qwen3TTSDecoder
from mmspec.speech.language_models.qwen3_tts import Qwen3TTS
from mmspec.speech.language_models.qwen3_tts_network import Qwen3TTSNetwork, qwen3_tts_weights
from mmspec.speech.language_models.qwen3_tts_prompts import Qwen3TTSIds
from mmspec.utils.weights import load_file

TYPE, CODEC, CODEC_TYPE = "qwen3_tts", "speech_tokenizer", "qwen3_tts_tokenizer_12hz"
_UNHEARD = ("upsample.", "decoder_transformer.", "decoder.")
"""Parts of Mimi that make sound, which its encoder does without."""


def is_qwen3_tts(place: Path) -> bool:
    """Return True for the folder of a Qwen3-TTS."""
    path = place / "config.json"
    return path.is_file() and json_object(path).get("model_type") == TYPE


def load_qwen3_tts(place: Path, dtype: Any, device: torch.device | str, codec: Any = None) -> Qwen3TTS:
    """Load a Qwen3-TTS.

    Args:
        place: its folder.
        dtype: of the networks; float32, bfloat16, float16 or auto, which is float32.
        device: of networks and codec.
        codec: the codec, or its folder; by default the folder `speech_tokenizer` inside, and without one there are codes and no sound.

    Returns:
        The model.

    Raises:
        ValueError: for incomplete folders, and for codecs that are not those of 12 Hz.
    """
    import transformers as hf

    config = json_object(place / "config.json")
    network = Qwen3TTSNetwork(config)
    network.load_state_dict(qwen3_tts_weights(_weights(place), network))
    kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    inside = place / CODEC
    if codec is None and inside.is_dir():
        codec = inside
    sound = load_codec(Path(codec), device) if isinstance(codec, str | Path) else codec
    settings = json_object(place / "generation_config.json") if (place / "generation_config.json").is_file() else None
    tokenizer = hf.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    return Qwen3TTS(network.to(device, kind), tokenizer, Qwen3TTSIds.of(config), sound, settings)


def load_codec(place: Path, device: torch.device | str = "cpu") -> Qwen3TTSCodec:
    """Load the codec of 12 Hz.

    Args:
        place: its folder.
        device: where it runs, in float32.

    Returns:
        The codec.

    Raises:
        ValueError: for another codec, or a checkpoint that differs from its config.
    """
    config = json_object(place / "config.json")
    if config.get("model_type") != CODEC_TYPE:
        raise ValueError(f"{place} is a {config.get('model_type')}: expected a {CODEC_TYPE}")
    weights, told = _weights(place), config["decoder_config"]
    decoder = Qwen3TTSDecoder(told)
    _fill(decoder, _decoder_weights(_under(weights, "decoder."), decoder.books))
    heard = _encoder(config.get("encoder_config") or {}, _under(weights, "encoder."))
    encoder = None if heard is None else heard.to(device)
    return Qwen3TTSCodec(decoder.to(device), encoder, int(config.get("output_sample_rate", 24000)))


def _decoder_weights(found: Mapping[str, Tensor], books: int) -> dict[str, Tensor]:
    """Published tensors under the names of `Qwen3TTSDecoder`."""
    made = {name: value for name, value in found.items() if not name.startswith("quantizer.")}
    for name in ("input_proj", "output_proj"):
        made |= {key.replace("pre_transformer.", ""): made.pop(key) for key in [*made] if key.startswith(f"pre_transformer.{name}.")}
    for own, theirs, count in (("first", "rvq_first", 1), ("rest", "rvq_rest", books - 1)):
        start = f"quantizer.{theirs}."
        for part, name in (("sums", "embedding_sum"), ("counts", "cluster_usage")):
            names = [f"{start}vq.layers.{book}._codebook.{name}" for book in range(count)]
            if all(each in found for each in names):
                made[f"{own}.{part}"] = torch.stack([found[each] for each in names])
        if f"{start}output_proj.weight" in found:
            made[f"{own}.projection.weight"] = found[f"{start}output_proj.weight"]
    return made


def _encoder(config: Mapping[str, Any], found: Mapping[str, Tensor]) -> Any:
    """A Mimi that only hears; None if the checkpoint has none."""
    if not found:
        return None
    model, name = hearing_mimi(config)
    _fill(model, {name(each): value for each, value in found.items() if not each.startswith(_UNHEARD)})
    return model


def _fill(model: Any, found: Mapping[str, Tensor]) -> None:
    """Load `found` strictly. ValueError names the first tensor that is missing, unknown or of another shape."""
    own = model.state_dict()
    wrong = sorted(set(own) ^ set(found)) or [name for name in own if own[name].shape != found[name].shape]
    if wrong:
        raise ValueError(f"weight {wrong[0]} of the codec is missing, unknown or of another shape: checkpoint and config.json differ")
    model.load_state_dict(found)


def _under(weights: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}


def _weights(place: Path) -> dict[str, Tensor]:
    """The tensors of a folder, of one file or several. ValueError if there are none."""
    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{place} has no safetensors: expected the published weights")
    return {name: value for path in files for name, value in load_file(path).items()}
