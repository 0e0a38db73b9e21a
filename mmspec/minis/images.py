"""Loading mini vision: two LlamaGens with their tokenizers, judges and drafters, written by the recipes in vision/."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

CAPTIONS = ("a red apple", "grinning face", "green heart", "dog face", "pizza", "sun", "blue book", "rocket")


def load_images(folder: Path) -> dict[str, Any]:
    """Return the parts of the set in `folder` (fashion or emoji): `target`, `drafters`, `processor`, `examples`.

    Raises:
        FileNotFoundError: naming the recipe, if there is no target.
    """
    from transformers import PreTrainedTokenizerFast

    from mmspec.drafters.checkpoints.load import load_drafter
    from mmspec.vision.codes import tokenizer as tokens
    from mmspec.vision.families.llamagen import LlamaGenPictures, T5Captions

    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no target in {folder}: make it with mmspec recipe vision/train_target.py -- --set {folder.name} --out {folder}"
        )
    model, vq = _llamagen(folder / "target"), tokens.load_tokenizer(folder / "tokenizer")
    drafters = {path.parent.name: load_drafter(path.parent, model) for path in sorted((folder / "drafters").glob("*/config.json"))}
    labels = [str(label) for _, label in sorted(model.config.id2label.items())] if model.config.condition == "class" else []
    captions = processor = None
    if model.config.condition == "caption":
        processor = PreTrainedTokenizerFast.from_pretrained(folder / "captions")
        captions = T5Captions(_encoder(folder / "captions"), processor, model.config.prefix)
    target = LlamaGenPictures(
        model,
        to_pictures=lambda codes: tokens.decode_codes(vq, codes),
        codebook=tokens.codebook(vq).detach(),
        captions=captions,
        labels=labels,
        drafter=drafters.get("eagle1"),
    )
    return {"target": target, "drafters": drafters, "processor": processor, "examples": labels or list(CAPTIONS)}


def load_judge(folder: Path) -> Any:
    """Return the classifier that scores pictures of the set in `folder`; see `mmspec.vision.quality.classifier`."""
    from mmspec.vision.quality.classifier import load_classifier

    return load_classifier(folder / "classifier")


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
