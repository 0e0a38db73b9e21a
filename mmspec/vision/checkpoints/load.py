"""Image models from a file or folder: our own format, a LlamaGen file, a diffusers pipeline with GLM-Image, a transformers checkpoint."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.models.checkpoint_loading import CONFIG, READER, contents_of, loaded
from mmspec.utils.files import is_path
from mmspec.utils.names import shown
from mmspec.utils.weights import own_memory
from mmspec.vision.checkpoints.llamagen import load_llamagen_file
from mmspec.vision.checkpoints.own import DECODER, load_llamagen
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.families import ADAPTERS
from mmspec.vision.families.base import ImageModel, Size
from mmspec.vision.families.lumina import LuminaMGPT

FILES = (".pt", ".pth", ".ckpt", ".safetensors")
DTYPES = ("float32", "bfloat16", "float16", "auto")
LUMINA = "ChameleonXLLMXForConditionalGeneration"
"""The class that Lumina-mGPT's checkpoints may name; transformers' Chameleon reads them."""


def load_image_checkpoint(
    path: str | Path,
    *,
    dtype: str = "float32",
    device: torch.device | str = "cpu",
    decoder: str | Path | None = None,
    captions: str | Path | None = None,
    size: Size | None = None,
) -> ImageModel:
    """Load an image model, with what its checkpoint holds of processors and decoders.

    Args:
        path: a folder in our own format, a `.pt` file of LlamaGen, a folder of diffusers' `GlmImagePipeline`, or a folder or hub name of a
            transformers image model (Chameleon, Anole, Lumina-mGPT, Janus, Emu3, GLM-Image, ImageGPT).
        dtype: "float32", "bfloat16", "float16" or "auto".
        device: where it runs.
        decoder: for LlamaGen files, Chameleon, Anole and Lumina-mGPT, the file of the picture decoder (`vq_ds16_*.pt`, `vqgan.ckpt`).
        captions: for LlamaGen files of captions, the folder of the T5 encoder.
        size: pixels a side, for LlamaGen files whose names do not tell.

    Returns:
        The adapter.

    Raises:
        FileNotFoundError: for a path where nothing is; names that can only be a hub's are looked for there.
        ValueError: for what cannot be loaded, and for arguments that this kind of checkpoint does not read.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {shown(dtype)}; valid: {', '.join(DTYPES)}")
    where, kind = Path(path).expanduser(), torch.float32 if dtype == "auto" else getattr(torch, dtype)
    if not where.exists() and (isinstance(path, Path) or is_path(path) or where.suffix in FILES):
        raise FileNotFoundError(f"{path} does not exist: give a folder with config.json and weights, a file of LlamaGen, or a hub name")
    unread = {"decoder": decoder, "captions": captions, "size": size}
    pictures = None if decoder is None else VQGANDecoder.load(decoder).to(device)
    if where.is_file() and where.suffix in FILES:
        return _moved(load_llamagen_file(where, pictures, captions, size), device, kind)
    if (where / "target").is_dir():
        _refuse(where, **unread)
        return _moved(load_llamagen(where)[0], device, kind)
    _refuse(where, captions=captions, size=size)
    if (where / "model_index.json").is_file():
        _refuse(where, decoder=decoder)
        return load_glm_pipeline(where, dtype, device)
    if pictures is None and (where / DECODER).is_file():
        pictures = VQGANDecoder.load(where / DECODER).to(device)
    return _checkpoint(str(where) if where.exists() else str(path), dtype, device, pictures)


def _refuse(where: Path, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is {str(value)!r}, and {where} does not read it: leave {name} out")


def _moved(model: Any, device: torch.device | str, kind: torch.dtype) -> Any:
    """A LlamaGen and its parts, moved to where they run."""
    for net in (model.model, model.drafter, None if model.assistant is None else model.assistant.model):
        if net is not None:
            net.to(device, kind)
    if model.captions is not None:
        model.captions.encoder.to(device)
    return model


def load_glm_pipeline(where: Path, dtype: str, device: torch.device | str) -> ImageModel:
    """Load GLM-Image from a folder of diffusers' `GlmImagePipeline`, whose diffusion stage makes its pictures."""
    import diffusers

    from mmspec.vision.families.glm_image import DiffusionStage, GlmImage

    kind = json.loads((where / "model_index.json").read_text(encoding="utf-8")).get("_class_name")
    if kind != "GlmImagePipeline":
        raise ValueError(f"{where} is a {kind}, and pipelines that mmspec draws with are GlmImagePipeline")
    options = {} if dtype == "auto" else {"torch_dtype": getattr(torch, dtype)}
    pipeline: Any = diffusers.GlmImagePipeline.from_pretrained(where, **options).to(device)
    for part in (pipeline.vision_language_encoder, pipeline.text_encoder, pipeline.transformer, pipeline.vae):
        own_memory(part)
    pipeline.set_progress_bar_config(disable=True)
    return GlmImage(pipeline.vision_language_encoder.eval(), pipeline.processor, DiffusionStage(pipeline))


def _checkpoint(where: str, dtype: str, device: torch.device | str, decoder: Callable[[Tensor], list[Image.Image]] | None) -> ImageModel:
    import transformers as hf

    try:
        with contents_of(CONFIG):
            config = hf.AutoConfig.from_pretrained(where, trust_remote_code=False)
        names = config.architectures or []
        lumina = LUMINA in names or "lumina" in Path(where).name.lower()
        kinds = ["ChameleonForConditionalGeneration" if name == LUMINA else name for name in names]
        kind = next((each for each in kinds if each in ADAPTERS and hasattr(hf, each)), None)
        if kind is None:
            raise ValueError(f"it is a {' or '.join(kinds) or config.model_type}, and image models mmspec knows are {', '.join(ADAPTERS)}")
        model = loaded(getattr(hf, kind), where, dtype=dtype, trust_remote_code=False).to(device).eval()
        pixels = kind.startswith("ImageGPT")
        reader = hf.AutoImageProcessor if pixels else hf.AutoTokenizer if kind.startswith("Chameleon") and lumina else hf.AutoProcessor
        with contents_of(READER):
            processor = reader.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, RecursionError, KeyError, ImportError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"model {where} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None
    if kind.startswith("Chameleon"):
        return LuminaMGPT(model, processor, decoder) if lumina else _adapter(kind)(model, processor, decoder)
    if decoder is not None:
        raise ValueError(f"decoder is given, and {kind} has its own or none that this file fits: leave decoder out")
    return _adapter(kind)(model, processor.clusters if pixels else processor)


def _adapter(kind: str) -> Any:
    module, name = ADAPTERS[kind].split(":")
    return getattr(import_module(module), name)
