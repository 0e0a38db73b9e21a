"""Images out: autoregressive image models, faster, drawing the same."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.vision.codes.methods import METHODS, Method
    from mmspec.vision.codes.published import PUBLISHED
    from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
    from mmspec.vision.continuous.latents import Sampling
    from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures
    from mmspec.vision.diffusion.pipeline import Denoised, denoise
    from mmspec.vision.drop_in.accelerate import accelerate
    from mmspec.vision.drop_in.pipeline import ImagePipeline as Pipeline
    from mmspec.vision.drop_in.pipeline import PipelineOutput
    from mmspec.vision.drop_in.speculate import speculate
    from mmspec.vision.families import image_model
    from mmspec.vision.families.base import ImageModel
    from mmspec.vision.families.llamagen_layers import LlamaGenConfig
    from mmspec.vision.families.llamagen_network import LlamaGen
    from mmspec.vision.families.prompts import ImagePrompt, Prompt
    from mmspec.vision.generation import Pictures, generate
else:
    _MODULES = {
        "ContinuousAR": "continuous.ar",
        "ContinuousARConfig": "continuous.ar",
        "ContinuousPictures": "continuous.methods",
        "Denoised": "diffusion.pipeline",
        "ImageModel": "families.base",
        "ImagePrompt": "families.prompts",
        "LlamaGen": "families.llamagen_network",
        "LlamaGenConfig": "families.llamagen_layers",
        "METHODS": "codes.methods",
        "PUBLISHED": "codes.published",
        "Method": "codes.methods",
        "Pictures": "generation",
        "Pipeline": "drop_in.pipeline:ImagePipeline",
        "PipelineOutput": "drop_in.pipeline",
        "Prompt": "families.prompts",
        "Sampling": "continuous.latents",
        "CONTINUOUS_METHODS": "continuous.methods",
        "accelerate": "drop_in.accelerate",
        "denoise": "diffusion.pipeline",
        "generate": "generation",
        "image_model": "families",
        "speculate": "drop_in.speculate",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES, {"WAYS": "CONTINUOUS_METHODS"})

__all__ = [
    "CONTINUOUS_METHODS",
    "METHODS",
    "PUBLISHED",
    "ContinuousAR",
    "ContinuousARConfig",
    "ContinuousPictures",
    "Denoised",
    "ImageModel",
    "ImagePrompt",
    "LlamaGen",
    "LlamaGenConfig",
    "Method",
    "Pictures",
    "Pipeline",
    "PipelineOutput",
    "Prompt",
    "Sampling",
    "accelerate",
    "denoise",
    "generate",
    "image_model",
    "speculate",
]
