"""Small random models of continuous tokens, and drafters made of them by pushing their weights: distributions need no training to be
tested."""

from typing import Any

import torch

from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
from mmspec.vision.continuous.methods import ContinuousPictures

CLASSES = 4


def small(head: str = "diffusion", away: float = 0.0, **changes: Any) -> ContinuousAR:
    """A model of tokens of 4 numbers, its random weights spread, and pushed by `away` more: 0.02 makes a fair drafter of it."""
    settings = {"channels": 4, "grid": 4, "head_width": 24, "head_blocks": 1, "components": 3, "head_steps": 4, "sigma_out": 0.3}
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = ContinuousAR(ContinuousARConfig(head=head, classes=CLASSES, **settings | sizes | changes))
    for seed, by in ((1, 0.15), (2, away)):
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.add_(torch.randn(parameter.shape, generator=generator) * by)
    return model.eval()


def pair(head: str = "diffusion", away: float = 0.04, **changes: Any) -> ContinuousPictures:
    """A target and its drafter."""
    return ContinuousPictures(small(head, **changes), drafter=small(head, away, **changes))


def prompts(count: int) -> list[int]:
    return [row % CLASSES for row in range(count)]
