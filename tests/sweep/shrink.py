"""A small random config for any transformers config class, and a small random model from it.

Fields are recognised by their names (`SIZES`, then `attribute_map`), whole numbers that name a token are given ids inside the small
vocabulary, and sub-configs are made small in the same way. What a name cannot tell stands in `OVERRIDES`, by model type.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mmspec.models.compat.shared_states import buildable
from tests.sizes import IDS

VOCAB = 71
POSITIONS = 128
WINDOW = 8

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "attention_heads")
_HEADS += (
    "encoder_num_attention_heads",
    "decoder_num_attention_heads",
    "linear_num_value_heads",
    "linear_num_heads",
    "swa_num_attention_heads",
)
_HEADS += ("cross_num_attention_heads", "index_n_heads", "num_ada_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads", "kv_n_heads")
_KEY_HEADS += ("swa_num_key_value_heads", "cross_num_key_value_heads", "linear_num_key_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth")
_LAYERS += ("encoder_num_hidden_layers", "decoder_num_hidden_layers", "num_encoder_layers")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "out_hidden_size", "word_embed_proj_dim", "embedding_size")
_WIDTHS += ("input_embedding_size", "output_embedding_size", "text_hidden_size", "projection_dim", "cross_hidden_size", "output_dim")
_WIDTHS += ("output_proj_dims", "vision_output_dim", "adapter_out_dim", "projector_hidden_size", "embedding_dim", "lru_width")
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "dff", "dim_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "d_inner")
_INNER += ("feed_forward_size", "ffn_hidden_size", "prefix_dense_intermediate_size", "hidden_size_mlp")
_EXPERT_INNER = ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "shared_intermediate_size")
_EXPERT_INNER += ("moe_shared_expert_intermediate_size", "moe_ffn_hidden_size", "expert_dim")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts", "moe_k")
_ONE = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "n_group", "topk_group", "first_k_dense_replace")
_ONE += ("mamba_n_groups", "n_groups", "mamba_ngroups", "num_dense_layers", "moe_layer_start_index", "num_mem_blocks")
_HEAD_WIDTHS = ("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "d_kv", "dim_head", "swa_head_dim", "global_head_dim")
_HEAD_WIDTHS += (
    "d_head",
    "kv_channels",
    "attention_head_size",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_head_dim",
    "index_head_dim",
)
_HEAD_WIDTHS += ("mamba_head_dim", "mamba_d_head", "attention_head_dim", "swa_v_head_dim", "cross_head_dim", "rotary_dim")
_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention", "sliding_window_size", "attention_window_size")
PLACES = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions", "max_seq_len", "n_ctx")
PLACES += ("max_encoder_position_embeddings", "max_decoder_position_embeddings", "context_length", "keep_window_size")
_STATES = ("mamba_d_state", "ssm_state_size", "state_size")
_INDEXER = ("n_heads", "kv_heads", "head_dim", "budget", "compress_ratio")
_RANKS = ("kv_lora_rank", "q_lora_rank", "o_lora_rank", "gated_norm_rank")

SIZES: dict[str, int] = {
    **{"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "unpadded_vocab_size": VOCAB, "src_vocab_size": VOCAB},
    **{"tgt_vocab_size": VOCAB, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "num_kv_shared_layers": 0, "text_vocab_size": VOCAB},
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_KEY_HEADS, 2),
    **dict.fromkeys(_LAYERS, 2),
    **dict.fromkeys(_WIDTHS, 32),
    **dict.fromkeys(_INNER, 64),
    **dict.fromkeys(_EXPERT_INNER, 16),
    **dict.fromkeys(_EXPERTS, 4),
    **dict.fromkeys(_CHOSEN, 2),
    **dict.fromkeys(_ONE, 1),
    **dict.fromkeys(_HEAD_WIDTHS, 8),
    **dict.fromkeys(_WINDOWS, WINDOW),
    **dict.fromkeys(PLACES, POSITIONS),
    **dict.fromkeys(_STATES, 8),
    **dict.fromkeys(_RANKS, 16),
    **{"query_pre_attn_scalar": 8, "max_window_layers": 1, "index_topk": 4, "chunk_size": 8, "num_mel_bins": 8, "num_codebooks": 2},
    **{"image_size": 8, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_channels": 3, "in_channels": 3},
    **{"mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_expand": 2, "moe_latent_size": 16, "num_mtp_layers": 0, "type_vocab_size": 2},
}

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 3, "cls_token_id": 4}

_SWA = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
_SWA |= {"head_dim": 16, "qk_nope_head_dim": 8, "v_head_dim": 8}
_ALL_SHARED = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 2}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"patcher_config": {"hidden_size": 32}},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")},
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots3_note_text": {"num_key_value_heads": 4, **{f"swa_{name}": size for name, size in _SWA.items()}},
    "dots3_note_vision_encoder": {"mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4, "adapter_in_dim": 32},
    "dots3_note_audio_encoder": {"adapter_input_size": 32},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma4_assistant": {
        "text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, **_ALL_SHARED}
    },
    "gemma4_unified_assistant": {"text_config": {"model_type": "gemma4_unified_text", **_ALL_SHARED}},
    "glm5_next_text": {"index_topk": 16, "qk_rope_head_dim": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "minimax": {"sliding_window": None},
    "nemotron_h": {"sliding_window": None},
    "qwen4_exp_text": {f"indexer_{name}": size for name, size in zip(_INDEXER, (4, 1, 8, 8, 4), strict=True)},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"chunk_size": 16},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""By model type: fields that a name cannot tell. Values may be nested dicts for sub-configs. Modules of the sweep add to it."""


