"""How decoder-only transformers models are driven, and the masks every family shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.compat import attention_of, is_stateful
from mmspec.core.layout import Layout

_ATTENTION = ("full_attention", "sliding_attention")


def attention_mask(visible: Tensor, model: Any) -> Tensor:
    """`visible` [B, M, S] as the 4-D mask the model's attention takes: bool for sdpa, additive for eager."""
    visible = visible[:, None]
    if _attention(model) == "sdpa":
        return visible
    dtype = model.dtype
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)


def _attention(model: Any) -> str:
    """The decoder's own: a model that sees or hears may run its towers otherwise."""
    return attention_of(getattr(model.config, "text_config", model.config))


def side_by_side(found: Sequence[Tensor] | None, states: Sequence[int]) -> Tensor | None:
    """Hidden states `states` of all that a model handed out, [B, M, F]; None where none are asked for."""
    return torch.cat([found[state] for state in states], -1) if found is not None and states else None


def refuse_unsupported(model: Any) -> None:
    """Raise ValueError, in one line, for models whose state cannot be rolled back or masked."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or []) - set(_ATTENTION)
    if is_stateful(model) or kinds:
        why = f"layers of kind {', '.join(sorted(kinds))}" if kinds else "a recurrent state"
        raise ValueError(
            f"{name} has {why}, which cannot be rolled back after a rejected draft: use plain transformers generation for this model"
        )
    if _attention(model) not in ("sdpa", "eager"):
        raise ValueError(f"{name} runs {_attention(model)} attention, which takes no 4-D mask: load it with attn_implementation='sdpa'")


def text_prompt(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """`input_ids` [B, P] and their mask [B, P] bool, all ones where none is given."""
    if "input_ids" not in inputs:
        raise ValueError(f"inputs has no input_ids (it has {', '.join(inputs) or 'nothing'}): pass what the tokenizer returned")
    ids = inputs["input_ids"]
    if ids.dim() != 2:
        raise ValueError(f"input_ids has shape {tuple(ids.shape)}: expected [batch, length]; ask the tokenizer for return_tensors='pt'")
    mask = inputs.get("attention_mask")
    return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


@dataclass(frozen=True)
class DecoderOnly:
    """Causal language models. `window` is the sliding window, if any; `mixed` says that only some layers have it."""

    layers: int
    window: int | None = None
    mixed: bool = False

    @staticmethod
    def of(model: Any) -> "DecoderOnly":
        refuse_unsupported(model)
        config = model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None)
        if kinds is not None and "sliding_attention" not in kinds:
            window = None
        return DecoderOnly(config.num_hidden_layers, window, bool(window) and kinds is not None and len(set(kinds)) > 1)

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return text_prompt(inputs)

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        return SlotCache(self.layers, capacity), None

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        out = model(
            input_ids=layout.ids,
            attention_mask=self._masks(model, layout),
            position_ids=layout.positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=bool(states),
        )
        return out.logits, side_by_side(out.hidden_states, states)

    def _masks(self, model: Any, layout: Layout) -> Any:
        full = attention_mask(layout.visible, model)
        if self.window is None:
            return full
        near = layout.positions[:, :, None] - layout.slot_positions[:, None, :] < self.window
        sliding = attention_mask(layout.visible & near, model)
        return {"full_attention": full, "sliding_attention": sliding} if self.mixed else sliding
