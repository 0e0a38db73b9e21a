"""A small random model with the attention settings of a large one.

Attention windows of 4096 positions and rope factors that change at 131072 cannot be crossed on a user's model within a second. A twin has
the model's class and its kinds of layers, with a window of `WINDOW`, a rope switch at `SWITCH` and `POSITIONS` positions.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmspec.models.compat import ask_attention, attention_of

WINDOW, SWITCH, POSITIONS = 12, 18, 64
VOCAB = 96
_WIDEST = 100_000_000
"""Parameters a twin may have: one whose widths could not be reduced is not built if it is larger."""

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "attention_heads")
_HEADS += ("swa_num_attention_heads", "linear_num_value_heads", "index_n_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads", "linear_num_key_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "out_hidden_size", "word_embed_proj_dim", "embedding_size")
_WIDTHS += ("projection_dim", "output_dim", "vision_output_dim")
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "mlp_dim")
_INNER += ("dense_intermediate_size", "intermediate_size_mlp")
_EXPERT_INNER = ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "shared_intermediate_size")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k")
_ONE = (
    "n_shared_experts",
    "n_group",
    "num_expert_group",
    "topk_group",
    "first_k_dense_replace",
    "num_dense_layers",
    "moe_layer_start_index",
)
_HEAD_WIDTHS = ("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "d_kv", "swa_head_dim", "global_head_dim", "rotary_dim")
_HEAD_WIDTHS += ("attention_head_size", "index_head_dim", "linear_head_dim", "kv_channels")
WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention", "sliding_window_size", "attention_window_size")
_PLACES = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions", "max_seq_len", "n_ctx", "max_length")
_NUMBERED = ("_layers", "_idxs", "_indices", "_indexes", "_ids")
_KINDS = 4
"""Different values that a list by layer may have for these to be kinds of layers; and fractions are sizes of something, no kinds."""
_RANKS = ("kv_lora_rank", "q_lora_rank", "o_lora_rank")

_STRUCTURE: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "src_vocab_size", "tgt_vocab_size", "decoder_vocab_size"), VOCAB),
    **dict.fromkeys(WINDOWS, WINDOW),
    **dict.fromkeys(_PLACES, POSITIONS),
    **dict.fromkeys(("original_max_position_embeddings",), SWITCH),
    **dict.fromkeys(_ONE, 1),
}
_SIZES: dict[str, int] = {
    **dict.fromkeys(_WIDTHS, 64),
    **dict.fromkeys(_INNER, 64),
    **dict.fromkeys(_EXPERT_INNER, 32),
    **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys(_CHOSEN, 2),
    **dict.fromkeys(_HEAD_WIDTHS, 16),
    **dict.fromkeys(_RANKS, 32),
    **{"query_pre_attn_scalar": 16, "hidden_size_per_layer_input": 16, "laurel_rank": 8, "index_topk": 64, "num_mel_bins": 8},
    **{"linear_num_heads": 4, "base_channels": 32},
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_WORD = len(set(_SPECIAL.values()))  # an id that is no special token, padding least of all
_DERIVED = ("num_layers_per_stack", "qk_head_dim")
"""Fields that a config derives from others where they are not given."""
_DROPPED = (*_DERIVED, "quantization_config", "dtype", "torch_dtype", "_name_or_path", "transformers_version", "architectures")


def twin_of(model: Any, seed: int = 0) -> Any:
    """A small random model in float32 on the CPU, of the class of `model` and with its kinds of attention. ValueError if none can be built.

    Call it where the global random state may change: weights are initialised from it.
    """
    kind, small = type(model), twin_config(type(model), model.config)
    torch.manual_seed(seed)
    twin = _spread(kind(small).float().eval())
    if twin.config.is_encoder_decoder and twin.generation_config.decoder_start_token_id is None:  # it may stand in the model's alone
        twin.generation_config.decoder_start_token_id = _WORD
    return twin


def twin_config(kind: type, config: Any) -> Any:
    """The config of a small model of class `kind` with the attention settings of `config`. ValueError if none can be built."""
    problem = "no config"
    for narrow, times in ((True, 1), (True, 2), (False, 1)):
        try:
            small = type(config).from_dict(_small(config.to_dict(), narrow, config, times))
            ask_attention(small, attention_of(config))
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in kind(copy.deepcopy(small)).parameters())
            if size > _WIDEST:
                raise ValueError(f"it would have {size} parameters")
            return small
        except Exception as error:  # a constructor may raise anything where sizes do not fit together
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
    raise ValueError(f"no small {kind.__name__} could be built from its config ({problem})")


def _spread(model: Any) -> Any:
    """`model` with noise on every weight, so that attention is not uniform and closed gates are open."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model.requires_grad_(False)


