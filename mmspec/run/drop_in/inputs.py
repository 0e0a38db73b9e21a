"""Inputs of a drop-in request: whether mmspec can draft for it, and the prompt that a target's `begin` takes."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from mmspec.models import compat
from mmspec.models.compat.cache_name import CALLERS_NAMES
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.registry import positions_of
from mmspec.run.drop_in.arguments import cache_reason

_TEXT = ("input_ids", "attention_mask", "position_ids", "logits_to_keep", "use_cache")
_ENCODER = (
    *("input_ids", "input_features", "inputs_embeds", "attention_mask", "encoder_outputs"),
    *("decoder_input_ids", "decoder_attention_mask", "logits_to_keep", "use_cache"),
)
_OWN_PLACES = ("position_ids", *CALLERS_NAMES, "inputs_embeds", "mm_encoder_outputs", "decoder_position_ids")


def plain_reason(
    model: Any, family: Any, ids: Tensor, config: Any, given: Mapping[str, Any], model_kwargs: Mapping[str, Any], streamer: Any
) -> str | None:
    """Return why a request must be decoded by transformers' own loop, as text; None if mmspec can decode it.

    Args:
        model, family: the model and its family.
        ids: LongTensor [B, P], the decoder's prompt as prepared by `generate`.
        config: the generation config, defaults filled in.
        given: the model's inputs as the caller passed them.
        model_kwargs: the inputs as prepared by `generate`.
        streamer: the caller's streamer.

    Raises:
        ValueError: if a decoder-only prompt is padded on the right.
    """
    if compat.inputs_replaced(model):
        return "prepare_inputs_for_generation has been replaced on the model (prompt tuning)"
    if (reason := cache_reason(config)) is not None:
        return reason
    if streamer is not None and len(ids) > 1:
        return "a streamer with several rows is fed one token of every row at a time"
    if ids.shape[1] == 0 or ids.dim() != 2:
        return "the prompt has no input_ids"
    if model.config.is_encoder_decoder:
        reason = _decoder_reason(model, given, model_kwargs)
    else:
        reason = _prompt_reason(family, ids, config, given, model_kwargs)
    return reason or _length_reason(model, ids, config, model_kwargs)


def _decoder_reason(model: Any, given: Mapping[str, Any], model_kwargs: Mapping[str, Any]) -> str | None:
    unread = [name for name in given if name not in (*_ENCODER, model.main_input_name)]
    if unread:
        return f"{unread[0]} is given"
    mask = model_kwargs.get("decoder_attention_mask")
    if mask is None or bool((mask == 1).all()):
        return None
    return None if _left_padded(mask) else "decoder_attention_mask leaves positions out"


def _left_padded(mask: Tensor) -> bool:
    """Return True if every row of `mask` [B, P] is zeros, and then at least a one."""
    return bool((mask[:, 1:] >= mask[:, :-1]).all()) and bool((mask[:, -1] == 1).all())


def _prompt_reason(family: Any, ids: Tensor, config: Any, given: Mapping[str, Any], model_kwargs: Mapping[str, Any]) -> str | None:
    sensing = isinstance(family, (Multimodal, Mllama))
    unread = [name for name in given if name in _OWN_PLACES[1:] or (name not in _TEXT and not sensing)]
    if unread:
        return f"{unread[0]} is given"
    mask = model_kwargs.get("attention_mask")
    if mask is not None and mask.shape != ids.shape:
        return f"attention_mask has shape {tuple(mask.shape)} for a prompt of shape {tuple(ids.shape)}"
    if mask is not None and not bool(mask.any(1).all()):
        return "a row of attention_mask is empty"
    if mask is not None:
        _refuse_right_padding(mask)
        if bool((mask[:, 1:] < mask[:, :-1]).any()):
            return "attention_mask has gaps"
    if "position_ids" in given and (sensing or not _usual_positions(given["position_ids"], ids, mask)):
        return "position_ids are given"
    if (config.num_return_sequences or 1) > 1 and any(name not in _TEXT for name in given):
        return "num_return_sequences repeats prompts with pictures or sound"
    return None


def _refuse_right_padding(mask: Tensor) -> None:
    ends = (mask[:, -1] == 0).tolist()
    if any(ends):
        raise ValueError(f"row {ends.index(True)} ends in padding, and generate goes on behind it: tokenize with padding_side='left'")


def _usual_positions(positions: Tensor, ids: Tensor, mask: Tensor | None) -> bool:
    """Return True if these are the positions that `generate` derives from the mask; positions of padding are ignored."""
    real = torch.ones_like(ids) if mask is None else mask
    usual = real.cumsum(1) - 1
    return positions.shape[-1] == ids.shape[1] and bool(((positions == usual) | (real == 0)).all())


def _length_reason(model: Any, ids: Tensor, config: Any, model_kwargs: Mapping[str, Any]) -> str | None:
    """Return the reason if positions of draft tokens, which reach beyond the last kept token, would exceed the model's."""
    limit, mask = positions_of(model), model_kwargs.get("attention_mask")
    if limit is None:
        return None
    longest = int(mask.sum(1).max()) if mask is not None and mask.shape == ids.shape else ids.shape[1]
    if longest + config.max_length - ids.shape[1] <= limit:
        return None
    return f"the prompt's {longest} tokens and max_length {config.max_length} exceed the model's {limit} positions"


def inputs_for(model: Any, ids: Tensor, given: Mapping[str, Any], model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt for `HFTarget.begin` of a request without a `plain_reason`.

    Pictures and sound keep the caller's form, because drafters read them too.
    """
    if model.config.is_encoder_decoder:
        names = ("encoder_outputs", "attention_mask", "decoder_attention_mask")
        kept = {key: model_kwargs[key] for key in names if model_kwargs.get(key) is not None}
        return _moved(model, {**compat.encoder_source(len(ids)), "decoder_input_ids": ids, **kept})
    known = signature(model.forward).parameters
    more = {key: value for key, value in given.items() if key in known and key not in _TEXT}
    mask = model_kwargs.get("attention_mask")
    return _moved(model, {"input_ids": ids, **({} if mask is None else {"attention_mask": mask}), **more})


def _moved(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs on the model's device; `generate` accepts prompts on the host."""
    return {key: value.to(compat.execution_device(model)) if isinstance(value, Tensor) else value for key, value in inputs.items()}
