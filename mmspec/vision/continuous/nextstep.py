"""NextStep-1 (arXiv 2508.10711): Qwen2.5 as the backbone, a linear map into it and one out of it, and a flow-matching head.

Names of modules are those of the published checkpoints, whose `lm_head` is not read: the language model's words are not generated here.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

FREQUENCIES = 128
"""Frequencies of a time's embedding."""
OWN = ("latent_patch_size", "latent_channels", "fm_head_dim", "fm_head_layers")
NAMED = {
    "num_channels": "latent_channels",
    "patch_size": "latent_patch_size",
    "genloss_width": "fm_head_dim",
    "genloss_depth": "fm_head_layers",
}
"""Older names of fields that published configs have beside the newer ones."""


def nextstep_config(fields: Mapping[str, Any]) -> Qwen2Config:
    """Make the config of a `NextStep` from the fields of a checkpoint's `config.json`.

    Args:
        fields: those of the published configs: a Llama's with `attention_bias`, and `latent_patch_size`, `latent_channels`, `fm_head_dim`,
            `fm_head_layers`, `boi`, `use_gen_pos_embed`. Sampling by default: `head_steps` 50, `timesteps_shift` 1, `sigma_out` 0.

    Returns:
        A Qwen2 config with these fields.

    Raises:
        ValueError: for another kind of model, and for biases that Qwen2 does not have.
    """
    if fields.get("model_type") != "nextstep":
        raise ValueError(f"model_type is {fields.get('model_type')!r}: NextStep-1's config.json has 'nextstep'")
    biases = {name: bool(fields.get(name, usual)) for name, usual in (("attention_bias", False), ("mlp_bias", False))}
    biases["o_attention_bias"] = bool(fields.get("o_attention_bias", biases["attention_bias"]))
    if biases != {"attention_bias": True, "mlp_bias": False, "o_attention_bias": False}:
        raise ValueError(f"biases are {biases}: the backbone that mmspec runs is Qwen2's, with biases of queries, keys and values only")
    if not isinstance(fields.get("boi"), int):
        raise ValueError("boi is missing: config.json names the token that begins a picture")
    older = {new: fields[old] for old, new in NAMED.items() if old in fields}
    sizes = dict(zip(OWN, (2, 16, 1536, 12), strict=True)) | older | {name: fields[name] for name in OWN if name in fields}
    usual: dict[str, Any] = {
        "head_steps": 50,
        "timesteps_shift": 1.0,
        "sigma_out": 0.0,
        "every": 1,
        "use_gen_pos_embed": False,
        "base_image_grid_size": 64,
    }
    unread = ("model_type", "attention_bias", "mlp_bias", "o_attention_bias", "architectures", "auto_map", "transformers_version", *NAMED)
    rest = {name: value for name, value in fields.items() if name not in unread}
    own = {"head": "diffusion", "channels": sizes["latent_channels"] * sizes["latent_patch_size"] ** 2}
    found: dict[str, Any] = {**usual, **rest, **sizes, **own}
    return Qwen2Config(**found)


class ModulatedBlock(nn.Module):
    """A residual block whose norm is shifted, scaled and gated by the conditioning.

    Args:
        width: its width.
    """

    def __init__(self, width: int):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        """Return [M, W]."""
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    """The head's output, with a norm that is shifted and scaled by the conditioning.

    Args:
        width: width of the head.
        channels: numbers a token.
    """

    def __init__(self, width: int, channels: int):
        super().__init__()
        self.linear = nn.Linear(width, channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Return [M, d]."""
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class FlowHead(nn.Module):
    """The flow-matching head: the velocity of noisy tokens. A `PreparedHead`.

    Args:
        channels: numbers a token.
        hidden: width of the backbone.
        width: width of the head.
        layers: blocks.
    """

    def __init__(self, channels: int, hidden: int, width: int, layers: int):
        super().__init__()
        self.time_embed = nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))})
        self.cond_embed, self.input_proj = nn.Linear(hidden, width), nn.Linear(channels, width)
        self.res_blocks = nn.ModuleList(ModulatedBlock(width) for _ in range(layers))
        self.final_layer = FinalLayer(width, channels)

    def forward(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        """Return the velocity [M, d] of `x` [M, d] at times [M], given `z` [M, D]."""
        return self.denoise(x, self.condition(self.embed_times(timesteps), z))

    def embed_times(self, timesteps: Tensor) -> Tensor:
        """Embed times [...] as [..., W]."""
        index = torch.arange(FREQUENCIES, dtype=torch.float32, device=timesteps.device)
        angle = timesteps[..., None].float() * torch.exp(-math.log(10000.0) / FREQUENCIES * index)
        return self.time_embed["mlp"](torch.cat([angle.cos(), angle.sin()], -1).to(self.cond_embed.weight.dtype))

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        """Compute shifts, scales and gates of all blocks.

        Args:
            times: embedded times [..., W].
            z: conditioning [..., D].

        Returns:
            [..., (3 layers + 2) W].
        """
        y = times + self.cond_embed(z.to(self.cond_embed.weight.dtype))
        blocks: list[Any] = [*self.res_blocks, self.final_layer]
        return torch.cat([block.adaLN_modulation(y) for block in blocks], -1)

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the velocity [M, d] of `x` [M, d], given the modulations [M, (3 layers + 2) W], in the dtype of `x`."""
        parts = condition.chunk(3 * len(self.res_blocks) + 2, -1)
        hidden = self.input_proj(x.to(self.input_proj.weight.dtype))
        for number, block in enumerate(self.res_blocks):
            hidden = block(hidden, *parts[3 * number : 3 * number + 3])
        return self.final_layer(hidden, *parts[-2:]).to(x.dtype)


class NextStep(Qwen2Model):
    """NextStep-1 without its head for words.

    Args:
        config: of `nextstep_config`.
    """

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^gen_pos_embed$"]

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        own: Any = config
        self.image_in_projector = nn.Linear(own.channels, config.hidden_size)
        self.image_out_projector = nn.Linear(config.hidden_size, config.hidden_size)
        self.image_head = nn.ModuleDict({"net": FlowHead(own.channels, config.hidden_size, own.fm_head_dim, own.fm_head_layers)})
        self.post_init()

    @property
    def head(self) -> FlowHead:
        """The flow-matching head."""
        return self.image_head["net"]  # pyright: ignore[reportReturnType]


def place_embeddings(width: int, side: int) -> Tensor:
    """Compute what is added to the states that predict the tokens of a grid (`use_gen_pos_embed`).

    Args:
        width: width of the backbone.
        side: side of the square of places.

    Returns:
        Sines and cosines of the column, then of the row, [side, side, width].
    """
    rates = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * rates
    line = torch.cat([angle.sin(), angle.cos()], -1)
    column, row = line[None].expand(side, -1, -1), line[:, None].expand(-1, side, -1)
    return torch.cat([column, row], -1).float()
