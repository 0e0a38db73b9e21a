"""The `speculators` format (vllm-project/speculators), read and written: a drafter trained here can be served by vLLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from mmspec.drafters.block.dflash import DFlash, DSpark
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.checkpoints.published.block import SECOND, read_parallel_eagle, read_speculators_block
from mmspec.drafters.checkpoints.published.eagle import IDS, eagle1, eagle3
from mmspec.drafters.checkpoints.published.records import Hints, Reading, prefixed, require_values
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.eagle3_parts import SharedHead
from mmspec.models.compat import config_path
from mmspec.models.stack import numbered, stack
from mmspec.utils.weights import read_config, write_folder

TYPES = ("eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark")
"""Values of `speculators_model_type` that are read."""
VERSION = "0.5.0"  # of the package whose keys are written
_FUSED = 3  # vLLM's fc takes this many hidden states, whatever the config says
_ARCHITECTURES = {"dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}
_EAGLE1 = prefixed(("fc.", "fusion_fc."), ("layers.0.", "transformer."))


def read_speculators(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read a file of one of the types in `TYPES`; the layer's config is nested. Copies of the verifier's tensors are dropped."""
    kind, layer = config["speculators_model_type"], config.get("transformer_layer_config")
    if kind not in TYPES:
        raise ValueError(f"speculators_model_type {kind!r} in config.json is not supported; valid: {', '.join(TYPES)}")
    if not isinstance(layer, Mapping):
        raise ValueError("config.json has no mapping called transformer_layer_config: it is incomplete")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("verifier_")}
    if kind in ("dflash", "dflash2", "dspark"):
        return read_speculators_block(config, kept, hints)
    require_values(layer, model_type="llama")
    layer = {**_left_out(), **layer}
    if kind == "peagle":
        return read_parallel_eagle({**layer, **{key: value for key, value in config.items() if value is not None}}, kept, hints)
    if kind == "eagle":
        require_values(config, layernorms=False, transformer_layer_architecture="LlamaDecoderLayer")
        return eagle1({**layer, "bias": config.get("fusion_bias", False)}, kept, hints, _EAGLE1)
    return eagle3({**layer, **{key: value for key, value in config.items() if value is not None}}, kept, hints)


def _left_out() -> dict[str, int]:
    """Sizes that the package leaves out of `transformer_layer_config` where they are those of transformers' default Llama."""
    usual = LlamaConfig()
    return {name: getattr(usual, name) for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}


