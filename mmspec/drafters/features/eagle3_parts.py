"""Parts of EAGLE-3's net: its layer, and a head that it shares with the target."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from mmspec.models.compat.models import writes_of


class MidLayer(nn.Module):
    """EAGLE-3's layer: attention reads the value and the state concatenated; the residual stream is the state's."""

    def __init__(self, config: LlamaConfig, norm_before_residual: bool):
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, old.out_features, bias=old.bias is not None))
        self.mlp = LlamaMLP(config)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, state: Tensor, value: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor], cache: Any) -> Tensor:
        """Return the layer's output [B, M, H] for `state` and `value` [B, M, H]; `mask` is [B, 1, M, S] bool."""
        normed = self.hidden_norm(state)
        residual = normed if self.norm_before_residual else state
        both = torch.cat([self.input_layernorm(value), normed], -1)
        found, _ = self.self_attn(both, attention_mask=mask, position_embeddings=rope, past_key_values=cache)
        x = residual + found
        return x + self.mlp(self.post_attention_layernorm(x))


class SharedHead(nn.Module):
    """The rows of a target's output embedding for a drafter's values: nothing of it is trained or saved.

    Args:
        values: number of the drafter's values.
    """

    def __init__(self, values: int):
        super().__init__()
        self.out_features = values
        self._rows: tuple[Tensor, ...] = ()  # in a tuple, or it would follow the module to other dtypes and devices alone
        self._key: tuple[Any, ...] = ()

    def attach(self, target: Any, ids: Tensor | None, like: Tensor) -> None:
        """Take the rows of `target`. Costs nothing where they are the ones taken before.

        Args:
            target: a transformers model.
            ids: [values] the target's ids of the drafter's values; None for all.
            like: a tensor of the dtype and on the device that they are needed in.

        Raises:
            ValueError: for a target without an output embedding of the right size.
        """
        weight: Any = getattr(target.get_output_embeddings(), "weight", None)
        fits = isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point() and not weight.is_meta
        if weight is None or not fits or (ids is None and len(weight) != self.out_features):
            raise ValueError(f"this drafter shares the head of its target, but that of {type(target).__name__} cannot be shared")
        key = (weight.data_ptr(), writes_of(weight), None if ids is None else (ids.data_ptr(), writes_of(ids)), like.dtype, like.device)
        if key != self._key:
            rows = weight.detach() if ids is None else weight.detach()[(ids + torch.arange(len(ids), device=ids.device)).to(weight.device)]
            self._rows, self._key = (rows.to(like.device, like.dtype),), key

    def rows(self) -> Tensor:
        """Return the rows [values, H]. ValueError before `attach`."""
        if not self._rows:
            raise ValueError("this drafter shares the head of its target: call attach(target) first, or generate with it")
        return self._rows[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., values] of `hidden` [..., H]."""
        return nn.functional.linear(hidden, self.rows())
