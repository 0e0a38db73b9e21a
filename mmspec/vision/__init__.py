"""Images out: autoregressive image models, faster, drawing the same."""

from mmspec.vision.continuous import WAYS, ContinuousPictures
from mmspec.vision.continuous_ar import ContinuousAR, ContinuousARConfig
from mmspec.vision.families import image_model
from mmspec.vision.family import ImageModel, Prompt
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.latents import Sampling
from mmspec.vision.llamagen import LlamaGen, LlamaGenConfig
from mmspec.vision.methods import METHODS, Method
from mmspec.vision.whole import Denoised, denoise

__all__ = [
    "METHODS",
    "WAYS",
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
