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

    @staticmethod
    def of(layer: Mapping[str, Any], count: int) -> "Blocks":
        """Return the parts of the family of `layer`, a transformers config with its `model_type`.

        Raises:
            ValueError: if it is no config, or for layers that the slot cache does not support: recurrent ones, or without a single rotary
                embedding.
        """
        rest: dict[str, Any] = {**layer, "num_hidden_layers": count}
        try:
            config: Any = AutoConfig.for_model(str(rest.pop("model_type", None)), **rest)
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise ValueError(f"this drafter's layer is no transformers config: {' '.join(str(error).split())}") from None
        ask_attention(config, "sdpa")
        for kind in set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}:
            raise ValueError(f"this drafter's layer has {kind}, which cannot be rolled back: only {_FULL} and {_SLIDING} can")
        with torch.device("meta"):
            shell: Any = AutoModel.from_config(config)
        ropes = getattr(config, "rope_parameters", None) or {}
        if getattr(shell, "rotary_emb", None) is None or any(isinstance(rope, Mapping) for rope in ropes.values()):
            raise ValueError(f"{type(shell).__name__} has no one rotary embedding for all layers: this drafter needs one, such as llama's")
        last = stack(shell)[-1]
        norm = next(type(child) for name, child in last.named_children() if "norm" in name)
        return Blocks(config, type(last), norm, type(shell.rotary_emb))

    def visible(self, index: int, visible: Tensor, positions: Tensor, slot_positions: Tensor) -> Tensor:
        """Return what of `visible` [B, M, S] layer `index` attends to: all, or its sliding window."""
        kinds, window = getattr(self.config, "layer_types", None), getattr(self.config, "sliding_window", None)
        if window is None or (kinds and kinds[index] == _FULL):
            return visible
        return visible & (positions[:, :, None] - slot_positions[:, None] < window)
