"""Stand-ins for mini continuous: small random models with every head, each with a draft near it, as a folder the loader takes."""

from pathlib import Path
from typing import Any

import torch

from mmspec.vision import ContinuousAR, ContinuousARConfig
from mmspec.vision.checkpoints.latents import save_model
from mmspec.vision.continuous.autoencoder import make_autoencoder, save_autoencoder
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig

NAMES = ("T-shirt", "trouser", "bag")
CELLS = 16
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.15,
    "head_width": 16,
    "head_blocks": 1,
    "components": 3,
    "head_steps": 4,
    "channels": 4,
    "grid": 4,
    "classes": len(NAMES),
    "id2label": dict(enumerate(NAMES)),
}


def model(head: str, seed: int = 0, **changes: Any) -> Any:
    """A random model with a `head`, spread so that what it writes hangs on its class and on what stands before."""
    torch.manual_seed(seed)
    sizes = _SIZES | changes
    if head == "masked":
        return MaskedAR(MaskedARConfig(**{"iterations": 6, **sizes})).eval()
    return ContinuousAR(ContinuousARConfig(head=head, **sizes)).eval()


def near(target: Any, amount: float = 0.002) -> Any:
    """A draft: the target with noise on its weights."""
    torch.manual_seed(1)
    draft = type(target)(target.config).eval()
    draft.load_state_dict({name: each + amount * torch.randn_like(each) for name, each in target.state_dict().items()})
    return draft


def folder(home: Path, heads: tuple[str, ...] = ("diffusion", "mixture", "masked"), drafts: bool = True, **changes: Any) -> Path:
    """An autoencoder of 8 x 8 pictures in 4 x 4 tokens of 4 numbers, and models of its tokens."""
    torch.manual_seed(0)
    save_autoencoder(make_autoencoder(size=16, colours=1, patch=2, channels=(8, 8), dim=4).eval(), home / "autoencoder")
    for head in heads:
        target = model(head, **changes)
        save_model(target, home / head / "target")
        if drafts:
            save_model(near(target), home / head / "drafters" / "small")
    return home
