"""Outputs of a tokenizer or processor as tensors, from lists and numpy arrays too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NESTED = ("mm_encoder_outputs", "encoder_outputs")  # what an encoder has made already: handed on as it is


def as_tensors(inputs: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """`inputs` with every value a tensor; None is left out, as transformers does.

    Args:
        inputs: tensors; or numbers in nested lists or numpy arrays, or tensors of one shape in lists, which go to `device`.
        device: of what becomes a tensor here.

    Raises:
        ValueError: a value is none of these, or rows differ in shape, naming the key.
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
    """The shapes of the parts of a list, where they have any."""
    found = [
        tuple(part.shape) if hasattr(part, "shape") else (len(part),)
        for part in value
        if hasattr(part, "shape") or hasattr(part, "__len__")
    ]
    return "shapes " + ", ".join(map(str, found[:4])) + (" ..." if len(found) > 4 else "") if found else ""
