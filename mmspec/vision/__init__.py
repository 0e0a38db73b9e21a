"""Images out: autoregressive image models, faster, drawing the same."""

from mmspec.vision.families import image_model
from mmspec.vision.family import ImageModel, Prompt
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.llamagen import LlamaGen, LlamaGenConfig
from mmspec.vision.methods import METHODS, Method

__all__ = ["METHODS", "ImageModel", "LlamaGen", "LlamaGenConfig", "Method", "Pictures", "Prompt", "generate", "image_model"]
