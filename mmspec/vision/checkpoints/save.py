"""Image models into a folder that `load_image_checkpoint` reads."""

import json
from pathlib import Path
from typing import Any

from mmspec.utils.files import write_json
from mmspec.vision.checkpoints.load import LUMINA
from mmspec.vision.checkpoints.own import DECODER, save_llamagen
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.glm_image import DiffusionStage
from mmspec.vision.families.imagegpt import ImageGPT
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.lumina import LuminaMGPT


def save_image_checkpoint(model: ImageModel, folder: Path) -> None:
    """Write an adapter's network with its processor and decoder.

    Args:
        model: the adapter.
        folder: an empty folder.

    Raises:
        ValueError: for decoders and encoders without a file format.
    """
    decoder, processor = getattr(model, "to_pictures", None), getattr(model, "processor", None)
    if isinstance(model, LlamaGenPictures):
        save_llamagen(model, folder)
    elif isinstance(decoder, DiffusionStage):
        decoder.pipeline.save_pretrained(folder)
    elif decoder is not None and not isinstance(decoder, VQGANDecoder):
        raise ValueError(f"to_pictures is a {type(decoder).__name__}, which has no file format: save its parts yourself")
    else:
        model.model.save_pretrained(folder)
        if isinstance(model, ImageGPT) and model.codebook is not None:
            processor = _colours(model.codebook.tolist())
        if processor is not None:
            processor.save_pretrained(folder)
        if decoder is not None:
            decoder.save(folder / DECODER)
        if isinstance(model, LuminaMGPT):
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            write_json(folder / "config.json", config | {"architectures": [LUMINA]})


def _colours(clusters: list[list[float]]) -> Any:
    from transformers import ImageGPTImageProcessor

    return ImageGPTImageProcessor(clusters=clusters)
