"""One adapter per class of image models; `image_model` returns the one of a model."""

from importlib import import_module
from typing import Any

from mmspec.vision.families.base import ImageModel

ADAPTERS = {
    "LlamaGen": "mmspec.vision.families.llamagen:LlamaGenPictures",
    "ImageGPTForCausalImageModeling": "mmspec.vision.families.imagegpt:ImageGPT",
    "JanusForConditionalGeneration": "mmspec.vision.families.janus:Janus",
    "Emu3ForConditionalGeneration": "mmspec.vision.families.emu3:Emu3",
    "ChameleonForConditionalGeneration": "mmspec.vision.families.chameleon:Chameleon",
    "GlmImageForConditionalGeneration": "mmspec.vision.families.glm_image:GlmImage",
}


def image_model(model: Any) -> ImageModel:
    """Return `model` itself if it is an adapter, else the adapter of its class.

    Args:
        model: an image model, or an `ImageModel`.

    Returns:
        The adapter.

    Raises:
        ValueError: for unknown classes.
    """
    if isinstance(model, ImageModel):
        return model
    name = type(model).__name__
    if name not in ADAPTERS:
        raise ValueError(f"{name} is not a known image model; known: {', '.join(ADAPTERS)}; or pass your own mmspec.vision.ImageModel")
    module, adapter = ADAPTERS[name].split(":")
    return getattr(import_module(module), adapter)(model)
