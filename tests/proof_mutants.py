"""Models and families with one planted mistake each, for the tests of `mmspec.models.proof.require` and `mmspec check`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers as hf

from mmspec.core.records import PAD, Draft
from mmspec.models import session as sessions
from mmspec.models.compat.cache_name import CACHE
from mmspec.models.layout import Layout
from tests.sizes import LLAMA, Case, build

NEW = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""Rope settings that no family of the suite has: a Llama with these is tested before it runs."""


def untested(kind: type = hf.LlamaForCausalLM, **settings: Any) -> Any:
    rope = {**NEW, "original_max_position_embeddings": 64}
    return build(Case(lambda: kind(hf.LlamaConfig(**LLAMA, rope_parameters=rope, **settings)), "decoder"))


# --- families: what a session hands the model ---------------------------------------------------------------------------


def laid_out(change: Callable[[Layout, Draft, int], Layout]) -> Callable[..., Layout]:
    """`draft_layout` with `change` applied to what it gives."""
    real = sessions.draft_layout

    def wrong(draft: Draft, first: int, *rest: Any) -> Layout:
        return change(real(draft, first, *rest), draft, first)

    return wrong


def mask_off_by_one(layout: Layout, draft: Draft, first: int) -> Layout:
    """A column does not see the slot in front of its own."""
    slot = torch.arange(layout.visible.shape[-1])
    return layout.seeing(layout.visible & (slot != layout.slots[..., None] - 1))


def position_off_by_one(layout: Layout, draft: Draft, first: int) -> Layout:
    return replace(layout, positions=layout.positions + 1)


def sibling_seen(layout: Layout, draft: Draft, first: int) -> Layout:
    """A column sees its siblings that stand before it."""
    parents = draft.parents[:, first:]
    same = (parents[:, :, None] == draft.parents[:, None, :]) & (draft.parents[:, None, :] != PAD)
    earlier = torch.arange(draft.size) < torch.arange(first, draft.size)[:, None]
    width = layout.visible.shape[-1]
    slots = torch.nn.functional.pad(layout.slots, (first, 0)).clamp(max=width - 1)
    seen = torch.zeros_like(layout.visible).scatter_(2, slots[:, None, :].expand(-1, parents.shape[1], -1), same & earlier)
    return layout.seeing(layout.visible | seen)


LAYOUTS = {"mask off by one": mask_off_by_one, "position off by one": position_off_by_one, "sibling seen": sibling_seen}


# --- models --------------------------------------------------------------------------------------------------------------


class SlotAlibi(hf.LlamaForCausalLM):
    """Its attention prefers near slots, by their number instead of their position."""

    def forward(self, input_ids=None, attention_mask=None, **more):
        length = input_ids.shape[1]
        if attention_mask is None or attention_mask.dim() == 2:
            seen = torch.ones(length, length, dtype=torch.bool).tril()[None, None].expand(len(input_ids), 1, -1, -1)
            seen = seen if attention_mask is None else seen & attention_mask[:, None, None, :].bool()
            seen = seen | torch.eye(length, dtype=torch.bool)
        else:
            seen = attention_mask
        bias = 0.3 * torch.arange(seen.shape[-1], dtype=torch.float32)
        mask = torch.where(seen, bias, torch.finfo(torch.float32).min)
        return super().forward(input_ids=input_ids, attention_mask=mask, **more)


class RopeSwitch(hf.LlamaForCausalLM):
    """All its positions are scaled as soon as one of a forward is beyond the length it was first trained for."""

    def forward(self, input_ids=None, position_ids=None, **more):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None].expand_as(input_ids)
        if position_ids.max() >= self.config.original_max_position_embeddings:
            position_ids = position_ids.float() / 3
        return super().forward(input_ids=input_ids, position_ids=position_ids, **more)


class Bidirectional(hf.LlamaForCausalLM):
    """An encoder: without a cache every token sees all others."""

    def forward(self, input_ids=None, attention_mask=None, use_cache=None, **more):
        if attention_mask is None and not more.get(CACHE):
            length = input_ids.shape[1]
            attention_mask = torch.ones(len(input_ids), 1, length, length, dtype=torch.bool)
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache, **more)


def dropout_left_on(model: Any) -> Any:
    layer = model.model.layers[1]
    layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.1))  # new modules are in training mode
    return model


def one_percent_noise(model: Any) -> Any:
    """Every forward of a layer adds 1 % of noise to what it computes."""

    def noisy(module: Any, args: Any, output: Any) -> Any:
        return output + 0.01 * output.std() * torch.randn_like(output)

    model.model.layers[0].mlp.register_forward_hook(noisy)
    return model


def nan_weights(model: Any) -> Any:
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = torch.nan
    return model


MODELS = {
    "ALiBi by slot": lambda: untested(SlotAlibi),
    "rope switch": lambda: untested(RopeSwitch, original_max_position_embeddings=16),
    "a bidirectional encoder": lambda: untested(Bidirectional),
    "dropout left on": lambda: dropout_left_on(untested()),
    "1 % noise": lambda: one_percent_noise(untested()),
    "NaN logits": lambda: nan_weights(untested()),
}
