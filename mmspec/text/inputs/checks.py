"""Validation of a request's inputs, as tensors on the model's device, before anything runs."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from mmspec.models.families.encoder_decoder import DecoderAlone, EncoderDecoder
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.run.settings.processors import end_ids
from mmspec.text.inputs.tensors import as_tensors

_DECODER = ("input_ids", "attention_mask")
_ENCODER = ("attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs")
_BESIDE_THE_POINT = ("labels", "length", "num_frames", "offset_mapping", "overflow_to_sample_mapping", "special_tokens_mask")
"""Outputs of tokenizers and processors that are not needed for generation."""


def tensors(inputs: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Return `inputs` with every entry a tensor on `device`.

    Lists and numpy arrays become tensors (`as_tensors`); entries that are None are left out; encoder outputs (`encoder_outputs`,
    `mm_encoder_outputs`) are not converted, except that a tensor `encoder_outputs` becomes a tuple.

    Raises:
        ValueError: naming an entry that cannot become a tensor.
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(f"inputs is a {type(inputs).__name__}: pass the dict that the tokenizer or processor returned")
    found = as_tensors(inputs, device)
    return {name: _placed(name, value, device) for name, value in found.items()}


def _placed(name: str, value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return (value.to(device),) if name == "encoder_outputs" else value.to(device)
    return value


def checked(model: Any, family: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `inputs` of `tensors` after checks against `model`. A missing mask is inferred as in `model.generate`.

    Ids where the mask is 0 are absent, at either side or in the middle: positions count the others only.

    Raises:
        ValueError: for masks and ids of the wrong type, shape or range, and for entries that are not read.
    """
    _refuse_unread(model, family, inputs)
    found = dict(inputs)
    for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if ids in found:
            found[ids] = _checked_ids(ids, found[ids], model, getattr(family, "placeholders", ()))
        if mask in found:
            found[mask] = _checked_mask(mask, found[mask], found.get(ids))
    if "attention_mask" not in found and "input_ids" in found and not model.config.is_encoder_decoder:
        inferred = inferred_mask(model.generation_config, found["input_ids"])
        found |= {} if inferred is None else {"attention_mask": inferred}
    return found


def inferred_mask(config: Any, ids: Tensor) -> Tensor | None:
    """Return the mask that transformers infers for decoder-only prompts `ids` [B, P]: 0 at pad tokens, unless they also end texts."""
    pad = config.pad_token_id
    if pad is None or pad in end_ids(config) or not bool((ids == pad).any()):
        return None
    return (ids != pad).long()


def _refuse_unread(model: Any, family: Any, inputs: Mapping[str, Any]) -> None:
    taken = set(signature(model.forward).parameters)
    if isinstance(family, DecoderAlone):
        return  # declares that it needs an encoder
    if isinstance(family, (Multimodal, Mllama)):
        reads = taken
    elif isinstance(family, EncoderDecoder):
        reads = {family.source, *family.beside, *_ENCODER}
    else:
        reads = set(_DECODER)
    for name in inputs:
        if name in reads or name in _BESIDE_THE_POINT or (name == "token_type_ids" and name not in taken):
            continue
        raise ValueError(f"inputs has {name}, which is not read for {type(model).__name__}: leave it out, or use the model's own generate")


def _checked_ids(name: str, ids: Tensor, model: Any, placeholders: tuple[int, ...]) -> Tensor:
    """Return `ids` as int64. ValueError for ids that are neither in the vocabulary nor placeholders."""
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.is_complex():
        raise ValueError(f"{name} is {_dtype(ids)}: token ids are whole numbers; pass what the tokenizer returned")
    weight = getattr(model.get_input_embeddings(), "weight", None)
    if weight is None or ids.numel() == 0:
        return ids.long()
    size = max(weight.shape[0], *(1 + i for i in placeholders), 0)
    least, most = ids.aminmax()
    if least < 0 or most >= size:
        wrong = int(least if least < 0 else most)
        raise ValueError(f"{name} holds {wrong}, but {type(model).__name__} has tokens 0 to {size - 1}: use the model's own tokenizer")
    return ids.long()


def _checked_mask(name: str, mask: Tensor, ids: Tensor | None) -> Tensor:
    """Return `mask` as integers. ValueError if its shape differs from that of the ids."""
    if mask.dim() != 2 or (ids is not None and mask.shape != ids.shape):
        expected = "[batch, length]" if ids is None else f"{list(ids.shape)}, as the ids have"
        raise ValueError(f"{name} has shape {list(mask.shape)}: expected {expected}")
    if mask.dtype == torch.bool:
        return mask.long()
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{name} ({_dtype(mask)}) holds other numbers than 0 and 1: give 1 where a token is to be read, 0 at padding")
    return mask.long()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
