"""Loading image models that the recipes in vision/ wrote, mini vision among them: LlamaGens with tokenizers, judges and drafters."""

import json
from pathlib import Path
from typing import Any

CAPTIONS = ("a red apple", "grinning face", "green heart", "dog face", "pizza", "sun", "blue book", "rocket")


def load_images(folder: Path) -> dict[str, Any]:
    """Return the parts of the model in `folder`, shipped or of your own pictures: `target`, `drafters`, `processor`, `examples`.

    Raises:
        FileNotFoundError: naming the recipe, if there is no target.
    """
    from mmspec.vision.checkpoints.own import load_llamagen

    target, drafters = load_llamagen(folder)
    processor, given = getattr(target.captions, "tokenizer", None), folder / "examples.json"  # captions that the model was not trained on
    examples = list(target.labels) or (json.loads(given.read_text(encoding="utf-8")) if given.exists() else list(CAPTIONS))
    return {"target": target, "drafters": drafters, "processor": processor, "examples": examples}


def load_judge(folder: Path) -> Any:
    """Return the classifier that scores pictures of the set in `folder`; see `mmspec.vision.quality.classifier`."""
    from mmspec.vision.quality.classifier import load_classifier

    return load_classifier(folder / "classifier")
