"""Checks that a model can generate, before it runs: train mode, missing weights, attention to later tokens."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.compat import has_weights
from mmspec.models.module_copy import uncompiled
from mmspec.utils.names import wrong
from mmspec.utils.weights import first_not_finite

_CAUSAL_ALL_THE_SAME = ("gpt_neox", "gpt_neox_japanese")  # their configs have is_decoder, which their attention does not read
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_RATES = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop", "jitter_noise", "router_jitter_noise")


def check_model_ready(model: Any, unit: str = "model") -> None:
    """Raise ValueError for a model whose output would be random, made of missing weights, or not causal.

    Args:
        model: a transformers model; anything that is no `nn.Module` passes.
        unit: what the message calls it.

    Raises:
        ValueError: naming the module or setting at fault.
    """
    if not isinstance(model, nn.Module):
        return
    name = type(model).__name__
    if uncompiled(model) is not model:
        warnings.warn(f"the {unit} ({name}) is compiled, but runs uncompiled here: pass the plain model and capture=True", stacklevel=3)
    if model.training:
        raise ValueError(f"the {unit} ({name}) is in train mode, where dropout makes outputs random: call {unit}.eval()")
    for place, module in model.named_modules():
        if module.training and _random(module):
            raise ValueError(f"{place} of the {unit} ({name}) is in train mode, where its outputs are random: call {unit}.eval()")
        if not has_weights(module):
            raise ValueError(f"{place or name} of the {unit} ({name}) has no data (meta device): load its weights first")
    _refuse_bidirectional(model, unit)


def check_finite_weights(model: Any, unit: str = "target") -> None:
    """Refuse a model whose weights hold NaN or infinity. All of them are read.

    Args:
        model: a transformers model; anything that is no `nn.Module` passes.
        unit: what the message calls it.

    Raises:
        ValueError: naming the first such weight.
    """
    if not isinstance(model, nn.Module):
        return
    broken = first_not_finite(model.named_parameters())
    if broken is not None:
        raise ValueError(
            f"weight {broken} of the {unit} ({model_name(model)}) holds NaN or infinity: load it in another dtype, or get its file again"
        )


def _random(module: nn.Module) -> bool:
    """True if the module's own forward is random in train mode, or changes its state."""
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    if isinstance(module, _NORMS):
        return True
    return any(isinstance(getattr(module, rate, None), float) and getattr(module, rate) > 0 for rate in _RATES)


def _refuse_bidirectional(model: Any, unit: str) -> None:
    """Refuse models whose states depend on later tokens, so that a draft would change what comes before it."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return
    text, why = config.get_text_config(decoder=True), None
    if getattr(text, "is_causal", True) is False:
        why = "is_causal is False"
    elif text is config and getattr(text, "use_bidirectional_attention", None) in (True, "all"):  # else within a picture's prompt alone
        why = f"use_bidirectional_attention is {text.use_bidirectional_attention!r}"
    elif hasattr(type(text), "is_decoder") and text.is_decoder is False and text.model_type not in _CAUSAL_ALL_THE_SAME:
        why = "is_decoder is False"
    if why is not None:
        raise ValueError(
            f"the {unit} ({type(model).__name__}) is a bidirectional encoder ({why} in its config): it cannot generate text left to right; "
            "give a causal language model"
        )


def model_name(model: Any) -> str:
    """A model's class and where it was loaded from, for messages."""
    path = getattr(getattr(model, "config", None), "name_or_path", "") or getattr(model, "name_or_path", "")
    return f"{type(model).__name__} {path}".rstrip()


def refuse_unhealthy(healthy: torch.Tensor, rows: list[bool], drafter: str) -> None:
    """Raise FloatingPointError, naming the drafter, if the logits of one of `rows` held NaN or +inf; `healthy` is [B] bool."""
    for row, (fine, counts) in enumerate(zip(healthy.tolist(), rows, strict=True)):
        if counts and not fine:
            raise FloatingPointError(
                f"the drafter's logits hold NaN or infinity in row {row} ({drafter}): check its weights and its dtype "
                "(float16 overflows where bfloat16 does not), or decode without it"
            )


def check_prompt_ids(name: str, inputs: Mapping[str, Any], size: int) -> None:
    """Check a batch of prompts in a model's own ids.

    Args:
        name: the argument's name, such as "histories".
        inputs: `input_ids` and, if there is padding, `attention_mask`, both [B, P].
        size: how many tokens the model has.

    Raises:
        ValueError: for what is no tensor, has another shape or dtype, or holds ids outside the vocabulary or a mask other than 0 and 1.
    """
    if not isinstance(inputs, Mapping):
        raise wrong(name, inputs, "pass what a tokenizer returned")
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} has input_ids that are no tensor [batch, length] of whole numbers: pass what a tokenizer returned")
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < size):
        raise ValueError(f"{name} has input_ids from {int(ids.min())} to {int(ids.max())}, but the model has tokens 0 to {size - 1}")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.shape != ids.shape or not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{name} has an attention_mask that is no tensor {list(ids.shape)} of 0 and 1: pass what a tokenizer returned")
