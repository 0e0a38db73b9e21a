"""How models get positions: offsets kept on modules, masks by kind, rope by length, relative buckets."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin


@contextmanager
def rope_deltas_kept(model: Any) -> Iterator[None]:
    """Puts back `rope_deltas`, which models with several position axes (Qwen2-VL and kin, since 4.45) note on their base module.

    Inside, `model` may run on the prompt of one request; the offset it notes belongs to that request alone.
    """
    base = getattr(model, "model", model)
    before = getattr(base, "rope_deltas", None)
    try:
        yield
    finally:
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = before


def mask_makers(model: Any) -> frozenset[str]:
    """Names of the `create_..._mask` functions that the decoder's modelling module uses: which kinds of mask its layers can have.

    Relies on modelling modules importing them from `transformers.masking_utils` by name (since 4.53).
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return _mask_makers(type(decoder), type(model))


@lru_cache(512)
def _mask_makers(*kinds: type) -> frozenset[str]:
    homes = {kind.__module__ for each in kinds for kind in each.__mro__ if "modeling_" in kind.__module__}
    names = {name for home in homes - {"transformers.modeling_utils"} for name in vars(sys.modules[home])}
    return frozenset(name for name in names if name.startswith("create_") and "mask" in name)


def generation_positions(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """The positions that `generate` hands to the forward of a decoder-only model for `ids` [B, T] without padding.

    A class whose forward counts in another way where it gets none (RoBERTa and kin, from behind the padding id) generates by these. Classes
    that prepare positions in a way of their own, and forwards that take none, get none. Relies on
    `_prepare_position_ids_for_generation` (5.23; where a release has none, none are given).
    """
    name = "_prepare_position_ids_for_generation"
    prepare, usual = (getattr(kind, name, None) for kind in (type(model), GenerationMixin))
    if prepare is None or prepare is not usual or "position_ids" not in argument_names(model):
        return {}
    return {"position_ids": prepare(model, ids, {"input_ids": ids})}


def takes_argument(model: Any, name: str) -> bool:
    """Whether the forward of `model`, or of its decoder, which gets the other arguments, has a parameter `name`."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return any(name in argument_names(module) for module in (model, decoder))


def argument_names(module: Any) -> frozenset[str]:
    """The names of the arguments of a module's `forward`."""
    forward = module.forward
    return _names_of(forward.__func__) if isinstance(forward, MethodType) else frozenset(inspect.signature(forward).parameters)


@lru_cache(512)
def _names_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def decodes_pooled_states(model: Any) -> bool:
    """Whether the decoder of an encoder-decoder model reads what its encoder pools, not its last states.

    Relies on the forward of its base model naming `encoder_outputs.pooler_output` (PP-FormulaNet, 5.23).
    """
    return "encoder_outputs.pooler_output" in inspect.getsource(type(model.base_model).forward)


def recomputes_at_rope_switch(model: Any) -> bool:
    """Whether `generate` runs a sequence anew with the long factors when it grows past `original_max_position_embeddings`.

    Relies on Phi-3's `prepare_inputs_for_generation` (and copies of it) naming that setting of the config.
    """
    source = inspect.getsource(type(model).prepare_inputs_for_generation)
    return "original_max_position_embeddings" in source and hasattr(model.config, "original_max_position_embeddings")


def ropes_by_length(model: Any) -> list[Any]:
    """The rotary embedding modules of the decoder whose frequencies depend on the longest position of a forward (dynamic NTK, longrope).

    Relies on their attribute `rope_type`, a name or one for each kind of layer (since 4.43).
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return [module for module in decoder.modules() if "rope_type" in vars(module) and any(map(_by_length, rope_types(module)))]


def rope_types(module: Any) -> tuple[str, ...]:
    """The names of the kinds of rope a rotary module computes; none where it is no rotary module."""
    found = getattr(module, "rope_type", None)
    return tuple(found.values()) if isinstance(found, dict) else (found,) if isinstance(found, str) else ()


def _by_length(kind: str) -> bool:
    return kind == "longrope" or "dynamic" in kind


def rope_at_length(rotary: Any, x: Tensor, positions: Tensor, length: int, **more: Any) -> tuple[Tensor, ...]:
    """What `rotary` gives for `positions` [B, M] in a forward whose longest position is `length` - 1. `rotary` is not changed.

    Positions from `length` on are clamped. Relies on the frequencies being kept in buffers `inv_freq` and `original_inv_freq` (one of each
    for every kind of layer), on `max_seq_len_cached` saying for which length, and on outputs [B, M, ...] (since 4.48).
    """
    fresh = rotary.__class__.__new__(rotary.__class__)
    vars(fresh).update({name: value for name, value in vars(rotary).items() if name != "forward"})
    buffers = dict(rotary._buffers)
    for name in [name for name in buffers if name.endswith("original_inv_freq")]:
        buffers[name.replace("original_", "")] = buffers[name].clone()
    vars(fresh)["_buffers"] = buffers
    for name in [name for name in vars(fresh) if name.endswith("max_seq_len_cached")]:
        setattr(fresh, name, fresh.original_max_seq_len)
    last = positions.new_full((len(positions), 1), length - 1)
    out = type(rotary).forward(fresh, x, torch.cat([positions.clamp(max=length - 1), last], 1), **more)
    return tuple(part[:, :-1] for part in out)


def relative_buckets(attention: Any, distance: Tensor) -> Tensor:
    """The bucket of every `distance` [B, M, S] between a key and a query, for T5's decoder and its kin.

    Relies on `_relative_position_bucket` and the settings `relative_attention_num_buckets` and `relative_attention_max_distance` of the
    attention module (5.17 to 5.24; UMT5 keeps the settings to itself).
    """
    known = {
        "bidirectional": False,
        "num_buckets": attention.relative_attention_num_buckets,
        "max_distance": attention.relative_attention_max_distance,
    }
    bucket = attention._relative_position_bucket
    return bucket(distance, **{name: value for name, value in known.items() if name in inspect.signature(bucket).parameters})


def with_bias_table(attention: Any, table: Tensor) -> tuple[Any, str, Any]:
    """(module, attribute, value) that gives GPT-Neo's attention another causal table, its buffer `bias` (5.17 to 5.24)."""
    return attention, "_buffers", {**attention._buffers, "bias": table}
