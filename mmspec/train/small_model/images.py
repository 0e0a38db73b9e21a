"""Distillation of a small image model that drafts codes for a larger one: its layers are copied from the target's, then trained by KL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_network import LlamaGen


@dataclass(frozen=True)
class WrittenPictures:
    """Pictures that the target drew.

    Args:
        embeds: [R, P, D] the target's embedded prompts.
        mask: bool [R, P], True at real positions.
        codes: LongTensor [R, T].
    """

    embeds: Tensor
    mask: Tensor
    codes: Tensor


def small_llamagen(target: LlamaGen, layers: int) -> LlamaGen:
    """Return a LlamaGen with `layers` layers copied from `target`, the first and the last among them, and its embeddings and head.

    Args:
        target: the model to draft for.
        layers: number of layers, fewer than the target's.

    Raises:
        ValueError: unless there are 1 layer at least and fewer than the target has.
    """
    most = target.config.num_hidden_layers
    if not 1 <= layers < most:
        raise ValueError(f"layers is {layers}: a drafter of this target has 1 to {most - 1} layers")
    config = type(target.config).from_dict(target.config.to_dict() | {"num_hidden_layers": layers, "dropout": 0.0})
    made: Any = LlamaGen(config)
    small = made.to(target.device, target.dtype)
    taken = [round(number * (most - 1) / max(1, layers - 1)) for number in range(layers)]
    weights = {name: tensor for name, tensor in target.state_dict().items() if not name.startswith("layers.")}
    for number, layer in enumerate(taken):
        weights |= {f"layers.{number}.{name}": tensor for name, tensor in target.layers[layer].state_dict().items()}
    small.load_state_dict(weights)
    return small


class SmallImageLoss(nn.Module):
    """The loss of a small image model: KL from the target's distributions on pictures that the target drew.

    The prompt's embedding stays the target's; it is not trained.

    Args:
        small: the model to train.
        target: the model to draft for.
    """

    def __init__(self, small: LlamaGen, target: LlamaGen):
        super().__init__()
        small.cls_embedding.requires_grad_(False)
        self.small, self._target = small, [target]  # in a list: no part of this module

    def forward(self, pictures: WrittenPictures) -> Tensor:
        """Return nats a code, a scalar."""
        own, wanted = self._both(pictures)
        return (wanted.exp() * (wanted - own)).sum(-1).mean()

    @torch.no_grad()
    def acceptance(self, pictures: WrittenPictures) -> list[tuple[float, float]]:
        """Return one pair: the mean of sum min(p, q), which the token rule accepts, and how often the likeliest codes agree."""
        own, wanted = self._both(pictures)
        taken = torch.minimum(own.exp(), wanted.exp()).sum(-1).mean().item()
        return [(taken, (own.argmax(-1) == wanted.argmax(-1)).float().mean().item())]

    def _both(self, pictures: WrittenPictures) -> tuple[Tensor, Tensor]:
        """Log-probabilities [R, T, V] of the small model and of the target."""
        parts = (pictures.embeds, pictures.codes, pictures.mask)
        with torch.no_grad():
            wanted = self._target[0].write(*parts).float().log_softmax(-1)
        return self.small.write(*parts).float().log_softmax(-1), wanted


@torch.no_grad()
def written_pictures(
    model: LlamaGenPictures, prompts: Sequence[Any], codes: Tensor, rows: Sequence[int], conditional: bool
) -> WrittenPictures:
    """Return some of the pictures that a target drew, with its prompts or without.

    Args:
        model: the target.
        prompts: of all pictures.
        codes: LongTensor [N, T] of all pictures.
        rows: which are meant.
        conditional: with their prompts; else as guidance's unconditional rows.
    """
    prompt = model.encode([prompts[row] for row in rows], guided=True)
    half = slice(0, len(rows)) if conditional else slice(len(rows), None)
    return WrittenPictures(prompt.embeds[half], prompt.mask[half], codes[list(rows)])
