"""How a model class writes pictures: what every adapter states, and how the engine drives it.

Values are picture codes 0 .. K-1 and, behind them, the controls of the raster. Prompt positions have ids too, counted from the end: the
last one is `values`, the one before it `values + 1`. So the engine only ever sees integers, whatever a prompt is made of, and the first
pending token is the same id in every row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache

Size = int | tuple[int, int]
"""Pixels a side of a square picture, or (height, width)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """R embedded prompts; for guidance R = 2B, the unconditional ones behind. Padded on the left."""

    embeds: Tensor  # [R, P, D]
    mask: Tensor  # [R, P] bool
    extra: Any = None  # what else the model's `hidden` needs

    @staticmethod
    def of(embeds: Tensor, mask: Tensor | None = None, extra: Any = None) -> "Prompt":
        """From embeddings padded on either side."""
        if mask is None:
            return Prompt(embeds, torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device), extra)
        order = torch.argsort(mask.long(), dim=1, stable=True)  # padding first
        return Prompt(embeds.gather(1, order[..., None].expand_as(embeds)), mask.bool().gather(1, order), extra)

    @property
    def lengths(self) -> Tensor:
        """[R] positions that are not padding."""
        return self.mask.sum(1)


class ImageModel(ABC):
    """A model that writes pictures code by code: its grid, its values, its prompts, its decoder. Also the engine's family for it.

    `model` is the network; `layers` its attention layers; `raster` the grid, with forced positions and neighbours; `codebook` [K, d] the
    vectors the codes stand for, normalised where the quantiser normalises, None where they are not known.
    """

    model: Any
    raster: Raster
    layers: int
    codebook: Tensor | None = None
    drafter: Any = None  # the trained net that methods draft with when none is given

    @abstractmethod
    def encode(self, prompts: Sequence[Any] | Any, guided: bool) -> Prompt:
        """Prompts, as a user gives them, for the network; with the unconditional ones behind when `guided`.

        ValueError for prompts it cannot take, and for guidance where it has no unconditional prompt.
        """
        ...

    @abstractmethod
    def embed(self, values: Tensor) -> Tensor:
        """Embeddings [R, M, D] of codes and controls [R, M]."""
        ...

    @abstractmethod
    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """The network's last hidden states [R, M, D]."""
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, N, values] over codes and controls only: the rest of the head is never multiplied."""
        ...

    def picture(self, sequences: Tensor) -> Tensor:
        """Codes [B, height, width] of what was written, codes and controls [B, T]."""
        return self.raster.picture(sequences)

    @abstractmethod
    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Pictures from codes [B, height, width]."""
        ...

    def resized(self, size: Size) -> "ImageModel":
        """This model for pictures of `size` pixels a side, or (height, width). ValueError for a size it cannot do."""
        raise ValueError(f"{type(self.model).__name__} makes pictures of one size only: leave size out")

    # --- the engine's family ------------------------------------------------------------------------------------------

    def prompt(self, model: Any, inputs: Prompt) -> tuple[Tensor, Tensor]:
        """Ids [R, P] of the prompt's positions, counted from its end, and the mask."""
        size = inputs.mask.shape[1]
        ids = self.raster.values + torch.arange(size - 1, -1, -1, device=inputs.mask.device)
        return ids.expand(len(inputs.mask), -1), inputs.mask

    def begin(self, model: Any, inputs: Prompt, capacity: int) -> tuple[SlotCache, Prompt]:
        return SlotCache(self.layers, capacity), inputs

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Prompt, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [R, keep, V] of the last `keep` columns. Hidden states are taken by hooks (`models.stack.tapped`), never here."""
        hidden = self.hidden(self.embedded(layout.ids, state), layout, cache, state)
        return self.logits(hidden[:, -keep:]), None

    @property
    def values(self) -> int:
        """Codes and controls."""
        return self.raster.values

    def embedded(self, ids: Tensor, state: Prompt) -> Tensor:
        """Embeddings [R, M, D] of any ids the engine knows: codes, controls and prompt positions."""
        own, size = self.raster.values, state.embeds.shape[1]
        embeds = self.embed(ids.clamp(max=own - 1))
        place = (size - 1 - (ids - own)).clamp(0, size - 1)
        given = state.embeds.gather(1, place[..., None].expand(*place.shape, state.embeds.shape[-1]))
        return torch.where((ids >= own)[..., None], given.to(embeds.dtype), embeds)


def texts_of(prompts: Any) -> list[str]:
    """Prompts that must be texts. ValueError names the first that is not, or is empty."""
    if isinstance(prompts, str):
        raise ValueError(f"prompts is the one text {prompts!r}: give a list of captions, one a picture")
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt.strip():
            found = f"prompt {prompt!r:.60}" if isinstance(prompt, str | int | float) else f"a prompt, a {type(prompt).__name__},"
            raise ValueError(f"{found} is not a text: give a caption")
    return list(prompts)


def class_of(prompt: Any, labels: Sequence[str], classes: int) -> int:
    """The number of a class given by name (one of `labels`) or by number, below `classes`. ValueError for one that is unknown."""
    known = [label.lower() for label in labels]
    if isinstance(prompt, str) and prompt.strip().lower() in known:
        return known.index(prompt.strip().lower())
    number = int(prompt) if isinstance(prompt, int) or (isinstance(prompt, str) and prompt.strip().isdigit()) else -1
    if not 0 <= number < classes:
        names = f", or one of: {', '.join(labels)}" if labels else ""
        raise ValueError(f"unknown class {prompt!r}: give a number from 0 to {classes - 1}{names}")
    return number


def decoded(to_pictures: Callable[[Tensor], list[Image.Image]] | None, codes: Tensor, name: str) -> list[Image.Image]:
    """Pictures by an external decoder. ValueError where there is none."""
    if to_pictures is None:
        raise ValueError(f"{name} has no decoder of its own: give the adapter to_pictures, a function from codes [B, H, W] to pictures")
    return to_pictures(codes)


def cells_of(size: Size, step: int, name: str) -> tuple[int, int]:
    """Rows and columns of cells in pictures of `size` pixels, `step` pixels a cell. ValueError for a size that is no multiple of `step`."""
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < step or height % step or width % step:
        raise ValueError(f"size is {size}: {name} makes pictures whose height and width are multiples of {step} pixels")
    return height // step, width // step


def as_pictures(pixels: Tensor) -> list[Image.Image]:
    """Pictures from `pixels` [B, 1 or 3, H, W] between -1 and 1, grey or RGB; what lies outside is cut off."""
    levels = ((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    return [Image.fromarray(rearrange(each, "1 h w -> h w" if len(each) == 1 else "c h w -> h w c").numpy()) for each in levels]
