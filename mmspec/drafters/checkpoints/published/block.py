"""DFlash and DFlash 2 as their authors publish them (z-lab/dflash), DFlash as transformers' assistants, and `speculators` files of DFlash,
DFlash 2, DSpark and P-EAGLE."""

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig

from mmspec.drafters.checkpoints.published.eagle import eagle3, own_weights, rope_parameters, vocabulary_maps
from mmspec.drafters.checkpoints.published.records import Hints, Reading, number, prefixed, require_values
from mmspec.models.compat import norms_embeddings
from mmspec.models.stack import numbered, stack

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act")
_SIZES += ("attention_bias", "max_position_embeddings", "layer_types", "sliding_window")
_ASSISTANT = prefixed(("fc.", "encoder.fc."), ("hidden_norm.", "encoder.output_norm_enc."))
_SLIDING = "sliding_attention"
SECOND = {"taps": "conv_kernel_size", "group": "conv_group_size", "rank": "selector_rank", "candidates": "selector_top_k"}
"""Options of DFlash 2 besides those of DFlash, and their keys in a config."""


def read_dflash(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read DFlash and DFlash 2 as their authors or transformers publish them: the target's embedding and head are not in the file.

    Layer ids number outputs of layers. Windows of transformers' assistants are inclusive and reach both ways.
    """
    nested = {**config, **(config.get("dflash_config") or {})}
    require_values(nested, quantization_config=None, output_multiplier=1.0, attention_sink_bias=False, projector_type="dflash")
    _check_cap(nested, hints)
    second = any(name.startswith("candidate_selector.") for name in weights)
    assistant = any(name.startswith("encoder.") for name in weights)
    layer = _filled(config)
    layers, kinds = number(layer, "num_hidden_layers"), layer.get("layer_types") or []
    causal = nested.get("causal", None if assistant else nested.get("is_causal"))
    each = [False] * layers if assistant else [kind == _SLIDING if causal is None else bool(causal) for kind in kinds or [None] * layers]
    options = {
        **_common(nested, hints, "outputs", "target_layer_ids"),
        "sizes": _sizes(layer, inclusive=assistant),
        "layers": layers,
        "causal": each if any(each) else [],
        "size": hints.ask("vocab_size", "how many values the target has") if assistant else number(layer, "vocab_size"),
        "embedding_scale": _scale(nested, hints, assistant),
    }
    if second:
        options |= {name: number(nested, key) for name, key in SECOND.items()}
        weights = _codebooks(weights)
    return Reading("dflash2" if second else "dflash", options, own_weights(weights, hints), _ASSISTANT if assistant else str)


def read_speculators_block(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read a "dflash", "dflash2" or "dspark" file of the `speculators` format. Layer ids number inputs of layers."""
    require_values(config, projector_type="dflash", shift_label=False)
    layer, weights = _filled(config["transformer_layer_config"]), own_weights(weights, hints)
    layers, size = number(layer, "num_hidden_layers"), number(layer, "vocab_size")
    values = number(config, "draft_vocab_size") if config.get("draft_vocab_size") is not None else size
    own = "lm_head.weight" in weights
    kind = config["speculators_model_type"]
    spark, second = kind == "dspark", kind == "dflash2"
    causal = [each == _SLIDING and not config.get("sliding_window_non_causal", second) for each in layer.get("layer_types") or []]
    options = {
        **_common(config, hints, "inputs", "aux_hidden_state_layer_ids"),
        "sizes": _sizes(layer),
        "layers": layers,
        "causal": causal if any(causal) else [],
        "size": size,
        "values": values if values < size else 0,
        "shared_head": not own,
        "from_anchor": bool(config.get("sample_from_anchor", spark)),
    }
    if spark:
        heads = {"markov": config.get("markov_rank", 0), "markov_kind": config.get("markov_head_type", "vanilla")}
        options |= heads | {"confidence": bool(config.get("enable_confidence_head", False))}
        if options["confidence"] and options["markov"]:
            require_values({"confidence_head_with_markov": False, **config}, confidence_head_with_markov=True)
    if second:
        options |= {name: number(config, key) for name, key in SECOND.items()}
        weights = _codebooks(weights)
    if own or values < size:
        weights = {**weights, **vocabulary_maps(weights, size, values)}
    else:  # the target's head, and no maps
        weights = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    return Reading(kind, options, weights)


def read_parallel_eagle(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read a "peagle" file of the `speculators` format: EAGLE-3 with further layers, a mask token and its state."""
    layers = config.get("num_hidden_layers", 1)
    found = eagle3({**config, "num_hidden_layers": 1}, weights, hints)
    proposals = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    tokens = proposals[0].get("speculative_tokens") or config.get("para_depths") or config.get("num_depths")
    if tokens is None:
        raise ValueError("config.json names no speculative_tokens: it is incomplete")
    mask_id = config.get("mask_token_id", config.get("ptd_token_id"))
    if mask_id is None:
        raise ValueError("config.json has no mask_token_id: it is incomplete")
    options = {**found.options, "tokens": tokens, "deeper": layers - 1, "mask_id": mask_id}
    kept = {name: x.flatten() if name == "mask_hidden" else x for name, x in found.weights.items()}
    pairs = [("midlayer.", "layers.0."), *((f"deeper.{k}.", f"layers.{k + 1}.") for k in range(layers - 1))]
    return Reading("p-eagle", options, kept, prefixed(*pairs))


def _codebooks(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` with the selector's tables under the names of embeddings."""
    return {f"{name}.weight" if name.endswith("_codebook") else name: tensor for name, tensor in weights.items()}


def _check_cap(config: Mapping[str, Any], hints: Hints) -> None:
    """Raise ValueError if the drafter's logits are capped otherwise than the target's, whose head it reads."""
    cap = config.get("final_logit_softcapping")
    if hints.target is not None and cap:
        theirs = getattr(hints.target.config.get_text_config(decoder=True), "final_logit_softcapping", None)
        if theirs != cap:
            raise ValueError(f"final_logit_softcapping is {cap} in config.json, but the target's is {theirs}: it is for another target")


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with transformers' defaults of its model type: files leave out what is equal to them."""
    rest = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        return AutoConfig.for_model(str(config.get("model_type", "qwen3")), **rest).to_dict()
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"config.json is no transformers config: {' '.join(str(error).split())}") from None


def _sizes(layer: Mapping[str, Any], inclusive: bool = False) -> dict[str, Any]:
    """Options of the Qwen3Config of the layers."""
    found: dict[str, Any] = {key: layer[key] for key in _SIZES if layer.get(key) is not None} | {"rope_parameters": rope_parameters(layer)}
    if inclusive and found.get("sliding_window"):
        found["sliding_window"] += 1
    return found


def _common(config: Mapping[str, Any], hints: Hints, convention: str, key: str) -> dict[str, Any]:
    """Block size, mask token and hidden states."""
    convention = hints.layer_ids or convention
    if convention not in ("inputs", "outputs"):
        raise ValueError(f"layer_ids is {convention!r}: give 'inputs' (vLLM, speculators) or 'outputs' (SGLang, SpecForge)")
    ids = config.get(key)
    if hints.states is None and not ids:
        raise ValueError(f"config.json has no {key}: it is incomplete; give states=")
    found = tuple(hints.states) if hints.states is not None else tuple(i + (convention == "outputs") for i in ids or ())
    if hints.target is not None:
        numbered(found, len(stack(hints.target)))
    if not isinstance(config.get("mask_token_id"), int):
        raise ValueError("config.json has no mask_token_id: it is incomplete")
    return {"reads": found, "block": number({"block_size": 16, **config}, "block_size"), "mask_id": config["mask_token_id"]}


def _scale(config: Mapping[str, Any], hints: Hints, assistant: bool) -> float | None:
    """How values are embedded: by a scaled bare table where the target's embedding does more than that.

    transformers' assistants leave out the norm of an embedding, but not its scale.
    """
    scale, theirs = config.get("input_embedding_scale", 1.0), None if hints.target is None else hints.target.get_input_embeddings()
    if (type(theirs) is nn.Embedding and scale == 1) or (assistant and theirs is not None and not norms_embeddings(theirs)):
        return None
    return float(scale)