def _small(fields: Mapping[str, Any], narrow: bool, config: Any, times: int) -> dict[str, Any]:
    """The fields of a config, nested configs included, with small sizes; widths stay as they are unless `narrow`.

    Every kind of layer comes `times` times where there are as many.
    """
    sizes = _STRUCTURE | (_SIZES if narrow else {})
    found = {}
    for name, value in fields.items():
        if name in _DROPPED:
            continue
        if isinstance(value, Mapping) and ("model_type" in value or name in ("attn_config", "ffn_config")):
            value = _small(value, narrow, getattr(config, name, None), times)
        elif name in sizes and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            value = sizes[name] if name in WINDOWS else min(sizes[name], value)
        elif name in sizes and isinstance(value, list) and all(type(part) is int and part > 0 for part in value):
            value = [min(sizes[name], part) for part in value]
        found[name] = value
    if narrow:
        _reduce_heads(found)
        _reduce_mixers(found)
        _reduce_shared_attention(found)
    if "head_dim" in found and _turned_and_not(fields) == fields["head_dim"]:
        found["head_dim"] = _turned_and_not(found)
    _reduce_layers(found, fields, getattr(config, "layer_types", None), times)
    _reduce_ids(found)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(found.get(name), Mapping):
            found[name] = _small_rope(found[name], _rotated(found) if narrow else None)
    return found


def _turned_and_not(fields: Mapping[str, Any]) -> int:
    """The width of a head of which a part is rotated and a part is not."""
    return (fields.get("qk_nope_head_dim") or 0) + (fields.get("qk_rope_head_dim") or 0)


def _reduce_heads(fields: dict[str, Any]) -> None:
    """Four heads, and as many key heads as the model's grouping implies: all, some or one."""
    for name in _HEADS:
        if isinstance(fields.get(name), int):
            before, fields[name] = fields[name], 4
            for keys in _KEY_HEADS:
                if isinstance(fields.get(keys), int) and not isinstance(fields[keys], bool):
                    fields[keys] = 4 if fields[keys] >= before else min(fields[keys], 2)


def _reduce_mixers(fields: dict[str, Any]) -> None:
    """Eight heads for mixers of Mamba-2's kind, whose heads divide their inner width."""
    for expand, heads, width in (
        ("expand", "num_heads", "head_dim"),
        ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
        ("mamba_expand", "mamba_num_heads", "mamba_head_dim"),
        ("mamba_expand", "n_mamba_heads", "mamba_headdim"),
    ):
        if isinstance(fields.get(expand), int) and isinstance(fields.get(heads), int) and "hidden_size" in fields:
            fields[heads] = 8
            if "mamba_d_ssm" in fields:
                fields["mamba_d_ssm"] = fields["hidden_size"] * fields[expand]
            if isinstance(fields.get(width), int):
                fields[width] = fields["hidden_size"] * fields[expand] // 8


def _reduce_shared_attention(fields: dict[str, Any]) -> None:
    """Zamba's attention reads the states and the embeddings beside each other."""
    if isinstance(fields.get("attention_hidden_size"), int):
        fields["attention_hidden_size"] = 2 * fields["hidden_size"]
        fields["attention_head_dim"] = 2 * fields["hidden_size"] // fields["num_attention_heads"]


def _reduce_layers(fields: dict[str, Any], sizes: Mapping[str, Any], told: Sequence[str] | None, times: int) -> None:
    """Keep the first layers until every kind of layer has occurred, and some of the last ones where those share keys with earlier ones.

    A layer's kind is all that the config says of it: entries of lists and mappings by layer, and whether a list of layer numbers has it.
    `sizes` are the fields before they were reduced; `told` are kinds that the config derives from other fields.
    """
    for name in _LAYERS:
        before = fields.get(name)
        if isinstance(before, int) and not isinstance(before, bool) and before > 0:
            kept = _kept_layers(fields, before, told if told and len(told) == before else [""] * before, times)
            for other, value in fields.items():
                fields[other] = _of_layers(value, other, before, kept, fields, sizes)
            fields[name] = len(kept)
            if fields.get("num_kv_shared_layers"):
                fields["num_kv_shared_layers"] = sum(layer >= before - fields["num_kv_shared_layers"] for layer in kept)
    if isinstance(fields.get("attention_types"), list) and "attention_layers" in fields:  # GPT-Neo reads its layers from these
        fields["attention_types"] = [[list(fields["attention_layers"]), 1]]


