"""Images out: autoregressive image models, faster, drawing the same."""

from typing import TYPE_CHECKING

from mmspec.lazy import exports

if TYPE_CHECKING:
    from mmspec.vision.codes.methods import METHODS, Method
    from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
    from mmspec.vision.continuous.generation import CONTINUOUS_METHODS, ContinuousPictures
    from mmspec.vision.continuous.latents import Sampling
    from mmspec.vision.diffusion.pipeline import Denoised, denoise
    from mmspec.vision.families import image_model
    from mmspec.vision.families.base import ImageModel, Prompt
    from mmspec.vision.families.llamagen_network import LlamaGen, LlamaGenConfig
    from mmspec.vision.generation import Pictures, generate
else:
    _MODULES = {
        "ContinuousAR": "continuous_ar",
        "ContinuousARConfig": "continuous_ar",
        "ContinuousPictures": "continuous",
        "Denoised": "whole",
        "ImageModel": "family",
        "LlamaGen": "llamagen",
        "LlamaGenConfig": "llamagen",
        "METHODS": "methods",
        "Method": "methods",
        "Pictures": "generation",
        "Prompt": "family",
        "Sampling": "latents",
        "CONTINUOUS_METHODS": "continuous",
        "denoise": "whole",
        "generate": "generation",
        "image_model": "families",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES)

__all__ = [
    "CONTINUOUS_METHODS",
    "METHODS",
    "ContinuousAR",
    "ContinuousARConfig",
    "ContinuousPictures",
    "Denoised",
    "ImageModel",
    "LlamaGen",
    "LlamaGenConfig",
    "Method",
    "Pictures",
    "Prompt",
    "Sampling",
    "denoise",
    "generate",
    "image_model",
]