def export_speculators(
    net: Any,
    folder: str | Path,
    target: Any,
    *,
    tokens: int | None = None,
    verifier_name: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a net of EAGLE-3, P-EAGLE, DFlash, DFlash 2, DSpark or EAGLE-1 in the `speculators` layout, atomically: `vllm serve FOLDER`.

    Args:
        net: an `Eagle3`, `ParallelEagle`, `DFlash`, `DFlash2`, `DSpark` or `Eagle1`.
        folder: the folder to write.
        target: the transformers model the net was trained for.
        tokens: draft tokens a round; by default 5, and of block drafters as many as they have.
        verifier_name: name or path of the target in the file; by default the one it was loaded from.
        dtype: dtype of the weights on disk.

    Raises:
        ValueError: for nets that the format does not support.
    """
    if type(net) not in _PARTS:  # what is derived from them reads more than the format says
        known = "eagle3, p-eagle, dflash, dflash2, dspark or eagle1"
        raise ValueError(f"the speculators format has no {getattr(net, 'kind', type(net).__name__)} drafters: export {known}")
    many: int = (getattr(net, "most", None) or 5) if tokens is None else tokens
    if many < 1:
        raise ValueError(f"tokens is {many}: a round drafts at least 1")
    details, weights = _PARTS[type(net)](net, target)
    config = {**_common(net, target, many, verifier_name), "torch_dtype": str(dtype or net.fc.weight.dtype).removeprefix("torch.")}
    weights = {name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    write_folder(Path(folder), config | details, weights, _is_speculator)


def _is_speculator(folder: Path) -> bool:
    try:
        return "speculators_model_type" in read_config(folder)
    except ValueError:
        return False


def _common(net: Any, target: Any, tokens: int, verifier_name: str | None) -> dict[str, Any]:
    """Everything but what the kinds differ in. There must be no `model_type`, or transformers would look for such a model."""
    kind, name = _kind(net), verifier_name or config_path(target.config)
    if not name:
        raise ValueError("the target has no name: give verifier_name=, the path or hub name it is served by")
    method = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": name, "architectures": target.config.architectures or [type(target).__name__]}
    return {
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": verifier,
        },
        **({} if isinstance(net, DFlash) else {"transformer_layer_config": _layer(net)}),
        "tie_word_embeddings": False,
    }


def _kind(net: Any) -> str:
    """The type of a net in the format: a DFlash net with further heads is a DSpark net."""
    if isinstance(net, DFlash2):
        return net.kind
    if isinstance(net, DFlash):
        return "dflash" if net.markov_head is None and net.confidence_head is None else "dspark"
    return "eagle" if isinstance(net, Eagle1) else "peagle" if isinstance(net, ParallelEagle) else net.kind


def _layer(net: Any) -> dict[str, Any]:
    """The layer as a Llama config, its rope told in transformers 4's words and in 5's."""
    llama: Any = net.llama
    rope = dict(llama.rope_parameters)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    names += ("max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias", "initializer_range")
    found = {"model_type": "llama", "num_hidden_layers": 1, **{name: getattr(llama, name) for name in names}, "rope_parameters": rope}
    found |= {"rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else scaling}
    if net.window is not None:
        found |= {"layer_types": ["sliding_attention"], "sliding_window": net.window, "use_sliding_window": True}
    return found | {"tie_word_embeddings": False, "use_cache": True}


def _eagle1_parts(net: Eagle1, target: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    details = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "layernorms": False,
        "fusion_bias": net.fc.bias is not None,
    }
    return details, {_EAGLE1(name): tensor for name, tensor in net.state_dict().items()}


def _eagle3_parts(net: Eagle3, target: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    layers = len(stack(target))
    reads = numbered(net.reads, layers)
    if len(set(reads)) != _FUSED or max(reads) == layers:
        raise ValueError(
            f"this drafter reads hidden states {reads} of {layers} layers: vLLM hands out {_FUSED} different ones, "
            f"0 to {layers - 1}; train it with such reads"
        )
    if net.config["size"] != net.llama.vocab_size:
        raise ValueError(f"the drafter's size is {net.config['size']}, its vocab_size {net.llama.vocab_size}: they must be the same")
    details = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": net.lm_head.out_features,
        "target_hidden_size": None if net.width == net.hidden else net.width,
        IDS: sorted(reads),
        "embed_requires_grad": False,
        **{flag: net.config[flag] for flag in ("norm_before_residual", "norm_before_fc")},
        **{flag: True for flag in ("fc_norm", "norm_output") if net.config[flag]},  # older readers do not know these
    }
    weights = {prefixed(("midlayer.", "layers.0."))(name): tensor for name, tensor in _in_order(net, reads).items()}
    weights = _with_head(net, target, weights)
    embed = target.get_input_embeddings()
    if net.embed_tokens is None and type(embed) is not nn.Embedding:  # one that scales, say: vLLM would share the bare table
        with torch.no_grad():
            weights["embed_tokens.weight"] = embed(torch.arange(net.config["size"], device=embed.weight.device))
    return details, weights


def _parallel_parts(net: ParallelEagle, target: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """EAGLE-3's parts, with the further layers, the mask's state and its value."""
    details, weights = _eagle3_parts(net, target)
    _check_mask(net)
    deeper = {f"deeper.{k}.": f"layers.{k + 1}." for k in range(net.cached - 1)}
    weights = {prefixed(*deeper.items())(name): tensor for name, tensor in weights.items()}
    weights["mask_hidden"] = weights["mask_hidden"].view(1, 1, -1)
    details["transformer_layer_config"] = _layer(net) | {"num_hidden_layers": net.cached}
    return {**details, "architectures": ["PEagleDraftModel"], "mask_token_id": net.mask_id}, weights


def _block_parts(net: DFlash, target: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """DFlash, DFlash 2 and DSpark. Columns of a sliding layer see earlier ones only, or no layer's do."""
    _check_mask(net)
    reads, layers, config = numbered(net.reads, len(stack(target))), len(stack(target)), net.layer_config
    slides = tuple(kind == "sliding_attention" for kind in config.layer_types)
    if net.fc_norm is not None or max(reads) == layers or net.causal not in (slides, (False,) * len(slides)):
        raise ValueError(
            f"this {net.kind} drafter has fc_norm {net.fc_norm is not None}, reads {list(reads)} of {layers} layers and causal "
            f"{list(net.causal)}: the format knows no fc_norm, states 0 to {layers - 1}, and causal layers that slide; train it so"
        )
    kept = {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act"}
    kept |= {"attention_bias", "max_position_embeddings", "layer_types", "sliding_window", "rope_parameters", "use_sliding_window"}
    layer = {name: getattr(config, name) for name in sorted(kept)} | {"model_type": "qwen3", "num_hidden_layers": len(slides)}
    details = {
        "architectures": [f"{_ARCHITECTURES[_kind(net)]}DraftModel"],
        "transformer_layer_config": {**layer, "vocab_size": net.config["size"], "tie_word_embeddings": False},
        "draft_vocab_size": net.config["values"] or net.config["size"],
        "block_size": net.extra,
        "mask_token_id": net.mask_id,
        "aux_hidden_state_layer_ids": list(reads),
        "target_hidden_size": None,
        "sample_from_anchor": net.most == net.extra,
        "sliding_window_non_causal": any(slides) and not any(net.causal),
    }
    if _kind(net) == "dspark":
        details |= {"markov_rank": net.config["markov"], "markov_head_type": net.config["markov_kind"]}
        details |= {"enable_confidence_head": net.confidence_head is not None, "confidence_head_with_markov": net.markov_head is not None}
    if isinstance(net, DFlash2):
        if net.config["values"] or net.confidence_head is not None:
            raise ValueError(
                f"this dflash2 drafter has {net.config['values'] or 'all'} values and a confidence head {net.confidence_head is not None}: "
                "the format's drafts all values of the target, and has no such head"
            )
        details |= {key: net.config[name] for name, key in SECOND.items()}
        tables = {name: name.removesuffix(".weight") if "_codebook" in name else name for name in net.state_dict()}
        return details, _with_head(net, target, {tables[name]: tensor for name, tensor in net.state_dict().items()})
    return details, _with_head(net, target, dict(net.state_dict()))


def _check_mask(net: Any) -> None:
    if net.mask_id is None or getattr(net, "embedding_scale", None) is not None:
        raise ValueError(
            f"this {net.kind} drafter embeds its masks otherwise than the target does: train it with mask_id, a value of the target"
        )


def _with_head(net: Any, target: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """`weights` with the rows of a shared head, and without maps between equal vocabularies."""
    if isinstance(net.lm_head, SharedHead):
        net.attach(target)
        weights["lm_head.weight"] = net.lm_head.rows()
    if net.vocabulary is None:
        weights = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    return weights


def _in_order(net: Eagle3, reads: tuple[int, ...]) -> dict[str, Tensor]:
    """The net's tensors, its states in the order of the layers: vLLM joins them so, however the ids are listed."""
    order = sorted(range(len(reads)), key=reads.__getitem__)
    state = dict(net.state_dict())
    for name in ("fc.weight", "input_norm.weight", "mask_hidden"):
        if name in state:
            state[name] = torch.cat([state[name].split(net.width, -1)[i] for i in order], -1)
    norms = {f"fc_norm.{new}.weight": state[f"fc_norm.{old}.weight"] for new, old in enumerate(order) if net.fc_norm is not None}
    return state | norms


_PARTS = {Eagle1: _eagle1_parts, Eagle3: _eagle3_parts, ParallelEagle: _parallel_parts}
_PARTS |= {DFlash: _block_parts, DFlash2: _block_parts, DSpark: _block_parts}
