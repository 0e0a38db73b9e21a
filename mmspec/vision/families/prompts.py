"""Prompts of image models: as they are given, embedded, and as the state of a session whose rows change."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmspec.core.rows.changes import RowState, join_tensors, rows_of
from mmspec.utils.strict import strict


@dataclass(frozen=True, slots=True)
class Prompt:
    """R embedded prompts, padded on the left; with guidance R = 2B, the unconditional ones last.

    Args:
        embeds: [R, P, D] embeddings.
        mask: [R, P] bool, True where real.
        extra: [R, ..., M] further inputs of the model's `hidden`, padded on the right.

    Attributes:
        lengths: real positions of each row [R].
    """

    embeds: Tensor  # [R, P, D]
    mask: Tensor  # [R, P] bool
    extra: Tensor | None = None  # what else the model's `hidden` needs
    lengths: Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "lengths", self.mask.sum(1))

    @staticmethod
    def of(embeds: Tensor, mask: Tensor | None = None, extra: Tensor | None = None) -> "Prompt":
        """Make prompts from embeddings padded on either side.

        Args:
            embeds: float [R, P, D].
            mask: [R, P], nonzero where real; all by default.
            extra: [R, ..., M] further inputs of the model's `hidden`.

        Returns:
            Prompts padded on the left.
        """
        if mask is None:
            return Prompt(embeds, torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device), extra)
        order = torch.argsort(mask.long(), dim=1, stable=True)  # padding first
        return Prompt(embeds.gather(1, order[..., None].expand_as(embeds)), mask.bool().gather(1, order), extra)

    def take_rows(self, rows: Sequence[int]) -> "Prompt":
        """Return some of the prompts."""
        extra = None if self.extra is None else rows_of(self.extra, rows)
        return Prompt(rows_of(self.embeds, rows), rows_of(self.mask, rows), extra)

    def join_rows(self, other: "Prompt") -> "Prompt":
        """Return these prompts followed by the `other` ones, of the same model."""
        extra = None
        if self.extra is not None and other.extra is not None:
            most = max(self.extra.shape[-1], other.extra.shape[-1])
            extra = torch.cat([F.pad(part, (0, most - part.shape[-1])) for part in (self.extra, other.extra)])
        return Prompt(join_tensors(self.embeds, other.embeds), join_tensors(self.mask, other.mask, pad=False), extra)


class PromptRows(RowState):
    """The prompts of a session, whose rows may change.

    Args:
        prompt: those of its rows.
    """

    by_row = ("prompt",)

    def __init__(self, prompt: Prompt):
        self.prompt = prompt


@strict
@dataclass(frozen=True)
class ImagePrompt:
    """A text with images, for models that make an image from images (GLM-Image).

    Args:
        text: what to draw.
        images: PIL images that it is about, in the order in which they are shown to the model.
    """

    text: str
    images: tuple[Image.Image, ...] = ()
