"""Loading image models that the recipes in vision/ wrote, mini vision among them: LlamaGens with tokenizers, judges and drafters."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.minis.drawn.captioned import read_caption
from mmspec.vision.quality.classifier import Classifier


def load_images(folder: Path) -> dict[str, Any]:
    """Return the parts of the model in `folder`, shipped or of your own pictures: `target`, `drafters`, `processor`, `examples`.

    Raises:
        FileNotFoundError: naming the recipe, if there is no target.
    """
    from mmspec.vision.checkpoints.own import load_llamagen

    target, drafters = load_llamagen(folder)
    processor, given = getattr(target.captions, "tokenizer", None), folder / "examples.json"  # captions that the model was not trained on
    examples = list(target.labels) or (json.loads(given.read_text(encoding="utf-8")) if given.exists() else [])
    return {"target": target, "drafters": drafters, "processor": processor, "examples": examples}


def load_judge(folder: Path) -> Classifier:
    """Return the classifier that scores pictures of the set in `folder`; see `mmspec.vision.quality.classifier`."""
    from mmspec.vision.quality.classifier import load_classifier

    return load_classifier(folder / "classifier")


def asked_values(judge: Classifier, prompts: Sequence[Any], labels: Sequence[str] = ()) -> Tensor | None:
    """Return what a judge sees in pictures that show what their prompts say.

    Args:
        judge: the classifier.
        prompts: names of classes, or captions of scenes (`mmspec.minis.drawn.captioned`).
        labels: the model's classes, if it draws classes.

    Returns:
        LongTensor [N, A], the value of each attribute, a number of its own values; None where prompts do not say them: captions of other
        pictures, and a judge of other attributes.
    """
    values = judge.values
    if labels:
        known = [str(label) for label in labels]
        return torch.tensor([[known.index(prompt)] for prompt in prompts]) if list(values.values()) == [known] else None
    try:
        asked = [read_caption(prompt).attributes for prompt in prompts]
        return torch.tensor([[values[name].index(row[name]) for name in values] for row in asked])
    except (KeyError, ValueError):
        return None
