"""Images out: autoregressive image models, faster, drawing the same."""

from mmspec.vision.codes.methods import METHODS, Method
from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
from mmspec.vision.continuous.generation import CONTINUOUS_METHODS, ContinuousPictures
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.diffusion.pipeline import Denoised, denoise
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel, Prompt
from mmspec.vision.families.llamagen_network import LlamaGen, LlamaGenConfig
from mmspec.vision.generation import Pictures, generate

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
