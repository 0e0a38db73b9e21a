"""Configuration and layers of `LlamaGen` (Sun et al. 2024), with 2-D rotary positions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

CONDITIONS = ("class", "caption")
PREFIX_ATTENTION = ("uniform", "content")


class LlamaGenConfig(PreTrainedConfig):
    """Sizes of a `LlamaGen` (Sun et al. 2024).

    Args:
        vocab_size: size of the codebook.
        hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, intermediate_size: as in `LlamaConfig`.
        grid: side of the square of codes.
        condition: "class" or "caption".
        classes: number of classes, without the one for no class.
        caption_width: width of the text encoder's features.
        prefix: prefix positions: 1 for class models, the number of text features for caption models.
        rope_theta, rms_norm_eps, initializer_range: as in `LlamaConfig`.
        prefix_attention: "uniform", as published: queries and keys of the prefix are multiplied by zeros, so that all its positions get the
            same weight; or "content": they are not rotated, and attention tells the words of a caption apart.
        dropout: dropout of embeddings, attention outputs and feed-forward outputs, in training.
        rest: further options of `PreTrainedConfig`.

    Raises:
        ValueError: for an unknown condition or prefix attention, and for head widths that are not a multiple of 4.
    """

    model_type = "llamagen"

    def __init__(
        self,
        vocab_size: int = 16384,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int | None = None,
        intermediate_size: int | None = None,
        grid: int = 16,
        condition: str = "class",
        classes: int = 1000,
        caption_width: int = 2048,
        prefix: int = 1,
        rope_theta: float = 10000.0,
        rms_norm_eps: float = 1e-5,
        prefix_attention: str = "uniform",
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        **rest: Any,
    ):
        if condition not in CONDITIONS:
            raise ValueError(f"condition is {condition!r}: a LlamaGen is conditioned on {' or '.join(CONDITIONS)}")
        if prefix_attention not in PREFIX_ATTENTION:
            raise ValueError(f"prefix_attention is {prefix_attention!r}: give {' or '.join(PREFIX_ATTENTION)}")
        if hidden_size % num_attention_heads or (hidden_size // num_attention_heads) % 4:
            raise ValueError(
                f"hidden_size {hidden_size} over {num_attention_heads} heads: each head needs a width divisible by 4, "
                "half of it for rows and half for columns"
            )
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.intermediate_size = intermediate_size or -(-int(8 * hidden_size / 3) // 256) * 256
        self.grid, self.condition, self.classes, self.caption_width, self.prefix = grid, condition, classes, caption_width, prefix
        self.prefix_attention = prefix_attention
        self.rope_theta, self.rms_norm_eps, self.dropout, self.initializer_range = rope_theta, rms_norm_eps, dropout, initializer_range
        self.max_position_embeddings = prefix + grid * grid
        options: dict[str, Any] = {"tie_word_embeddings": False} | rest
        super().__init__(**options)


class ClassEmbedding(nn.Module):
    """One vector a class; the last one is for no class."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.hidden_size)

    def forward(self, classes: Tensor) -> Tensor:
        """Return embeddings [R, 1, D] of `classes` [R]."""
        return self.embedding_table(classes)[:, None]


class ProjectionLayer(nn.Module):
    """Two-layer projection of text features."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Project features [..., W] to [..., D]."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedding(nn.Module):
    """Projection of a text encoder's features; `uncond_embedding` are the features for no caption."""

    uncond_embedding: Tensor

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.cap_proj = ProjectionLayer(config.caption_width, config.hidden_size)
        self.register_buffer("uncond_embedding", torch.randn(config.prefix, config.caption_width) / config.caption_width**0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Return embeddings [R, P, D] of `features` [R, P, W]."""
        return self.cap_proj(features)


class Attention(nn.Module):
    """Attention with 2-D rotary positions."""

    def __init__(self, config: LlamaGenConfig, layer: int):
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        self.wqkv = nn.Linear(config.hidden_size, (self.heads + 2 * self.kv_heads) * self.width, bias=False)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        """Return the attention output [R, M, D]."""
        qkv = self.wqkv(x).unflatten(-1, (-1, self.width)).transpose(1, 2)  # [R, heads + 2 kv_heads, M, width]
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], 1)
        q, k = rotate(qk, *rope).split([self.heads, self.kv_heads], 1)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        out = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None and q.shape[2] > 1, enable_gqa=self.heads != self.kv_heads
        )
        return self.wo(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU feed-forward layer."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [..., D] of `x` [..., D]."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class DecoderBlock(nn.Module):
    """One decoder layer."""

    def __init__(self, config: LlamaGenConfig, layer: int):
        super().__init__()
        self.attention, self.feed_forward = Attention(config, layer), FeedForward(config)
        self.attention_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        """Return the layer's output [R, M, D]."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rope, mask, cache))
        return x + self.dropout(self.feed_forward(self.ffn_norm(x)))


def rotary(cells: Tensor, config: LlamaGenConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [R, 1, M, width / 2] for places `cells` [R, M]: the first half rotates by row, the second by column.

    Prefix positions (-1) get zeros, as published, or with `prefix_attention` "content" no rotation.
    """
    width = config.hidden_size // config.num_attention_heads
    steps = torch.arange(0, width // 2, 2, device=cells.device, dtype=torch.float32) / (width // 2)
    rate = config.rope_theta**-steps
    place = torch.stack([cells // config.grid, cells % config.grid], -1)[..., None]  # [R, M, 2, 1]
    angle = (place * rate).flatten(-2)[:, None]
    inside = (cells >= 0)[:, None, :, None]
    if config.prefix_attention == "content":
        angle = angle * inside
        return angle.cos(), angle.sin()
    return angle.cos() * inside, angle.sin() * inside


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of `x` [R, H, M, width]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2).type_as(x)
