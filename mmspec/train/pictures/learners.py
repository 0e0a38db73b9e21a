"""What is trained on drawn pictures: nets that read the target's states, and small image models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.checkpoints.nets import new_net
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.pictures.drawn import DrawnPictures
from mmspec.train.pictures.forward import picture_states
from mmspec.vision.codes.shared_layers import SharedLayers
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.code_target import CodeTarget
from mmspec.vision.families.prompts import Prompt

NETS = ("eagle1", "eagle3")
"""Kinds of nets that are trained for image models."""


def picture_net(kind: str, target: ImageModel) -> nn.Module:
    """Return an untrained net over the codes and controls of an image model.

    An eagle3's head begins with the rows of the target's, where that is linear.

    Args:
        kind: one of `NETS`.
        target: the adapter of the model to draft for.

    Raises:
        ValueError: for another kind.
    """
    if kind not in NETS:
        raise ValueError(f"kind is {kind!r}: give model, {' or '.join(NETS)}")
    view = CodeTarget(target)
    net, rows = new_net(kind, view, {}), view.get_output_embeddings().rows() if kind == "eagle3" else None
    if rows is not None:
        net.lm_head.weight.data.copy_(rows)
    return net.to(target.model.device)


def picture_net_loss(net: Any, target: ImageModel, depth: int) -> DistillationLoss:
    """Return the loss of a net: KL at every level and, of eagle1, 0.1 SmoothL1 of its states.

    Args:
        net: the net.
        target: the adapter of the model to draft for, frozen.
        depth: levels unrolled.
    """
    return DistillationLoss(net, CodeTarget(target), Aim(depth=depth, states=0.1 if net.kind == "eagle1" else 0.0))


@dataclass(frozen=True)
class WrittenPictures:
    """Pictures that a target drew, for a small image model.

    Args:
        prompt: R embedded prompts of the target's.
        values: LongTensor [R, T] of codes and controls.
        free: bool [T], the positions that hold codes.
    """

    prompt: Prompt
    values: Tensor
    free: Tensor

    @staticmethod
    def of(drawn: DrawnPictures, rows: Sequence[int], conditional: bool) -> "WrittenPictures":
        """Return some of the pictures, with their prompts or as guidance's unconditional rows."""
        return WrittenPictures(drawn.prompt(rows, conditional), drawn.values(rows), drawn.free)


class SmallImageLoss(nn.Module):
    """The loss of a small image model: KL from the target's distributions over codes on pictures that the target drew.

    Prompts are the target's embeddings; they are not trained.

    Args:
        small: what is trained: `SharedLayers`, or the network of a small adapter.
        target: the adapter of the model to draft for.
        adapter: the small model's adapter; by default the layers of `small` in the target.
    """

    def __init__(self, small: nn.Module, target: ImageModel, adapter: ImageModel | None = None):
        super().__init__()
        if adapter is None:
            if not isinstance(small, SharedLayers):
                raise ValueError(f"small is a {type(small).__name__}: give its adapter, too")
            adapter = small.over(target)
        self.small, self._models = small, (adapter, target)  # in a tuple: no part of this module

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
        """Log-probabilities [R, codes' positions, V] of the small model and of the target."""
        small, target = self._models
        with torch.no_grad():
            wanted = _log_probabilities(target, pictures, target.model.dtype)
        return _log_probabilities(small, pictures, next(self.small.parameters()).dtype), wanted


def _log_probabilities(model: ImageModel, pictures: WrittenPictures, dtype: torch.dtype) -> Tensor:
    states = picture_states(model, pictures.prompt, pictures.values, dtype)[:, pictures.free]
    return model.logits(states.to(model.model.dtype)).float().log_softmax(-1)
