"""Our own format of LlamaGens: a folder with target, tokenizer or decoder.safetensors, captions and drafters, written by recipes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.utils.files import write_json
from mmspec.utils.weights import load_file
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.families.llamagen import WORDS, LlamaGenPictures, T5Captions

DECODER, USUAL_CODES = "decoder.safetensors", "usual_codes.json"


@dataclass(frozen=True)
class TokenizerDecoder:
    """Pictures of codes by the decoder of a diffusers `VQModel`.

    Args:
        tokenizer: the model.
    """

    tokenizer: Any

    def __call__(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes [B, height, width]."""
        from mmspec.vision.codes import tokenizer as tokens

        return tokens.decode_codes(self.tokenizer, codes)


def load_llamagen(folder: Path) -> tuple[LlamaGenPictures, dict[str, Any]]:
    """Load a LlamaGen in our own format.

    Args:
        folder: where it is.

    Returns:
        The adapter in float32, and its trained drafters by name.

    Raises:
        FileNotFoundError: naming the recipe, if there is no target.
        ValueError: for tensors that do not fit their config.
    """
    from transformers import PreTrainedTokenizerFast

    from mmspec.drafters.checkpoints.load import load_drafter
    from mmspec.vision.codes import tokenizer as tokens

    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no target in {folder}: make it with mmspec recipe vision/train_target.py -- --pictures PICTURES --out {folder}"
        )
    model, decoder = _llamagen(folder / "target"), _decoder(folder)
    labels = [str(label) for _, label in sorted(model.config.id2label.items())] if model.config.condition == "class" else []
    captions = None
    if (folder / "captions").is_dir():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "captions")
        known = folder / "captions" / WORDS
        words = frozenset(json.loads(known.read_text(encoding="utf-8"))) if known.exists() else None
        captions = T5Captions(_encoder(folder / "captions"), tokenizer, model.config.prefix, words)
    if isinstance(decoder, TokenizerDecoder):
        codebook = tokens.codebook(decoder.tokenizer).detach()
    else:
        codebook = None if decoder is None else decoder.codebook
    options: dict[str, Any] = {"to_pictures": decoder, "codebook": codebook, "captions": captions, "labels": labels}
    counted = folder / "target" / USUAL_CODES
    usual = tuple(json.loads(counted.read_text(encoding="utf-8"))) if counted.exists() else None
    drafters: dict[str, Any] = {}
    for path in sorted((folder / "drafters").glob("*/config.json")):
        small = json.loads(path.read_text(encoding="utf-8")).get("model_type") == "llamagen"
        place = path.parent
        drafters[place.name] = LlamaGenPictures(_llamagen(place), **options) if small else load_drafter(place, model)
    eagle, small = drafters.get("eagle1"), drafters.get("model")
    return LlamaGenPictures(model, **options, drafter=eagle, assistant=small, usual_codes=usual), drafters


def load_small_llamagen(folder: Path, target: LlamaGenPictures) -> LlamaGenPictures:
    """Load a smaller LlamaGen that reads the prompts of `target`, in float32. ValueError for tensors that do not fit its config."""
    options = {"to_pictures": target.to_pictures, "codebook": target.codebook, "captions": target.captions, "labels": target.labels}
    return LlamaGenPictures(_llamagen(folder), **options)


def save_llamagen(model: LlamaGenPictures, folder: Path) -> None:
    """Write a LlamaGen in our own format, without trained drafters.

    Args:
        model: an adapter whose decoder is a `TokenizerDecoder` or a `VQGANDecoder`, or none.
        folder: an empty folder.

    Raises:
        ValueError: for a decoder or text encoder of another kind, which has no file format.
    """
    decoder, captions = model.to_pictures, model.captions
    if decoder is not None and not isinstance(decoder, TokenizerDecoder | VQGANDecoder):
        raise ValueError(
            f"to_pictures is {type(decoder).__name__}, which has no file format: give a VQGANDecoder, or save its parts yourself"
        )
    if captions is not None and not isinstance(captions, T5Captions):
        raise ValueError(f"captions is {type(captions).__name__}, which has no file format: give T5Captions, or save its parts yourself")
    if model.model.config.condition == "class":
        model.model.config.id2label = {number: str(label) for number, label in enumerate(model.labels)} or model.model.config.id2label
    model.model.save_pretrained(folder / "target")
    if isinstance(decoder, TokenizerDecoder):
        decoder.tokenizer.save_pretrained(folder / "tokenizer", safe_serialization=True)
        (folder / "tokenizer" / "diffusion_pytorch_model.safetensors").rename(folder / "tokenizer" / "model.safetensors")
    elif decoder is not None:
        decoder.save(folder / DECODER)
    if captions is not None:
        captions.encoder.save_pretrained(folder / "captions")
        captions.tokenizer.save_pretrained(folder / "captions")
        if captions.words is not None:
            write_json(folder / "captions" / WORDS, sorted(captions.words))


def _decoder(folder: Path) -> TokenizerDecoder | VQGANDecoder | None:
    if (folder / DECODER).exists():
        return VQGANDecoder.load(folder / DECODER)
    from mmspec.vision.codes import tokenizer as tokens

    return TokenizerDecoder(tokens.load_tokenizer(folder / "tokenizer")) if (folder / "tokenizer").is_dir() else None


def _llamagen(folder: Path) -> Any:
    from mmspec.vision.families.llamagen_layers import LlamaGenConfig
    from mmspec.vision.families.llamagen_network import LlamaGen

    return _in_float32(LlamaGen(LlamaGenConfig.from_pretrained(folder)), folder)


def _encoder(folder: Path) -> Any:
    from transformers import T5Config, T5EncoderModel

    return _in_float32(T5EncoderModel(T5Config.from_pretrained(folder)), folder)


def _in_float32(model: Any, folder: Path) -> Any:
    """`model` with the weights in `folder`, which are stored in half precision."""
    weights = {name: tensor.to(torch.float32) for name, tensor in load_file(folder / "model.safetensors").items()}
    model = model.float()
    missing, unknown = model.load_state_dict(weights, strict=False)
    if unknown or set(missing) - {"encoder.embed_tokens.weight"}:  # T5 ties its embedding
        raise ValueError(f"{folder}: tensors {sorted({*missing, *unknown})} do not fit its config")
    return model.eval()
