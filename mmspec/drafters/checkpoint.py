"""Drafters on disk: `config.json` names the kind and its options, `model.safetensors` holds the weights. Read whole or not at all."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.drafters.nets import net_class

KEY = "mmspec_drafter"


def save_drafter(net: Any, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write `net` to `folder`, which appears whole or not at all; `dtype` is that of the weights on disk."""
    folder = Path(folder)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    state = {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}
    state = {name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor for name, tensor in state.items()}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, temporary / "model.safetensors", metadata={"format": "pt"})
    (temporary / "config.json").write_text(json.dumps({KEY: net.kind, **net.config}, indent=2), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def load_drafter(folder: str | Path) -> Any:
    """The net in `folder`, in float32 and eval mode. ValueError, in one line, for whatever is missing, broken or of another shape."""
    folder = Path(folder)
    config = read_config(folder)
    kind = config.pop(KEY, None)
    if kind is None:
        raise ValueError(f"{folder / 'config.json'} has no {KEY!r}: this is not a drafter that mmspec wrote")
    try:
        net = net_class(kind)(**config)
    except TypeError as error:
        raise ValueError(f"{folder / 'config.json'} does not describe a {kind} drafter: {error}") from None
    return fill(net, read_weights(folder / "model.safetensors"), folder)


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a drafter's folder."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give the folder of a drafter") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}: a drafter's config is a mapping")
    return found


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: the drafter's weights are missing") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or not safetensors: {error}") from None


def fill(net: Any, weights: Mapping[str, Tensor], source: Path) -> Any:
    """`net` with `weights`, after every name, shape and kind of number has been checked: a bad file changes nothing."""
    wanted = net.state_dict()
    for name, tensor in wanted.items():
        if name not in weights:
            raise ValueError(f"{source}: tensor {name} of shape {tuple(tensor.shape)} is missing")
        if weights[name].shape != tensor.shape:
            raise ValueError(f"{source}: tensor {name} has shape {tuple(weights[name].shape)}, but {tuple(tensor.shape)} is needed")
        if weights[name].is_floating_point() != tensor.is_floating_point():
            raise ValueError(f"{source}: tensor {name} is {weights[name].dtype}, but {tensor.dtype} is needed")
    for name in weights:
        if name not in wanted:
            raise ValueError(f"{source}: tensor {name} of shape {tuple(weights[name].shape)} belongs to no part of this drafter")
    net.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in weights.items()})
    return net.eval()
