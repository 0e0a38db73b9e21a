"""Loading mini continuous: an autoencoder, models of its tokens with several heads, and their drafts, written by the recipes in vision/."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

HEADS = ("diffusion", "mixture", "masked")


def load_latents(folder: Path, head: str) -> dict[str, Any]:
    """Return the parts of the mini in `folder` whose target is in its folder `head`: `target`, `drafters`, `processor` (the autoencoder),
    `examples`.

    The first of `HEADS` holds the others too, so that every method finds its head; any other is returned alone.
    """
    from mmspec.vision.checkpoints.latents import load_continuous_model
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