def small_config(config_class: type, **given: Any) -> Any:
    """A small config of `config_class`; `given` fields win over `OVERRIDES`, which win over `SIZES`."""
    return config_class(**small_fields(config_class, given))


def small_fields(config_class: type, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keyword arguments `small_config` makes a config of, sub-configs as dicts."""
    own = {**OVERRIDES.get(config_class.model_type, {}), **(given or {})}
    types = {field.name: field for field in dataclasses.fields(config_class)}
    names = config_class.attribute_map or {}
    found = {}
    for name, field in types.items():
        size = SIZES.get(name, SIZES.get(_standard(names, name)))
        if name in (config_class.sub_configs or {}):
            continue
        if size is not None and field.type is not None and "int" in str(field.type):
            found[name] = size
    if "kv_lora_rank" in types and "num_key_value_heads" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]  # latent attention has keys of its own for every head
    found.update(_token_ids(types))
    for name, sub in (config_class.sub_configs or {}).items():
        inner = own.pop(name, None) or {}
        if dataclasses.is_dataclass(inner):
            found[name] = inner
        elif name in types and (sub := _sub_config(config_class, name, sub, inner)) is not None:
            found[name] = {"model_type": sub.model_type, **small_fields(sub, inner)}
    if "layer_types" in types and "layer_types" not in own:
        found.update(_layer_kinds(config_class, found))
    return {**found, **own}


def _sub_config(config_class: type, name: str, declared: type, given: Mapping[str, Any]) -> type | None:
    """The class of a sub-config: the declared one; where that is AutoConfig, the one that is asked for or the default config has."""
    if declared.__name__ != "AutoConfig":
        return declared
    if "model_type" in given:
        return CONFIG_MAPPING[given["model_type"]]
    default = getattr(_default(config_class), name, None)
    return type(default) if isinstance(default, PreTrainedConfig) else None


def _standard(names: Mapping[str, str], field: str) -> str:
    """The standard name that `attribute_map` gives to `field`."""
    return next((standard for standard, own in names.items() if own == field), field)


def _token_ids(types: Mapping[str, Any]) -> dict[str, int]:
    """Ids inside the vocabulary for fields that name a token; the same id for one name wherever it stands."""
    found = {name: TOKENS[name] for name in types if name in TOKENS}
    for name, field in types.items():
        names_token = name.endswith(("_token_id", "_token_index")) or (name.endswith("_id") and "token" in name)
        if names_token and name not in found and "int" in str(field.type):
            found[name] = placeholder(name)
    return found


_PLACEHOLDERS: dict[str, int] = {}


def placeholder(name: str) -> int:
    """The id of a special token, counted down from the end of the vocabulary; index and id of one kind are the same token."""
    key = name.removesuffix("_index").removesuffix("_id")
    return _PLACEHOLDERS.setdefault(key, VOCAB - 1 - len(_PLACEHOLDERS) % 30)


def _layer_kinds(config_class: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """Every kind of layer the default config has, in the order they first stand, and at least two layers."""
    kinds = list(dict.fromkeys(getattr(_default(config_class), "layer_types", None) or ()))
    layers = next((name for name in _LAYERS if name in found), None)
    if len(kinds) < 2 or layers is None:
        return {}
    return {"layer_types": kinds if len(kinds) > 2 else [*kinds, kinds[0]], layers: max(len(kinds), 3)}


def _default(config_class: type) -> Any:
    try:
        return config_class()
    except (TypeError, ValueError, AttributeError, KeyError):
        return None


def sharpen(model: Any, seed: int = 0, by: float = 0.15) -> Any:
    """`model` in fp32 and eval mode, its weights spread so that greedy decoding has no ties and does not sit in a loop."""
    torch.manual_seed(seed)
    model = model.float().eval()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(torch.randn_like(parameter) * by)
    for buffer in model.buffers():
        if buffer.is_floating_point() and not bool(torch.isfinite(buffer).all()):
            buffer.data.nan_to_num_(0.0)
    settings = getattr(model, "generation_config", None)
    if settings is None:  # a policy of a robot: it does not generate
        return model
    settings.max_length, settings.pad_token_id, settings.eos_token_id = None, IDS["pad_token_id"], None  # every row to its full length
    return model


def small_model(model_class: type, config: Any, seed: int = 0) -> Any:
    """A small random model of `model_class`, ready to be examined."""
    torch.manual_seed(seed)
    make = getattr(model_class, "_from_config", None)
    config = buildable(config)
    return sharpen(make(config) if make is not None else model_class(config), seed)


def perturbed(model: Any, seed: int = 5, by: float = 0.05) -> Any:
    """Add noise to `model` in place: a drafter that often agrees with what it was made from."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(torch.randn_like(parameter) * by)
    return model
