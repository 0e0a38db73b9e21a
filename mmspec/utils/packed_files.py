"""Weight files of the minis: matrices as bytes with a scale a row, everything else in half precision."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.utils.packing import packed, unpacked


def save_bytes(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` to `path`, under a temporary name first. Packing is lossy: train drafters on the weights read back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    save_file({name: tensor.contiguous() for name, tensor in packed(weights).items()}, temporary, {"format": "pt"})
    os.replace(temporary, path)


def read_bytes(path: Path) -> dict[str, Tensor]:
    """Weights in float32, from a file of `save_bytes` or any other safetensors file."""
    return {name: tensor.float() for name, tensor in unpacked(load_file(path)).items()}
