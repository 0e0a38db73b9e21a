"""Outputs of a tokenizer or processor as tensors, converted from lists and numpy arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NESTED = ("mm_encoder_outputs", "encoder_outputs")  # outputs of an encoder are not converted


def as_tensors(inputs: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Return `inputs` with every value a tensor; None is left out, as in transformers.

    Args:
        inputs: tensors; nested lists or numpy arrays of numbers, or lists of tensors of one shape.
        device: device of converted values.

    Raises:
        ValueError: naming a value that is none of these, or whose rows differ in shape.
    """
    found = {key: value for key, value in inputs.items() if value is not None}
    return {key: value if key in _NESTED or isinstance(value, Tensor) else _tensor(key, value, device) for key, value in found.items()}


def _tensor(key: str, value: Any, device: torch.device | str) -> Tensor:
    if isinstance(value, (str, bytes, bool, int, float, Mapping)) or not isinstance(value, (np.ndarray, Sequence)):
        raise ValueError(
            f"inputs has {key} of type {type(value).__name__}: pass a tensor, a numpy array or a list of numbers, or leave it out"
        )
    try:
        made = _stacked(value)
    except (ValueError, TypeError, RuntimeError):
        shapes = f" ({_shapes(value)})" if _shapes(value) else ""
        raise ValueError(
            f"inputs has {key} as {type(value).__name__} that is no tensor{shapes}: ask the tokenizer or processor for "
            "return_tensors='pt', with padding where rows differ"
        ) from None
    return made.to(device, torch.get_default_dtype() if made.dtype == torch.float64 else made.dtype)


def _stacked(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(np.ascontiguousarray(value).copy())
    if all(isinstance(part, (int, float, bool, np.number, np.bool_)) for part in value):
        return torch.tensor([part.item() if isinstance(part, np.generic) else part for part in value])
    return torch.stack([_stacked(part) for part in value])


def _shapes(value: Any) -> str:
    """Return the shapes of the parts of a list, if they have any."""
    found = [
        tuple(part.shape) if hasattr(part, "shape") else (len(part),)
        for part in value
        if hasattr(part, "shape") or hasattr(part, "__len__")
    ]
    return "shapes " + ", ".join(map(str, found[:4])) + (" ..." if len(found) > 4 else "") if found else ""
