"""ALiBi: models whose attention adds a bias by position in place of position embeddings (MPT, BLOOM, Falcon with alibi).

They compute the bias of a slot from its number; in a tree a slot's number is not its position. The layers of an `own_copy` get biases and
masks made from logical positions. "Train Short, Test Long" (Press et al., 2022), https://arxiv.org/abs/2108.12409.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor

from mmspec.models.changed import replaced, with_arguments
from mmspec.models.compat.cache_name import cache_name_among
from mmspec.models.families.base import DecoderOnly, attention_mask, refuse_unfit_decoder, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache

_TYPES = ("bloom", "falcon", "mpt")


def uses_alibi(model: Any) -> bool:
    """Whether the attention of `model` adds a bias by position."""
    config = model.config
    if config.model_type == "mpt":
        return bool(config.attn_config.alibi)
    return config.model_type == "bloom" or bool(getattr(config, "alibi", False))


@dataclass(frozen=True)
class Alibi(DecoderOnly):
    """Decoders whose layers take the bias as an argument."""

    capturable: ClassVar[bool] = False
    own_masks: ClassVar[bool] = True

    @classmethod
    def of(cls, model: Any) -> "Alibi":
        """The family of `model`. ValueError for models it cannot drive."""
        refuse_unsupported(model)
        if model.config.model_type not in _TYPES:
            raise ValueError(f"{type(model).__name__} adds an ALiBi bias in a way that is not known: supported are {', '.join(_TYPES)}")
        refuse_unfit_decoder(model)
        return cls.read(model)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        model = own_copy(model)
        layers = model.get_decoder().blocks if model.config.model_type == "mpt" else model.get_decoder().h
        everything = torch.ones_like(layout.slot_positions)  # the model's own bias and mask: replaced in front of every layer
        if model.config.model_type == "mpt":
            bias = _mpt_bias(model.get_decoder(), layout)
            with replaced(*((layer.attn, "forward", _mpt_attention(layer.attn, bias, ~layout.visible[:, None])) for layer in layers)):
                return self.run(model, layout, cache, keep, states, attention_mask=everything)
        given = {} if model.config.model_type == "bloom" else {"position_ids": layout.positions}
        change = _bloom if model.config.model_type == "bloom" else _falcon
        mask = attention_mask(layout.visible, model)
        with with_arguments(layers, lambda layer, kwargs: change(model, kwargs, layout, mask)):
            return self.run(model, layout, cache, keep, states, attention_mask=everything, **given)


def _by_position(alibi: Tensor, layout: Layout) -> Tensor:
    """Biases [B * H, 1, S] of slots whose numbers are their positions, as those of the slots' logical positions."""
    rows, view = layout.slot_positions.shape
    index = layout.slot_positions[:, None].expand(-1, len(alibi) // rows, -1)
    return alibi.view(rows, -1, view).gather(2, index).view(len(alibi), 1, view)


def _bloom(model: Any, kwargs: dict[str, Any], layout: Layout, mask: Tensor) -> dict[str, Any]:
    return kwargs | {"alibi": _by_position(kwargs["alibi"], layout), "attention_mask": mask}


def _falcon(model: Any, kwargs: dict[str, Any], layout: Layout, mask: Tensor) -> dict[str, Any]:
    """Falcon's mask holds the bias too, by the square root of the heads' width."""
    given = kwargs["alibi"]
    alibi = _by_position(given.reshape(-1, 1, given.shape[-1]), layout).view(given.shape)
    scaled = alibi / math.sqrt(model.config.hidden_size // model.config.num_attention_heads)
    merged = scaled.masked_fill(~layout.visible[:, None], torch.finfo(scaled.dtype).min)
    return kwargs | {"alibi": alibi, "attention_mask": merged}


def _mpt_bias(decoder: Any, layout: Layout) -> Tensor:
    """[B, H, 1, S]: the model's own table for its longest sequence, whose last entry belongs to each row's furthest position."""
    view = layout.slot_positions.shape[-1]
    table = decoder.build_mpt_alibi_tensor(decoder.num_heads, view, device=layout.ids.device)  # [H, 1, S], 0 at the last slot
    return table[:, 0, layout.slot_positions].transpose(0, 1)[:, :, None]


def _mpt_attention(attention: Any, bias: Tensor, hidden: Tensor) -> Any:
    """The forward of an MPT attention with a bias of its own for every row, which the model's does not take.

    Args:
        bias: [B, H, 1, S].
        hidden: [B, 1, M, S] bool, True where a column must not see.
    """

    def forward(hidden_states: Tensor, position_bias: Any, **given: Any) -> tuple:
        mixed = attention.Wqkv(hidden_states)
        if attention.clip_qkv:
            mixed = mixed.clamp(min=-attention.clip_qkv, max=attention.clip_qkv)
        query, key, value = (rearrange(part, "b n (h d) -> b h n d", h=attention.n_heads) for part in mixed.chunk(3, dim=2))
        key, value = given[cache_name_among(given)].update(key, value, attention.layer_idx)
        scores = query @ key.transpose(-1, -2) * attention.softmax_scale + bias
        weights = scores.masked_fill(hidden, torch.finfo(query.dtype).min).float().softmax(-1).to(value.dtype)
        return attention.out_proj(rearrange(weights @ value, "b h n d -> b n (h d)")), weights

    return forward
