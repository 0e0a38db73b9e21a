"""Drafters of image models on disk: a trained net or a small model, with the fingerprint of the target that it was trained for."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from mmspec.drafters.checkpoints.load import is_drafter, load_drafter, save_drafter
from mmspec.utils.files import whole_folder, write_json
from mmspec.utils.weights import fill, read_config, read_mapping, read_weights, write_folder
from mmspec.vision.checkpoints.own import load_small_llamagen
from mmspec.vision.codes.shared_layers import SharedLayers
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.code_target import CodeTarget, check_fingerprint, fingerprint
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_network import LlamaGen

KEY = "mmspec_image_layers"
"""Entry of `config.json` of a small model that shares all but its layers with its target: the layers that were copied."""
TARGET = "target.json"
"""File of a drafter's folder with the fingerprint of its target."""


def save_image_drafter(drafter: Any, target: ImageModel, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a drafter of an image model, and which target it is for.

    Args:
        drafter: a trained net, `SharedLayers`, or a small LlamaGen that stands alone.
        target: the adapter of the model that it was trained for.
        folder: the folder to write. One that holds a drafter is replaced.
        dtype: dtype of the weights on disk, their own by default.

    Raises:
        ValueError: if `folder` holds something else, and for weights that are not finite.
    """
    folder = Path(folder)
    if isinstance(drafter, SharedLayers):
        weights = {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in drafter.state_dict().items()}
        write_folder(folder, {KEY: list(drafter.taken)}, weights, is_image_drafter)
    elif isinstance(drafter, LlamaGen):
        stored: Any = deepcopy(drafter)
        with whole_folder(folder) as temporary:
            stored.to(dtype or drafter.dtype).save_pretrained(temporary)
    else:
        save_drafter(drafter, folder, dtype)
    write_json(folder / TARGET, fingerprint(target))


def load_image_drafter(folder: str | Path, target: ImageModel) -> Any:
    """Load a drafter of an image model: what `vision/train_drafter.py` wrote.

    Args:
        folder: its folder.
        target: the adapter of the model that it is to draft for.

    Returns:
        A trained net, `SharedLayers`, or the adapter of a small LlamaGen: `mmspec.vision.generate` takes it as `drafter`. It is where the
        target is, in its dtype.

    Raises:
        ValueError: for a folder that holds no drafter, and for a drafter of another target, naming what differs.
    """
    folder = Path(folder).expanduser()
    if not is_image_drafter(folder):
        raise ValueError(f"drafter is {str(folder)!r}, which is no folder with a drafter of images: give one that train_drafter.py wrote")
    if (folder / TARGET).is_file():
        check_fingerprint(dict(read_mapping(folder / TARGET, "train the drafter again")), target, folder)
    config = read_config(folder)
    if config.get("model_type") == "llamagen":
        if not isinstance(target, LlamaGenPictures):
            raise ValueError(f"{folder} is a small LlamaGen, and the target is a {type(target.model).__name__}: it is for another target")
        return _moved(load_small_llamagen(folder, target), target)
    if KEY not in config:
        return load_drafter(folder, CodeTarget(target))
    layers = SharedLayers(target, _numbers(config, folder))
    return fill(layers, read_weights(folder), folder).to(target.model.device, target.model.dtype).eval()


def is_image_drafter(path: str | Path) -> bool:
    """Return True if `path` is a folder that `load_image_drafter` reads."""
    folder = Path(path).expanduser()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    ours = isinstance(config, dict) and (KEY in config or config.get("model_type") == "llamagen")
    return ours or is_drafter(folder)


def _numbers(config: Mapping[str, Any], folder: Path) -> list[int]:
    found = config[KEY]
    if not isinstance(found, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise ValueError(f"{folder / 'config.json'}: {KEY} is {found!r:.60}, not a list of layers: train the drafter again")
    return found


def _moved(small: LlamaGenPictures, target: ImageModel) -> LlamaGenPictures:
    small.model.to(target.model.device, target.model.dtype)
    return small
