"""Models and families with one planted mistake each, for the tests of `mmspec.models.proof.require` and `mmspec check`."""

import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers as hf
from torch import nn

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


# --- altered models of covered classes: what is computed is not what their class says -------------------------------------


class OneScale(nn.Linear):
    """Rounds what enters it to 8 bits, with one scale for all columns."""

    def forward(self, x):
        scale = x.abs().amax() / 127 if x.numel() else 1
        return nn.functional.linear((x / scale).round() * scale, self.weight, self.bias)


class ScalePerToken(nn.Linear):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
        return nn.functional.linear((x / scale).round() * scale, self.weight, self.bias)


class WeightWithOneScale(torch.Tensor):
    """A weight that rounds what it is multiplied with, as quantisers that replace weights do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            scale = args[0].abs().amax() / 127
            args = ((args[0] / scale).round() * scale, *args[1:])
        return super().__torch_function__(function, types, args, kwargs or {})


class BatchAdapter(nn.Module):
    """Adds what it computes from the statistics of all columns."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.norm = inner, nn.BatchNorm1d(32, track_running_stats=False)

    def forward(self, x):
        out = self.inner(x)
        return out + (self.norm(out.flatten(0, -2)).view_as(out) if out[..., 0].numel() > 1 else 0)


def llama(**settings: Any) -> Any:
    return build(Case(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, **settings)), "decoder"))


def with_linears(kind: type, model: Any) -> Any:
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = kind
    return model


def with_weights(kind: type, model: Any) -> Any:
    layer = model.model.layers[1].mlp.up_proj
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(kind), requires_grad=False)
    return model


def dynamically_quantized(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def changed(output: Any, column: slice = slice(-1, None)) -> Any:
    """What a layer returns, changed in its last column."""
    output = output.clone()
    output[:, column] += 0.1 * output[:, column].roll(1, -1)
    return output


def last_column_hooked(model: Any) -> Any:
    model.model.layers[1].register_forward_hook(lambda module, args, output: changed(output))
    return model


def first_column_hooked(model: Any) -> Any:
    model.model.layers[1].register_forward_hook(lambda module, args, output: changed(output, slice(1)))
    return model


def end_of_prompt_hooked(model: Any) -> Any:
    hook = lambda module, args, output: changed(output) if output.shape[1] > 1 else output  # noqa: E731
    model.model.layers[1].register_forward_hook(hook)
    return model


def last_column_before(model: Any) -> Any:
    model.model.layers[1].register_forward_pre_hook(lambda module, args: (changed(args[0]), *args[1:]))
    return model


def own_forward(model: Any) -> Any:
    layer = model.model.layers[1].mlp
    before = layer.forward
    layer.forward = torch.no_grad()(lambda x: changed(before(x)))
    return model


def parametrized(model: Any) -> Any:
    class Doubled(nn.Module):
        def forward(self, weight):
            return weight * 2

    nn.utils.parametrize.register_parametrization(model.model.layers[1].mlp.up_proj, "weight", Doubled())
    return model


def hooked_to_look(model: Any) -> Any:
    model.model.layers[0].register_forward_hook(lambda *args: None)
    return model


def batch_adapter(model: Any) -> Any:
    model.model.layers[0].mlp = BatchAdapter(model.model.layers[0].mlp).eval()
    return model


def with_lora(model: Any) -> Any:
    import peft

    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=2, lora_dropout=0.1))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return adapted.base_model.model.eval()


def class_forward(model: Any, monkeypatch: Any) -> Any:
    kind = type(model.model.layers[0].mlp)
    before = kind.forward
    monkeypatch.setattr(kind, "forward", functools.wraps(before)(lambda self, x: changed(before(self, x))))
    return model


def helper_function(model: Any, monkeypatch: Any) -> Any:
    file = sys.modules[type(model).__module__]
    before = file.apply_rotary_pos_emb
    monkeypatch.setattr(file, "apply_rotary_pos_emb", lambda q, k, *rest, **more: (changed(q.mT).mT, before(q, k, *rest, **more)[1]))
    return model


def replaced_attention(model: Any, monkeypatch: Any) -> Any:
    sdpa = hf.AttentionInterface()["sdpa"]

    def one_for_all(module, query, key, value, *rest, **more):
        """Every column gets a part of what all columns get."""
        out, weights = sdpa(module, query, key, value, *rest, **more)
        return out + 0.05 * out.mean(1, keepdim=True), weights

    monkeypatch.setitem(hf.AttentionInterface._global_mapping, "sdpa", one_for_all)
    return model


def hook_of_all(model: Any, monkeypatch: Any) -> Any:
    hook = lambda module, args, output: changed(output) if type(module).__name__ == "LlamaMLP" else None  # noqa: E731
    monkeypatch.setitem(nn.modules.module._global_forward_hooks, -1, hook)
    return model


ALTERED = {
    "one scale for all columns": (lambda _: with_linears(OneScale, llama()), "with what is drafted after it, first in model.layers.0"),
    "torch's dynamic int8": (lambda _: dynamically_quantized(llama()), "model.layers.0.self_attn.q_proj (torch.ao.nn.quantized.dynamic"),
    "weights that round": (lambda _: with_weights(WeightWithOneScale, llama()), "first in model.layers.1.mlp.up_proj (Linear)"),
    "an adapter with batch statistics": (lambda _: batch_adapter(llama()), "first in model.layers.0.mlp"),
    "a hook on the last column": (lambda _: last_column_hooked(llama()), "model.layers.1 (LlamaDecoderLayer, which has a forward hook)"),
    "a hook on the first column": (lambda _: first_column_hooked(llama()), "first in model.layers.1 (LlamaDecoderLayer"),
    "a hook on the end of a prompt": (lambda _: end_of_prompt_hooked(llama()), "model.layers.1 (LlamaDecoderLayer"),
    "a hook before a layer": (lambda _: last_column_before(llama()), "model.layers.1"),
    "a forward of a module's own": (lambda _: own_forward(llama()), "model.layers.1.mlp (LlamaMLP, which has a forward of its own)"),
    "a replaced forward of a class": (lambda patch: class_forward(llama(), patch), "model.layers.0.mlp"),
    "a replaced helper function": (lambda patch: helper_function(llama(), patch), "model.layers.0.self_attn"),
    "a replaced attention function": (lambda patch: replaced_attention(llama(), patch), "model.layers.0.self_attn"),
    "a hook of all modules": (lambda patch: hook_of_all(llama(), patch), "model.layers.0.mlp"),
}
"""Llamas, a covered class, whose columns depend on others, and a part of the line that refuses each."""
HARMLESS = {
    "a scale per token": lambda: with_linears(ScalePerToken, llama()),
    "LoRA": lambda: with_lora(llama()),
    "a hook that looks": lambda: hooked_to_look(llama()),
    "a parametrization": lambda: parametrized(llama()),
}
"""Altered Llamas that are exact."""
