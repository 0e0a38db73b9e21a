"""Weights as bytes, in memory and in files: a matrix keeps a byte a number and one scale a row, everything else is in half precision."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mmspec.utils.weights import load_file

_SCALE = ".scale"


def packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` as they are stored: matrices [O, ...] as int8 with a float32 `.scale` [O]. Integers and booleans are kept."""
    kept: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            kept[name] = tensor
        elif tensor.dim() < 2:
            kept[name] = tensor.detach().half()
        else:
            rows = tensor.detach().float().flatten(1)
            scale = (rows.abs().amax(1) / 127).clamp_min(1e-7)
            kept[name] = (rows / scale[:, None]).round().to(torch.int8).view(tensor.shape)
            kept[name + _SCALE] = scale
    return kept


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `packed`: matrices in float32; other tensors as they were stored."""
    scaled = {name for name, tensor in stored.items() if tensor.dtype == torch.int8 and name + _SCALE in stored}
    scales = {name + _SCALE for name in scaled}
    kept = {name: tensor for name, tensor in stored.items() if name not in scales}
    return {name: _rows(tensor, stored[name + _SCALE]) if name in scaled else tensor for name, tensor in kept.items()}


def save_bytes(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` to `path`, under a temporary name first. Packing is lossy: train drafters on the weights read back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    save_file({name: tensor.contiguous() for name, tensor in packed(weights).items()}, temporary, {"format": "pt"})
    os.replace(temporary, path)


def read_bytes(path: Path) -> dict[str, Tensor]:
    """Weights in float32, from a file of `save_bytes` or any other safetensors file."""
    return {name: tensor.float() for name, tensor in unpacked(load_file(path)).items()}


def is_packed(path: Path) -> bool:
    """Return True if `path` is a file of `save_bytes`; only names are read."""
    if not path.is_file():
        return False
    with safe_open(path, "pt") as file:
        names = set(file.keys())
    return any(name + _SCALE in names for name in names)


def _rows(tensor: Tensor, scale: Tensor) -> Tensor:
    return tensor.float() * scale.view(-1, *[1] * (tensor.dim() - 1))
