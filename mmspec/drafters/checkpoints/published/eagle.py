"""EAGLE-1, EAGLE-2 (the same files) and EAGLE-3 as their authors, SGLang and SpecForge publish them (SafeAILab/EAGLE)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.checkpoints.published.records import Hints, Reading, number, prefixed, require_values
from mmspec.models.stack import numbered, stack

IDS = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads")
_TAKEN = ("num_key_value_heads", "max_position_embeddings", "head_dim", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias")
_ROPES = ("default", "linear", "llama3", "yarn")  # others depend on the longest text in the batch


def read_eagle(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read either of the two. vLLM's wrapper for EAGLE-1 keeps the layer's config under "model"; NeMo puts `model.` before most names."""
    if "model.fc.weight" in weights:
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    inner = config.get("model")
    config = inner if isinstance(inner, Mapping) else config
    said = str(config.get("architectures")).lower()
    third = "draft_vocab_size" in config or "eagle_config" in config or "eagle3" in said
    if third or any(name.startswith("midlayer.") or name == "layers.0.hidden_norm.weight" for name in weights):
        return eagle3(config, weights, hints)
    return eagle1(config, weights, hints)


def eagle1(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints, theirs: Callable[[str], str] = str) -> Reading:
    """Read EAGLE-1. `fc` has a bias unless config or file lack it; an embedding equal to the target's is dropped."""
    weights = own_weights(weights, hints)
    bias = config.get("bias", theirs("fc.bias") in weights)
    options = {"sizes": sizes(config, hints), "bias": bool(bias), "own_embedding": "embed_tokens.weight" in weights}
    return Reading("eagle1", options, weights, theirs)


def eagle3(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read EAGLE-3. The layer is `midlayer` or, in `speculators` files, `layers.0`; maps between equal vocabularies are dropped."""
    nested = config.get("eagle_config") or {}
    require_values(nested, use_aux_hidden_state=True)
    layer, weights = sizes(config, hints), own_weights(weights, hints)
    values = number(config, "draft_vocab_size") if config.get("draft_vocab_size") is not None else layer["vocab_size"]
    width = number(config, "target_hidden_size") if config.get("target_hidden_size") is not None else layer["hidden_size"]
    options = {
        "reads": _reads(config, weights.get("fc.weight"), width, hints),
        "sizes": layer,
        "size": layer["vocab_size"],
        "values": values,
        "own_embedding": "embed_tokens.weight" in weights,
        "target_hidden": width,
        **{flag: bool(nested.get(flag, config.get(flag))) for flag in _FLAGS},
    }
    inner = any(name.startswith("layers.0.") for name in weights)
    maps = vocabulary_maps(weights, layer["vocab_size"], values)
    return Reading("eagle3", options, {**weights, **maps}, prefixed(("midlayer.", "layers.0.")) if inner else str)


def sizes(config: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    """Return the LlamaConfig options of the layer that `config` describes. ValueError names an unsupported key."""
    require_values(config, num_hidden_layers=1, quantization_config=None, logit_scale=1.0, partial_rotary_factor=1.0, is_causal=True)
    found = {key: number(config, key) for key in _REQUIRED}
    found |= {key: config[key] for key in _TAKEN if config.get(key) is not None}
    has = config.get("vocab_size") is not None
    found["vocab_size"] = number(config, "vocab_size") if has else hints.ask("vocab_size", "how many values the target has")
    return found | {"rope_parameters": rope_parameters(config)} | _window(config)


def own_weights(weights: Mapping[str, Tensor], hints: Hints) -> dict[str, Tensor]:
    """Return `weights` without rotary tables and without an embedding equal to the target's."""
    kept = {name: tensor for name, tensor in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    copy, theirs = kept.get("embed_tokens.weight"), None if hints.target is None else hints.target.get_input_embeddings()
    if copy is not None and type(theirs) is nn.Embedding and copy.shape == theirs.weight.shape:
        mine = theirs.weight.detach().to(copy.device, torch.float32)
        if torch.allclose(copy.float(), mine, rtol=1e-2, atol=1e-5):  # the copy may have been rounded
            del kept["embed_tokens.weight"]
    return kept


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return transformers 5's rope parameters; older configs spread them over `rope_theta` and `rope_scaling`."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = given.pop("type", None)
    kind = given.setdefault("rope_type", kind or "default")
    if kind not in _ROPES or any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"rope_type {kind!r} in config.json is not supported: only {', '.join(_ROPES)}, the same for every layer")
    given.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    return given


def _window(config: Mapping[str, Any]) -> dict[str, int]:
    kinds = config.get("layer_types") or ["full_attention"]
    if kinds == ["sliding_attention"] and config.get("use_sliding_window") is not False:
        return {"sliding_window": number(config, "sliding_window")}
    if kinds not in (["full_attention"], ["sliding_attention"]):
        raise ValueError(f"layer_types {kinds!r} in config.json is not supported: only ['full_attention'] or ['sliding_attention'] is")
    return {}


def _reads(config: Mapping[str, Any], fc: Tensor | None, width: int, hints: Hints) -> tuple[int, ...]:
    """The hidden states that are fused, in the model's order, whatever the order of the ids."""
    nested = (config.get("eagle_config") or {}).get(IDS)
    ids = nested or config.get(IDS)
    convention = hints.layer_ids or ("outputs" if nested and min(nested) == 1 else "inputs")
    if convention not in ("inputs", "outputs"):
        raise ValueError(f"layer_ids is {convention!r}: give 'inputs' (vLLM, speculators) or 'outputs' (SGLang, SpecForge)")
    if hints.states is not None:
        found = tuple(hints.states)
    elif ids:
        found = tuple(sorted(i + (convention == "outputs") for i in ids))
    else:
        layers = hints.ask("num_hidden_layers", f"which hidden states were fused ({IDS} is not there)")
        found = tuple(sorted({2, layers // 2, layers - 3}))
    if hints.target is not None:
        layers = len(stack(hints.target))
        numbered(found, layers)
        if hints.states is None and layers in found:  # in mmspec's numbering the last state is the normed one
            raise ValueError(f"{IDS} asks for what leaves layer {layers}, the last, before the final norm: that state is not available")
    wide = len(found) * width
    if fc is not None and fc.dim() == 2 and fc.shape[1] != wide:
        raise ValueError(
            f"tensor fc.weight has shape {tuple(fc.shape)}, but {(fc.shape[0], wide)} is needed for hidden states {found}; "
            "give states= where it reads others"
        )
    return found


def vocabulary_maps(weights: Mapping[str, Tensor], size: int, values: int) -> dict[str, Tensor]:
    """Return d2t and t2d where they are missing but follow from one another, or from the vocabularies being the same."""
    d2t, t2d = weights.get("d2t"), weights.get("t2d")
    if d2t is None and t2d is None and values == size:
        return {"d2t": torch.zeros(size, dtype=torch.long), "t2d": torch.ones(size, dtype=torch.bool)}
    if d2t is None and t2d is not None:
        ids = t2d.bool().nonzero()[:, 0]
        return {"d2t": ids - torch.arange(len(ids))}
    if t2d is None and d2t is not None and not d2t.is_floating_point():
        ids = (torch.arange(len(d2t)) + d2t).clamp(0, size - 1)
        return {"t2d": torch.zeros(size, dtype=torch.bool).index_fill_(0, ids, True)}
    return {}
