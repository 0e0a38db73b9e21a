"""Windows of text with the target's hidden states: what a drafter that reads the target is trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.features.reading import Columns, VisionView


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """Windows of text with the target's hidden states.

    `total` and `best` are needed only where a drafter has a part of the target's vocabulary: without them they are computed from `last`.
    """

    ids: Tensor  # [B, W]
    features: Tensor  # [B, W, F] the hidden states the net reads, side by side
    last: Tensor  # [B, W, H] the last hidden state, which the head reads
    own: Tensor  # [B, W] bool: did the target write this value? Only its own text is a lesson
    embeds: Tensor | None = None  # [B, W, H] what the target's decoder read at pictures; None: it saw none
    pictures: Tensor | None = None  # [B, W] which picture of its row a position is of, from 1 on; 0 where there is text
    total: Tensor | None = None  # [B, W] logsumexp of the target's logits after each value, where its own text follows
    best: Tensor | None = None  # [B, W] the likeliest value there
    seeds: Sequence[int] | None = None  # [B] of what a net draws at random in training; None: the rows' numbers

    def widened(self, size: int) -> "RecordedWindow":
        """The windows with zeros behind, `size` values long: nothing there is a lesson."""
        return self._each(lambda x: nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, size - x.shape[1])))

    def trimmed(self, behind: int = 8) -> "RecordedWindow":
        """The windows without what no row needs: `behind` values stay behind the last lesson of all. Looks at the device once."""
        size = min(self.ids.shape[1], int(self.own.any(0).nonzero().max()) + 1 + behind)
        return self._each(lambda x: x[:, :size])

    def columns(self, embed: Any) -> Columns:
        """Everything but the last value as a prompt's columns: value t + 1 beside the state at t."""
        vision = None
        if self.pictures is not None and self.embeds is not None:
            vision = VisionView(torch.where((self.pictures > 0)[..., None], self.embeds, embed(self.ids)), self.pictures)
        lengths = self.ids.new_full((len(self.ids),), self.ids.shape[1] - 1)
        return Columns.of(self.ids[:, 1:], lengths, self.features[:, :-1], vision)

    def _each(self, change: Any) -> "RecordedWindow":
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return replace(self, **{name: change(part) for name, part in parts.items() if isinstance(part, Tensor)})
