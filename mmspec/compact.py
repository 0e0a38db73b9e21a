"""Weights kept compactly, as minis have them: matrices as bytes with a scale a row, everything else in half precision."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_SCALE = ".scale"


def save_bytes(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` to `path`, under a temporary name first. What is read back is what runs: train drafters on that."""
    kept: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().float()
        if tensor.dim() < 2:
            kept[name] = tensor.half()
            continue
        rows = tensor.flatten(1)
        scale = (rows.abs().amax(1) / 127).clamp_min(1e-7)
        kept[name] = (rows / scale[:, None]).round().to(torch.int8).view(tensor.shape)
        kept[name + _SCALE] = scale
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, temporary, {"format": "pt"})
    os.replace(temporary, path)


def read_bytes(path: Path) -> dict[str, Tensor]:
    """Weights in float32, from a file of `save_bytes` or any other."""
    found = load_file(path)
    scaled = {name: found.pop(name + _SCALE) for name in list(found) if name + _SCALE in found}
    return {name: _scaled(tensor.float(), scaled.get(name)) for name, tensor in found.items()}


def _scaled(tensor: Tensor, scale: Tensor | None) -> Tensor:
    return tensor if scale is None else tensor * scale.view(-1, *[1] * (tensor.dim() - 1))