def _kept_layers(fields: Mapping[str, Any], count: int, told: Sequence[str], times: int) -> list[int]:
    """The layers, of `count`, that a twin has."""
    kinds = [(told[layer], *_kind(fields, count, layer)) for layer in range(count)]
    shared = fields.get("num_kv_shared_layers") or 0
    own = count - shared if 0 < shared < count else count
    found = [*range(max(min(2, own), _until_all(kinds[:own], times)))]
    return [*found, *range(own, own + _until_all(kinds[own:], times))]


def _until_all(kinds: Sequence[Any], times: int) -> int:
    """How many of the first layers hold every kind, `times` times if it comes as often."""
    places = {kind: [place for place, each in enumerate(kinds) if each == kind] for kind in set(kinds)}
    return max((found[min(times, len(found)) - 1] + 1 for found in places.values()), default=0)


def _kind(fields: Mapping[str, Any], count: int, layer: int) -> tuple[Any, ...]:
    found: list[Any] = []
    for name, value in fields.items():
        if _by_layer(value, count):
            found += [repr(part) for number, part in value.items() if int(number) == layer]
        elif _numbers_layers(name, value, count):
            found.append(layer in value)
        elif isinstance(value, (list, tuple)) and len(value) == count and len({repr(part) for part in value}) <= _KINDS:
            found.append("" if isinstance(value[layer], float) else repr(value[layer]))
    return tuple(found)


def _of_layers(value: Any, name: str, count: int, kept: Sequence[int], fields: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    """A field of the config for the layers that are kept."""
    if _by_layer(value, count):
        parts = {int(number): part for number, part in value.items()}
        return {str(new): _scaled(parts[layer], fields, sizes) for new, layer in enumerate(kept) if layer in parts}
    if _numbers_layers(name, value, count):
        return [new for new, layer in enumerate(kept) if layer in value]
    if isinstance(value, (list, tuple)) and len(value) == count:
        return [value[layer] for layer in kept]
    return value


def _by_layer(value: Any, count: int) -> bool:
    """Whether `value` maps numbers of layers to fields that these layers have of their own, as `per_layer_config` does."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(str(number).isdecimal() and int(number) < count and isinstance(part, Mapping) for number, part in value.items())
    )


def _numbers_layers(name: str, value: Any, count: int) -> bool:
    """Whether a field is a list of the numbers of some layers, as `cross_attention_layers` is."""
    told = name.endswith(_NUMBERED) and "token" not in name and isinstance(value, (list, tuple)) and bool(value)
    return told and all(type(part) is int and 0 <= part < count for part in value) and list(value) == sorted(set(value))


def _scaled(part: Mapping[str, Any], fields: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that a layer has of its own, as much larger or smaller than the config's as they were."""
    found = {}
    for name, value in part.items():
        before, after = sizes.get(name), fields.get(name)
        whole = all(type(each) is int and each > 0 for each in (value, before, after))
        found[name] = max(1, value * after // before) if whole else value
    return found


def _reduce_ids(fields: dict[str, Any]) -> None:
    """Map special tokens to different ids inside the small vocabulary."""
    last = VOCAB
    for name, value in fields.items():
        if not name.endswith(("token_id", "token_index")):
            continue
        if isinstance(value, (list, tuple)) or (isinstance(value, int) and value >= VOCAB - 16):
            last -= 1
            fields[name] = _SPECIAL.get(name, last)


def _rotated(fields: Mapping[str, Any]) -> int:
    """Pairs of values a head rotates."""
    width = fields.get("qk_rope_head_dim") or fields.get("head_dim") or 16
    share = fields.get("partial_rotary_factor") or (fields.get("rope_parameters") or {}).get("partial_rotary_factor") or 1.0
    return int(width * share) // 2


def _small_rope(rope: Mapping[str, Any], pairs: int | None) -> dict[str, Any]:
    """Rope settings with their switch at `SWITCH`; lists with an entry a pair are cut to `pairs`."""
    found = {}
    for name, value in rope.items():
        if isinstance(value, Mapping):
            value = _small_rope(value, pairs)
        elif name == "original_max_position_embeddings" and value is not None:
            value = SWITCH
        elif name in ("short_factor", "long_factor") and pairs is not None:
            factors = list(value or ())
            value = factors[:pairs] if name == "short_factor" else factors[-pairs:]
        elif name == "mrope_section" and pairs is not None:
            parts = len(value or ())
            value = [pairs - (parts - 1) * (pairs // parts), *[pairs // parts] * (parts - 1)]
        found[name] = value
    return found
