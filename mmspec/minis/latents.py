"""Loading mini continuous: an autoencoder, models of its tokens with several heads, and their drafts, written by the recipes in vision/."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmspec.utils.packing import read_bytes, save_bytes


def save_model(model: Any, folder: Path) -> None:
    """Write a model of continuous tokens, its matrices as bytes, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_bytes(model.state_dict(), folder / "model.safetensors")


def load_continuous_model(folder: Path) -> Any:
    """Return the causal or masked model in `folder`, in float32. FileNotFoundError, naming the recipe, if it is missing."""
    from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
    from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig

    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no model of continuous tokens in {folder}: make it with mmspec recipe vision/train_continuous.py -- --head HEAD"
        )
    masked = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == MaskedARConfig.model_type
    model: Any = MaskedAR(MaskedARConfig.from_pretrained(folder)) if masked else ContinuousAR(ContinuousARConfig.from_pretrained(folder))
    model = model.float()
    model.load_state_dict(read_bytes(folder / "model.safetensors"))
    return model.eval()


HEADS = ("diffusion", "mixture", "masked")


def load_latents(folder: Path, head: str) -> dict[str, Any]:
    """Return the parts of the mini in `folder` whose target has a `head`: `target`, `drafters`, `processor` (the autoencoder), `examples`.

    The first of `HEADS` holds the others too, so that every method finds its head; any other is returned alone.
    """
    from mmspec.vision.continuous.autoencoder import load_autoencoder
    from mmspec.vision.continuous.chain_draft import load_linear_draft
    from mmspec.vision.continuous.methods import ContinuousPictures

    autoencoder = load_autoencoder(folder / "autoencoder")

    def one(head: str, others: Sequence[Any] = ()) -> tuple[Any, dict[str, Any]]:
        model = load_continuous_model(folder / head / "target")
        drafters = {
            path.parent.name: load_continuous_model(path.parent) for path in sorted((folder / head / "drafters").glob("*/config.json"))
        }
        labels = [str(label) for _, label in sorted(model.config.id2label.items())]
        to_pictures = partial(_pictures, autoencoder)
        linear = load_linear_draft(folder / head / "target")
        return ContinuousPictures(model, to_pictures, labels, next(iter(drafters.values()), None), others, linear), drafters

    kept = [other for other in HEADS[1:] if (folder / other / "target" / "model.safetensors").exists()] if head == HEADS[0] else []
    others = [one(other)[0] for other in kept]
    target, drafters = one(head, others)
    return {"target": target, "drafters": drafters, "processor": autoencoder, "examples": list(target.labels)}


def _pictures(autoencoder: Any, tokens: Any) -> Any:
    """PIL pictures of tokens [B, h, w, d]."""
    from mmspec.vision.continuous.autoencoder import decode_tokens

    return decode_tokens(autoencoder, tokens.flatten(1, 2))
