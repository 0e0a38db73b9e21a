"""Decoder layers of any transformers family as parts of drafters, described by the family's config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from mmspec.drafters.guided import llama_sizes
from mmspec.models.compat import ask_attention
from mmspec.models.stack import stack

_FULL, _SLIDING = "full_attention", "sliding_attention"


def llama_layer(config: Any) -> dict[str, Any]:
    """A Llama layer of the sizes of transformers' `config`, as options for `Blocks.of`."""
    return {"model_type": "llama"} | llama_sizes(config)


@dataclass(frozen=True)
class Blocks:
    """Classes of a family's parts, and its config for `count` layers."""

    config: Any
    block: type[nn.Module]
    norm: type[nn.Module]
    rope: type[nn.Module]
    several_ropes: bool = False

    @staticmethod
    def of(layer: Mapping[str, Any], count: int, many_ropes: bool = False) -> "Blocks":
        """Return the parts of the family of `layer`, a transformers config with its `model_type`.

        Args:
            layer: the config.
            count: number of layers.
            many_ropes: a rotary embedding may depend on the kind of a layer; then it is called with `rope_options`.

        Raises:
            ValueError: if it is no config, or for layers that the slot cache does not support: recurrent ones, or without a rotary
                embedding, or with several that the caller does not support.
        """
        rest: dict[str, Any] = {**layer, "num_hidden_layers": count}
        try:
            config: Any = AutoConfig.for_model(str(rest.pop("model_type", None)), **rest)
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise ValueError(f"this drafter's layer is no transformers config: {' '.join(str(error).split())}") from None
        _check_kinds(config)
        try:
            with torch.device("meta"):
                shell: Any = AutoModel.from_config(config)
        except ValueError:
            raise ValueError(f"layers of {config.model_type!r} stand inside another model only: this drafter needs another kind") from None
        last, rope = stack(shell)[-1], getattr(shell, "rotary_emb", None)
        if rope is None:
            raise _no_rope(config)
        norm = next(child for name, child in last.named_children() if "norm" in name)
        found = Blocks.like(config, last, norm, rope)
        if found.several_ropes and not many_ropes:
            raise _no_rope(config)
        return found

    @staticmethod
    def like(config: Any, block: nn.Module, norm: nn.Module, rope: nn.Module | None) -> "Blocks":
        """Return the parts that are like those given.

        Args:
            config: of as many layers as there will be.
            block: a decoder layer.
            norm: a norm.
            rope: the rotary embedding.

        Raises:
            ValueError: as `of`.
        """
        ask_attention(config, "sdpa")
        _check_kinds(config)
        if rope is None:
            raise _no_rope(config)
        ropes = getattr(config, "rope_parameters", None) or {}
        several = any(isinstance(each, Mapping) for each in ropes.values())
        return Blocks(config, type(block), type(norm), type(rope), several)

    def rope_options(self, index: int) -> dict[str, str]:
        """Return the options that the rotary embedding takes for layer `index`."""
        return {"layer_type": self.config.layer_types[index]} if self.several_ropes else {}

    def visible(self, index: int, visible: Tensor, positions: Tensor, slot_positions: Tensor) -> Tensor:
        """Return what of `visible` [B, M, S] layer `index` attends to: all, or its sliding window."""
        kinds, window = getattr(self.config, "layer_types", None), getattr(self.config, "sliding_window", None)
        if window is None or (kinds and kinds[index] == _FULL):
            return visible
        return visible & (positions[:, :, None] - slot_positions[:, None] < window)


def _check_kinds(config: Any) -> None:
    """ValueError for layers that cannot be rolled back."""
    for kind in set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}:
        raise ValueError(f"this drafter's layer has {kind}, which cannot be rolled back: only {_FULL} and {_SLIDING} can")


def _no_rope(config: Any) -> ValueError:
    return ValueError(f"{config.model_type} has no one rotary embedding for all layers: this drafter needs one, such as llama's")
