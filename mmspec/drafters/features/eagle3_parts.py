"""Parts of EAGLE-3's net: its layer, and the vocabulary and output embedding that it shares with other drafters."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from mmspec.drafters.int8 import int8_rows
from mmspec.models.compat.cache_name import CACHE
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
        found, _ = self.self_attn(both, attention_mask=mask, position_embeddings=rope, **{CACHE: cache})
        x = residual + found
        return x + self.mlp(self.post_attention_layernorm(x))


class SharedHead(nn.Module):
    """The rows of a target's output embedding for a drafter's values: nothing of it is trained or saved.

    Args:
        values: number of the drafter's values.

    Attributes:
        int8: keep the rows in int8, on a CPU; set before `attach`.
    """

    def __init__(self, values: int):
        super().__init__()
        self.out_features, self.int8 = values, False
        self._light: tuple[nn.Module, ...] = ()
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
            rows = rows.to(like.device, like.dtype)
            self._light = (int8_rows(rows),) if self.int8 else ()
            self._rows, self._key = () if self.int8 else (rows,), key

    def rows(self) -> Tensor:
        """Return the rows [values, H]. ValueError before `attach`."""
        if not self._rows:
            raise ValueError("this drafter shares the head of its target: call attach(target) first, or generate with it")
        return self._rows[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., values] of `hidden` [..., H]."""
        return self._light[0](hidden) if self._light else nn.functional.linear(hidden, self.rows())


class DraftVocabulary(nn.Module):
    """The drafted values of a net, all of the target's or a part of them, and the output embedding for them.

    `d2t` [values] is added to a drafter id to get the target's; `t2d` [size] marks the target ids that the drafter knows.

    Attributes:
        lm_head: maps states to logits over the drafted values; None to use the target's own head for all of them.
        norm: the norm before it.
    """

    d2t: Tensor
    t2d: Tensor
    lm_head: Any
    norm: Any

    def set_vocabulary(self, size: int, values: int, hidden: int, shared_head: bool) -> None:
        """Make the head and the maps of `values` of the target's `size` values.

        Args:
            size: number of values of the target.
            values: number of values of the drafter.
            hidden: width of the drafter's states.
            shared_head: take the rows of the target's head, not trained and not saved.
        """
        self.lm_head = SharedHead(values) if shared_head else nn.Linear(hidden, values, bias=False)
        self.register_buffer("d2t", torch.zeros(values, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(size) < values)

    def know(self, ids: Tensor) -> None:
        """Make `ids` [values], ascending, the drafter's vocabulary."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()[ids] = True

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless the maps between the vocabularies in `weights` agree and stay inside the target's."""
        if "d2t" not in weights:
            return
        d2t, t2d = weights["d2t"].long(), weights["t2d"].bool()
        if len(d2t) == len(t2d):
            if d2t.any():
                raise ValueError(f"tensor d2t moves ids, but the drafter has all {len(t2d)} values of the target: all zeros are needed")
            return
        ids = d2t + torch.arange(len(d2t), device=d2t.device)
        if ids.min() < 0 or ids.max() >= len(t2d):
            raise ValueError(
                f"tensor d2t leads to target ids {int(ids.min())} to {int(ids.max())}, but there are {len(t2d)}: it holds offsets, not ids"
            )
        if len(ids.unique()) != len(ids) or not t2d[ids].all() or int(t2d.sum()) != len(ids):
            raise ValueError(f"tensors d2t and t2d disagree: {len(ids.unique())} target ids against {int(t2d.sum())}, not the same ones")

    def start_from(self, target: Any) -> None:
        """Initialise with the rows of the target's head for the drafter's vocabulary. Call `know` first."""
        self.attach(target)
        if isinstance(self.lm_head, nn.Linear):
            weight = target.get_output_embeddings().weight.detach()
            self.lm_head.weight.data.copy_(weight if self.vocabulary is None else weight[self.vocabulary])

    def attach(self, target: Any) -> None:
        """Take the shared head's rows of `target`; nothing for a head of its own. ValueError if the target has none to share."""
        if isinstance(self.lm_head, SharedHead):
            self.lm_head.attach(target, None if self.vocabulary is None else self.d2t, self.norm.weight)

    @property
    def vocabulary(self) -> Tensor | None:
        """The target id of each of the drafter's values; None if they are the same."""
        if self.lm_head is None or len(self.d2t) == len(self.t2d):
            return None
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t


def over_target(own: Tensor, known: Tensor | None, size: int) -> Tensor:
    """Return logits over the target's `size` values from `own` [..., values] over the values `known`; -inf for the others.

    Args:
        own: logits over the drafter's values.
        known: [values] their ids; None if they are the target's.
        size: number of values of the target.
    """
    return own if known is None else own.new_full((*own.shape[:-1], size), -torch.inf).index_copy_(-1, known, own)
