"""The `speculators` format (vllm-project/speculators), read and written: a drafter trained here can be served by vLLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from mmspec.drafters.checkpoints.published.eagle import IDS, eagle1, eagle3
from mmspec.drafters.checkpoints.published.records import Hints, Reading, prefixed, require_values
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.eagle3_parts import SharedHead
from mmspec.models.compat import config_path
from mmspec.models.stack import numbered, stack
from mmspec.utils.weights import read_config, write_folder

VERSION = "0.5.0"  # of the package whose keys are written
_FUSED = 3  # vLLM's fc takes this many hidden states, whatever the config says
_EAGLE1 = prefixed(("fc.", "fusion_fc."), ("layers.0.", "transformer."))


def read_speculators(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read an "eagle" or "eagle3" file; the layer's config is nested. Copies of the verifier's tensors are dropped."""
    kind, layer = config["speculators_model_type"], config.get("transformer_layer_config")
    if kind not in ("eagle", "eagle3"):
        raise ValueError(f"speculators_model_type {kind!r} in config.json is not supported; valid: eagle, eagle3")
    if not isinstance(layer, Mapping):
        raise ValueError("config.json has no mapping called transformer_layer_config: it is incomplete")
    require_values(layer, model_type="llama")
    layer = {**_left_out(), **layer}
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("verifier_")}
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
    tokens: int = 5,
    verifier_name: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write an EAGLE-3 (or EAGLE-1) net in the `speculators` layout, atomically. vLLM serves EAGLE-3 files: `vllm serve FOLDER`.

    Args:
        net: an `Eagle3` or `Eagle1`.
        folder: the folder to write.
        target: the transformers model the net was trained for.
        tokens: draft tokens a round.
        verifier_name: name or path of the target in the file; by default the one it was loaded from.
        dtype: dtype of the weights on disk.

    Raises:
        ValueError: for nets that the format does not support.
    """
    if type(net) not in (Eagle1, Eagle3):  # what is derived from them reads more than the format says
        raise ValueError(f"the speculators format has no {getattr(net, 'kind', type(net).__name__)} drafters: export eagle3 or eagle1")
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}: a round drafts at least 1")
    config = {**_common(net, target, tokens, verifier_name), "torch_dtype": str(dtype or net.fc.weight.dtype).removeprefix("torch.")}
    if isinstance(net, Eagle1):
        details, weights = _eagle1_parts(net)
    else:
        details, weights = _eagle3_parts(net, target)
    weights = {name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    write_folder(Path(folder), config | details, weights, _is_speculator)


def _is_speculator(folder: Path) -> bool:
    try:
        return "speculators_model_type" in read_config(folder)
    except ValueError:
        return False


def _common(net: Eagle1 | Eagle3, target: Any, tokens: int, verifier_name: str | None) -> dict[str, Any]:
    """Everything but what the two kinds differ in. There must be no `model_type`, or transformers would look for such a model."""
    kind, name = "eagle" if isinstance(net, Eagle1) else net.kind, verifier_name or config_path(target.config)
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
        "transformer_layer_config": _layer(net),
        "tie_word_embeddings": False,
    }


def _layer(net: Eagle1 | Eagle3) -> dict[str, Any]:
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


def _eagle1_parts(net: Eagle1) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
    if isinstance(net.lm_head, SharedHead):
        net.attach(target)
        weights["lm_head.weight"] = net.lm_head.rows()
    if net.vocabulary is None:
        del weights["d2t"], weights["t2d"]
    embed = target.get_input_embeddings()
    if net.embed_tokens is None and type(embed) is not nn.Embedding:  # one that scales, say: vLLM would share the bare table
        with torch.no_grad():
            weights["embed_tokens.weight"] = embed(torch.arange(net.config["size"], device=embed.weight.device))
    return details, weights


def _in_order(net: Eagle3, reads: tuple[int, ...]) -> dict[str, Tensor]:
    """The net's tensors, its states in the order of the layers: vLLM joins them so, however the ids are listed."""
    order = sorted(range(len(reads)), key=reads.__getitem__)
    state = dict(net.state_dict())
    for name in ("fc.weight", "input_norm.weight"):
        if name in state:
            state[name] = torch.cat([state[name].split(net.width, -1)[i] for i in order], -1)
    norms = {f"fc_norm.{new}.weight": state[f"fc_norm.{old}.weight"] for new, old in enumerate(order) if net.fc_norm is not None}
    return state | norms
