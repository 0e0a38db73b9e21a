"""The self-test's small copy of every architecture that docs/families.md calls exact, at the default values of its config: windows, ropes,
layers and what is counted by layer.

The sweep itself runs small configs of its own, whose windows are small already. A user's model has the published ones, and what is tested
of it across its window is its small copy (`mmspec.models.proof.twin`).
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.families.registry import family_of
from mmspec.models.proof.cases import Failed, check_twin
from mmspec.models.proof.facts import has_plain_reference
from mmspec.models.proof.twin import twin_config
from tests.sweep.page import read
from tests.sweep.run import EXACT, one_line

PAGE = Path(__file__).parents[2] / "docs/families.md"
BY_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_layers", "no_rope_layers", "per_layer_config")
BY_LAYER += ("cross_attention_layers", "moe_layers", "num_kv_shared_layers", "activation_sparsity_pattern", "hybrid_layer_ids")
"""Fields that say what differs from layer to layer."""
_HEADS, _MROPE = {"head_dim": 128}, {"rope_type": "default", "rope_theta": 10000.0}
_QWEN, _GLM = ({"text_config": {"rope_parameters": _MROPE | {"mrope_section": section}}} for section in ([16, 24, 24], [8, 12, 12]))
_STARTS = {"vision_start_token_id": 151652, "audio_start_token_id": 151647}
_IMAGES = {"<image>": 8711, "<|extra_200|>": 151855}
LEFT_OUT: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM", "MinistralForCausalLM"), _HEADS),
    "HunYuanVLForConditionalGeneration": {"text_config": _HEADS | {"rope_parameters": _MROPE | {"mrope_section": [16, 16, 16, 16]}}},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
    "AyaVisionForConditionalGeneration": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "ChameleonForConditionalGeneration": {"vocabulary_map": _IMAGES},
    "Emu3ForConditionalGeneration": {"vocabulary_map": _IMAGES},
    "CohereCompassForConditionalGeneration": {
        "text_config": {"rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), _MROPE | {"mrope_section": [24, 20, 20]})}
    },
    **dict.fromkeys(("Glm46VForConditionalGeneration", "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"), _GLM),
    "GlmOcrForConditionalGeneration": _GLM,
    **dict.fromkeys(
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "PaddleOCRVLForConditionalGeneration"), _QWEN
    ),
    "Qwen2_5OmniThinkerForConditionalGeneration": _QWEN | _STARTS,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _STARTS,
    "XmodForCausalLM": {"default_language": "en_XX"},
    "Step3p7ForConditionalGeneration": {"text_config": {"sliding_window": 512}},
}
"""What a default config leaves out, so that transformers cannot build its model or the code takes a value that no config says."""


def exact_classes(name: str | None = None) -> list[type]:
    """The classes that the page calls exact, with or without trees, whose model type matches a regular expression."""
    rows = [row for row in read(PAGE) if row.outcome.startswith(EXACT) and (name is None or re.search(name, row.name))]
    return [getattr(transformers, architecture) for architecture in dict.fromkeys(row.architecture for row in rows)]


def default_config(kind: Any) -> Any:
    """The default config of a class with what that leaves out; encoders that can run as decoders do."""
    decoder = {"is_decoder": True} if "is_decoder" in {field.name for field in dataclasses.fields(kind.config_class)} else {}
    return kind.config_class(**decoder | LEFT_OUT.get(kind.__name__, {}))


def without_weights(kind: Any) -> Any:
    """A model of its default config, its tensors without data."""
    with torch.device("meta"):
        return kind(default_config(kind)).eval()


def text_config(config: Any) -> Any:
    """What a config says of the model that writes text."""
    return config.get_text_config(decoder=True)


def differing(config: Any) -> tuple[str, ...]:
    """Which fields say what differs from layer to layer."""
    found = text_config(config)
    return tuple(name for name in BY_LAYER if getattr(found, name, None))


def lost_kinds(config: Any, small: Any) -> list[str]:
    """Return the fields of which a small copy lacks a kind of layer that the config has."""
    names = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_layers", "no_rope_layers")
    pairs = ((name, *(getattr(text_config(each), name, None) or () for each in (config, small))) for name in names)
    lost = [name for name, all_, kept in pairs if set(map(repr, all_)) != set(map(repr, kept))]
    flags = ("per_layer_config", "cross_attention_layers", "num_kv_shared_layers")
    return lost + [name for name in flags if getattr(text_config(config), name, None) and not getattr(text_config(small), name, None)]


def outcome(kind: type) -> str:
    """ "right", or in one line what is wrong with the small copy of a class's default config."""
    try:
        model = without_weights(kind)
    except Exception as error:
        return f"transformers cannot build its default config: {type(error).__name__}: {one_line(error)}"
    try:
        if not has_plain_reference(model, family_of(model)):
            return "right, by its family: what it reads is no plain forward of its text, and no small copy is asked"
        lost = lost_kinds(model.config, twin_config(kind, model.config))
        reason = check_twin(model) or (f"lost {', '.join(lost)}" if lost else None)
    except (Failed, ValueError) as error:
        reason = one_line(error)
    return reason or "right"


def check_defaults(name: str | None, progress: Callable[[str], None]) -> int:
    """Test every class. Returns 1 if one is wrong."""
    wrong = 0
    for kind in exact_classes(name):
        found = outcome(kind)
        wrong += not found.startswith("right")
        progress(f"{kind.__name__:44} {found}")
    progress(f"{wrong} wrong")
    return int(wrong > 0)
