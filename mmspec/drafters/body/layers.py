"""Layers of a body, by what they read of a column, and the parts that join states before and divide them behind.

A mask [B, 1 or 2, M, S] says which columns are seen; its second part, which of them are committed.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)

from mmspec.drafters.features.eagle3_parts import MidLayer
from mmspec.models.compat.cache_name import CACHE


class StateLayer(LlamaDecoderLayer):
    """A Llama layer that reads states alone."""

    def forward(self, state: Tensor, value: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor], cache: Any) -> Tensor:  # type: ignore[override]
        """Return the layer's output [B, M, H]; see `MidLayer.forward`."""
        return super().forward(state, attention_mask=mask[:, :1], position_embeddings=rope, **{CACHE: cache}, use_cache=cache is not None)


class PairLayer(MidLayer):
    """EAGLE-3's layer, at any depth."""

    def __init__(self, config: Any, index: int):
        super().__init__(config, norm_before_residual=False)
        self.self_attn.layer_idx = index

    def forward(self, state: Tensor, value: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor], cache: Any) -> Tensor:
        """Return the layer's output [B, M, H]; see `MidLayer.forward`."""
        return super().forward(state, value, mask[:, :1], rope, cache)


class StateAttention(nn.Module):
    """Attention from columns to the states of committed columns.

    Args:
        config: a LlamaConfig.
        index: number of its keys and values in the cache.
    """

    def __init__(self, config: Any, index: int):
        super().__init__()
        hidden, self.width, self.index = config.hidden_size, config.head_dim, index
        inner, shared = config.num_attention_heads * self.width, config.num_key_value_heads * self.width
        self.q_proj = nn.Linear(hidden, inner, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, shared, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, state: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor], cache: Any) -> Tensor:
        """Return what columns `x` [B, M, H] find in the states that `mask` [B, 1, M, S] shows; 0 where it shows none."""
        pairs = ((self.q_proj, x), (self.k_proj, state), (self.v_proj, state))
        query, key, value = (rearrange(proj(part), "b n (h d) -> b h n d", d=self.width) for proj, part in pairs)
        query, key = apply_rotary_pos_emb(query, key, *rope)
        if cache is not None:
            key, value = cache.update(key, value, self.index)
        something = mask.any(-1, keepdim=True)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~something, enable_gqa=True)
        return self.o_proj(rearrange(found * something, "b h n d -> b n (h d)"))


class ValueLayer(nn.Module):
    """A layer over values that attends to the target's states (Mixture of Attentions, Zimmer et al. 2024): self-attention over the text and
    the draft, cross-attention to committed columns, an MLP. It has two places in the cache.
    """

    def __init__(self, config: Any, index: int):
        super().__init__()
        self.self_attn, self.across, self.mlp = LlamaAttention(config, index), StateAttention(config, index + 1), LlamaMLP(config)
        self.norms = nn.ModuleList(LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(4))

    def forward(self, state: Tensor, value: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor], cache: Any) -> Tensor:
        """Return the layer's output [B, M, H]; see `MidLayer.forward`."""
        own, over, context, inside = self.norms
        x = value + self.self_attn(own(value), position_embeddings=rope, attention_mask=mask[:, :1], **{CACHE: cache})[0]
        x = x + self.across(over(x), context(state), mask[:, 1:], rope, cache)
        return x + self.mlp(inside(x))


LAYERS: dict[str, Any] = {"pair": PairLayer, "state": StateLayer, "value": ValueLayer}


class LayerAttention(nn.Module):
    """Attention of a position's states to one another, in both directions, and their mean (layer self-attention, Zimmer et al. 2024).

    Args:
        hidden: width of a state.
        heads: attention heads.
        layers: number of states.
    """

    def __init__(self, hidden: int, heads: int, layers: int):
        super().__init__()
        self.heads = heads
        self.places = nn.Parameter(0.02 * torch.randn(layers, hidden))
        self.qkv_proj, self.o_proj = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return [B, M, H] for `states` [B, M, L, H]."""
        x = states + self.places
        query, key, value = rearrange(self.qkv_proj(x), "b n l (three h d) -> three b n h l d", three=3, h=self.heads)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        return (x + self.o_proj(rearrange(found, "b n h l d -> b n l (h d)"))).mean(-2)


class BlockCell(nn.Module):
    """States of a block's draft tokens from the layers' output: the output itself, then what an LSTM cell adds step by step.

    Args:
        hidden: width of a state.
    """

    def __init__(self, hidden: int):
        super().__init__()
        self.lstm, self.leave = nn.LSTMCell(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        nn.init.zeros_(self.leave.weight)

    def forward(self, out: Tensor, block: int) -> Tensor:
        """Return [B, M, block * H] for the output `out` [B, M, H]."""
        found = [out.flatten(0, 1)]
        memory = (found[0], torch.zeros_like(found[0]))
        for _ in range(block - 1):
            memory = self.lstm(found[-1], memory)
            found.append(found[-1] + self.leave(memory[0]))
        return torch.cat(found, -1).view(*out.shape[:-1], -1)
