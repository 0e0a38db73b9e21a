"""Medusa heads as their authors publish them (FasterDecoding/Medusa), and under the names vLLM gives them."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.checkpoints.published.records import Hints, Reading, number, require_values

_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")
_INSIDE = "medusa_head."  # Medusa-2: the heads stand among the tensors of the whole model
_BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.linear\.(\w+)")
_OUTPUT = re.compile(r"outputs\.(\d+)\.weight")


def is_medusa_name(name: str) -> bool:
    """Return True if a tensor called `name` may belong to a Medusa head."""
    return _NAME.fullmatch(name) is not None


def read_medusa(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Read Medusa heads: vLLM's names where the config is vLLM's, else the authors'."""
    if config.get("model_type") == "medusa" or any(name.removeprefix("medusa_heads.").startswith("blocks.") for name in weights):
        return _vllm(config, weights, hints)
    return _original(config, weights, hints)


def _original(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """Head h is `h.0` ... `h.{n-1}`, residual blocks, and `h.n`, its output embedding.

    Configs are known to declare fewer heads than the file holds: all that are there are read. The n blocks of a head are one module
    repeated, so a file may hold the first alone.
    """
    inside = _INSIDE if any(name.startswith(_INSIDE) for name in weights) else ""
    found = {name: tensor for name, tensor in weights.items() if name.startswith(inside)}
    places = [match.groups() for match in map(_NAME.fullmatch, found) if match]
    heads = max([int(head) + 1 for head, _, _ in places] + [config.get("medusa_num_heads") or 1])
    layers = config.get("medusa_num_layers") or max([int(place) + 1 for _, place, part in places if part != "weight"], default=1)
    for head in range(heads):
        for j in range(1, layers):
            for part in ("weight", "bias"):
                if (first := f"{inside}{head}.0.linear.{part}") in found:
                    found.setdefault(f"{inside}{head}.{j}.linear.{part}", found[first])
    outputs = [found[name] for head in range(heads) if (name := f"{inside}{head}.{layers}.weight") in found]

    def theirs(name: str) -> str:
        if block := _BLOCK.fullmatch(name):
            return f"{inside}{block[1]}.{block[2]}.linear.{block[3]}"
        output = _OUTPUT.fullmatch(name)
        return name if output is None else f"{inside}{output[1]}.{layers}.weight"

    hidden = _hidden(config, found.get(f"{inside}0.0.linear.weight"), hints)
    options = {"hidden": hidden, "heads": heads, "layers": layers, "own_heads": len(outputs[0]) if outputs else 0}
    return Reading("medusa", options, found, theirs)


def _vllm(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    """`blocks.h.layers.j` and `lm_heads.h`, both behind `medusa_heads.` or not; a bias only where `medusa_fc_bias` says so."""
    require_values(config, logit_scale=1.0, quantization_config=None)
    prefix = "medusa_heads." if any(name.startswith("medusa_heads.") for name in weights) else ""
    found = {name if name.startswith(prefix) else prefix + name: tensor for name, tensor in weights.items()}
    heads, layers, size = number(config, "num_heads"), config.get("num_hidden_layers") or 1, number(config, "vocab_size")
    hidden, known = _hidden(config, None, hints), config.get("truncated_vocab_size") or size
    if known == size:
        found.pop(f"{prefix}token_map", None)
    shared = [found.pop(name) for name in (f"{prefix}lm_head.weight", f"{prefix}lm_heads.0.weight") if _one(config) and name in found]
    own = known < size or not _one(config)
    if own and shared:
        found |= {f"{prefix}lm_heads.{head}.weight": shared[0] for head in range(heads)}
    ids = found.get(f"{prefix}token_map")
    for name, tensor in found.items():
        if ids is not None and name.startswith(f"{prefix}lm_heads.") and len(tensor) > len(ids):
            found[name] = tensor[ids]
    if not config.get("medusa_fc_bias"):
        biases = {f"{prefix}blocks.{head}.layers.{j}.bias": torch.zeros(hidden) for head in range(heads) for j in range(layers)}
        found = biases | found

    def theirs(name: str) -> str:
        if block := _BLOCK.fullmatch(name):
            return f"{prefix}blocks.{block[1]}.layers.{block[2]}.{block[3]}"
        output = _OUTPUT.fullmatch(name)
        return prefix + (name if output is None else f"lm_heads.{output[1]}.weight")

    options = {"hidden": hidden, "heads": heads, "layers": layers, "own_heads": known if own else 0, "size": size if known < size else 0}
    return Reading("medusa", options, found, theirs)


def _one(config: Mapping[str, Any]) -> bool:
    """Whether one head, the target's, serves all."""
    return bool(config.get("original_lm_head"))


def _hidden(config: Mapping[str, Any], first: Tensor | None, hints: Hints) -> int:
    if config.get("hidden_size") is not None:
        return number(config, "hidden_size")
    if hints.target is not None or first is None:
        return hints.ask("hidden_size", "how wide the target's hidden states are")
    return len(first)
