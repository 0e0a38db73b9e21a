"""Small networks on disk: a config and half-precision weights, in a folder that is replaced completely or not at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.utils.weights import load_file


def save_half(model: nn.Module, folder: Path, save_config: Callable[[Path], object]) -> None:
    """Write the files of `save_config` and model.safetensors (float16) to `folder`."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_config(temporary)
    state = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def float_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in `folder`, in float32."""
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
