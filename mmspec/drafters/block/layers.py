"""Decoder layers of DFlash: the columns of a block attend to one another and to context features injected as keys and values."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP, Qwen3RMSNorm, rotate_half

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [B, heads, Q, D] of block columns, keys and values [B, kv heads, M + Q, D] of context columns and of those) -> what
attention gives, [B, heads, Q, D]."""


class BlockAttention(Qwen3Attention):
    """Attention with Qwen-3's weights whose keys and values come from context features first, then from the block's columns."""

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:  # type: ignore[override]
        """Return the attention output [B, Q, H].

        Args:
            x: [B, Q, H] the block's columns, normed.
            context: [B, M, H] context features.
            rope: cosines and sines [B, M + Q, D] of context columns and block columns.
            attend: what is attended to.
        """
        both = torch.cat([context, x], 1)
        query = _rotated(self.q_norm(self._heads(self.q_proj(x))), *(each[:, -x.shape[1] :] for each in rope))
        key = _rotated(self.k_norm(self._heads(self.k_proj(both))), *rope)
        value = self._heads(self.v_proj(both)).transpose(1, 2)
        found = attend(self.layer_idx, query.to(value.dtype), key.to(value.dtype), value)
        return self.o_proj(found.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [B, M, heads, D] rotated, as [B, heads, M, D]."""
    x = x.transpose(1, 2)
    return x * cos[:, None] + rotate_half(x) * sin[:, None]


class BlockLayer(nn.Module):
    """One layer: attention and an MLP, each behind a norm.

    Args:
        config: of the layer.
        index: number of the layer.
    """

    def __init__(self, config: Qwen3Config, index: int):
        super().__init__()
        self.self_attn = BlockAttention(config, index)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Return the layer's output [B, Q, H]; see `BlockAttention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), context, rope, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


def block_sights(along: Tensor, anchors: Tensor, columns: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return what some columns of many blocks may see, [B, Q, W + Q] bool, and how far back that is, [B, Q, W + Q].

    Args:
        along: [B, W] positions of the text: a column sees those before its block's anchor, and its own block.
        anchors: [B, A] positions of the blocks' first values.
        columns: [B, C] positions of all columns, block by block.
        part: Q of the columns, as whole blocks.
    """
    number = torch.arange(part.start, part.stop, device=anchors.device) // (columns.shape[1] // anchors.shape[1])
    before, own = along[:, None] < anchors[:, number, None], columns[:, part]
    same = (number == number[:, None]).expand(len(anchors), -1, -1)
    return torch.cat([before, same], -1), own[..., None] - torch.cat([along, own], 1)[:, None]
