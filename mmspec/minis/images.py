"""Loading image models that the recipes in vision/ wrote, mini vision among them: LlamaGens with tokenizers, judges and drafters."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

CAPTIONS = ("a red apple", "grinning face", "green heart", "dog face", "pizza", "sun", "blue book", "rocket")


def load_images(folder: Path) -> dict[str, Any]:
    """Return the parts of the model in `folder`, shipped or of your own pictures: `target`, `drafters`, `processor`, `examples`.

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
    labels = [str(label) for _, label in sorted(model.config.id2label.items())] if model.config.condition == "class" else []
    captions = processor = None
    if model.config.condition == "caption":
        processor = PreTrainedTokenizerFast.from_pretrained(folder / "captions")
        captions = T5Captions(_encoder(folder / "captions"), processor, model.config.prefix)
    options: dict[str, Any] = {"to_pictures": lambda codes: tokens.decode_codes(vq, codes), "codebook": tokens.codebook(vq).detach()}
    options |= {"captions": captions, "labels": labels}
    drafters: dict[str, Any] = {}
    for path in sorted((folder / "drafters").glob("*/config.json")):
        small = json.loads(path.read_text(encoding="utf-8")).get("model_type") == "llamagen"
        place = path.parent
        drafters[place.name] = LlamaGenPictures(_llamagen(place), **options) if small else load_drafter(place, model)
    target = LlamaGenPictures(model, **options, drafter=drafters.get("eagle1"), assistant=drafters.get("model"))
    given = folder / "examples.json"  # captions that a model of one's own was not trained on
    examples = labels or (json.loads(given.read_text(encoding="utf-8")) if given.exists() else list(CAPTIONS))
    return {"target": target, "drafters": drafters, "processor": processor, "examples": examples}


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
