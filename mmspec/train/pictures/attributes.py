"""A loss that teaches an image model to read its captions: its middle layer tells the attributes of the picture at every place.

The codes of a picture say little about its caption, a few nats spread over hundreds of codes, so likelihood alone teaches reading late. A
linear reader of the middle layer, which is thrown away afterwards, asks for what the caption says wherever a code is drawn. This is deep
supervision (Lee et al. 2015, arXiv 1409.5185) by attributes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vision.families.llamagen_network import TrainedTogether

_EVERY = 8  # places between two that are asked


class AttributeLoss(nn.Module):
    """The module of training: a target with its text encoder, and the reader of the target's middle layer.

    Args:
        writer: target and text encoder.
        values: how many values each attribute has.
    """

    def __init__(self, writer: TrainedTogether, values: Sequence[int]):
        super().__init__()
        self.writer, self.values = writer, list(values)
        self.reader = nn.Linear(writer.target.config.hidden_size, sum(values))

    def forward(self, codes: Tensor, conditions: Sequence[Any], dropped: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """Return nats a code, and the loss of the attributes.

        Args:
            codes: LongTensor [B, T].
            conditions: captions.
            dropped: bool [B], rows that are unconditional; they are not asked for attributes.
            attributes: LongTensor [B, A].

        Returns:
            [B, T] nats, and the mean cross-entropy of the attributes in nats.
        """
        found: list[Any] = []
        layers = self.writer.target.layers
        hook = layers[len(layers) // 2 - 1].register_forward_hook(lambda _, __, output: found.append(output))
        try:
            nats = self.writer(codes, conditions, dropped)
        finally:
            hook.remove()
        states = found[0][:, -codes.shape[1] :: _EVERY][~dropped]
        losses = [
            F.cross_entropy(logits.flatten(0, 1).float(), wanted[:, None].expand(logits.shape[:2]).flatten())
            for logits, wanted in zip(self.reader(states).split(self.values, -1), attributes[~dropped].unbind(1), strict=True)
        ]
        return nats, torch.stack(losses).mean() if len(states) else nats.new_zeros(())
