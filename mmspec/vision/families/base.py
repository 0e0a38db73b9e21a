"""Base of image models: what every adapter provides, and the family that drives it.

Values are picture codes 0 .. K-1 followed by the controls of the raster. Prompt positions have ids too, counted from the end: the last one
is `values`, the one before it `values + 1`. So the engine handles integers only, whatever a prompt is made of, and the first pending token
is the same id in every row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.utils.names import shown
from mmspec.vision.families.prompts import ImagePrompt, Prompt, PromptRows

Size = int | tuple[int, int]
"""Pixels a side of a square picture, or (height, width)."""


class ImageModel(ABC):
    """Base class of image models that write pictures code by code; also their family.

    Attributes:
        model: the network.
        raster: the grid, with forced positions and neighbours.
        layers: number of attention layers.
        codebook: [K, d] vectors of the codes, normalised where the quantiser normalises; None if unknown.
        drafter: the trained net that methods draft with when none is given.
        assistant: the smaller image model that methods draft with when none is given.
        negative: the text, or one a prompt, that guidance leads away from; None for models without negative texts.
        usual_codes: the codes that its pictures have most often at each output position, FREE at controls; None if unknown.
    """

    model: Any
    raster: Raster
    layers: int
    codebook: Tensor | None = None
    drafter: Any = None  # the trained net that methods draft with when none is given
    assistant: Any = None  # the smaller image model that methods draft with when none is given
    negative: str | Sequence[str] | None = None
    usual_codes: tuple[int, ...] | None = None

    @abstractmethod
    def encode(self, prompts: Sequence[Any] | Any, guided: bool) -> Prompt:
        """Encode prompts for the network.

        Args:
            prompts: captions, classes or embeddings, as the model takes them.
            guided: append the unconditional prompts.

        Returns:
            Embedded prompts, 2B rows if `guided`.

        Raises:
            ValueError: for invalid prompts, and for guidance without an unconditional prompt.
        """
        ...

    @abstractmethod
    def embed(self, values: Tensor) -> Tensor:
        """Embed codes and controls.

        Args:
            values: LongTensor [R, M].

        Returns:
            Embeddings [R, M, D].
        """
        ...

    @abstractmethod
    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the network.

        Args:
            embeds: [R, M, D] embeddings of the new positions.
            layout: positions and attention mask of the new positions.
            cache: the key-value cache.
            prompt: the prompts of the generation.

        Returns:
            The last hidden states [R, M, D].
        """
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, N, values] over codes and controls only."""
        ...

    def picture(self, sequences: Tensor) -> Tensor:
        """Take the codes of pictures from sequences.

        Args:
            sequences: LongTensor [B, T] of codes and controls.

        Returns:
            Codes LongTensor [B, height, width].
        """
        return self.raster.picture(sequences)

    @abstractmethod
    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pictures.

        Args:
            codes: LongTensor [B, height, width].

        Returns:
            One PIL picture for each of B.
        """
        ...

    def decode_row(self, codes: Tensor, row: int) -> Image.Image:
        """Decode one picture of a batch alone, so that it does not depend on the others.

        Args:
            codes: LongTensor [B, height, width].
            row: which one.

        Returns:
            A PIL picture.
        """
        return self.decode(codes[row : row + 1])[0]

    def resized(self, size: Size) -> "ImageModel":
        """Return this model for pictures of another size.

        Args:
            size: pixels a side, or (height, width).

        Returns:
            An adapter of the same network.

        Raises:
            ValueError: for an unsupported size.
        """
        raise ValueError(f"{type(self.model).__name__} makes pictures of one size only: leave size out")

    def guided_from(self, negative: str | Sequence[str]) -> "ImageModel":
        """Return this model with other texts that guidance leads away from.

        Args:
            negative: one text, or one a prompt.

        Returns:
            An adapter of the same network.

        Raises:
            ValueError: for models without negative texts.
        """
        raise ValueError(f"negative prompts are not read by {type(self.model).__name__}: leave them out")

    def prepared(self, prompts: Any) -> "ImageModel":
        """Return this model as it writes pictures for these prompts, which may change the raster.

        Args:
            prompts: what `encode` takes.

        Returns:
            This adapter, or another one of the same network.
        """
        return self

    # --- the engine's family ------------------------------------------------------------------------------------------

    def prompt(self, model: Any, inputs: Prompt) -> tuple[Tensor, Tensor]:
        """Ids [R, P] of the prompt's positions, counted from its end, and the mask."""
        size = inputs.mask.shape[1]
        ids = self.raster.values + torch.arange(size - 1, -1, -1, device=inputs.mask.device)
        return ids.expand(len(inputs.mask), -1), inputs.mask

    def begin(self, model: Any, inputs: Prompt, capacity: int) -> tuple[SlotCache, PromptRows]:
        """Open the cache and the state of one generation; see the family protocol."""
        return SlotCache(self.layers, capacity), PromptRows(inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: PromptRows, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [R, keep, V] of the last `keep` columns. Hidden states are taken by hooks (`models.stack.tapped`), never here."""
        codes = layout.ids.clamp(max=self.raster.values - 1)  # a column of PAD may hold the id of a prompt position
        embeds = self.embedded(layout.ids, state) if layout.opening else self.embed(codes)
        hidden = self.hidden(embeds, layout, cache, state.prompt)
        return self.logits(hidden[:, -keep:]), None

    def may_draw(self, token: int) -> bool:
        """Return whether a token may be a code; a ban of one that is none changes no picture.

        Args:
            token: an id of the model's vocabulary.

        Returns:
            False where it is surely none.
        """
        return True

    @property
    def codebook_size(self) -> int:
        """Number of codes, the first of the values."""
        return self.raster.codes

    @property
    def values(self) -> int:
        """Number of codes and controls."""
        return self.raster.values

    def embedded(self, ids: Tensor, state: PromptRows) -> Tensor:
        """Return embeddings [R, M, D] of codes, controls and prompt positions."""
        own, given = self.raster.values, state.prompt.embeds
        size = given.shape[1]
        embeds = self.embed(ids.clamp(max=own - 1))
        place = (size - 1 - (ids - own)).clamp(0, size - 1)
        given = given.gather(1, place[..., None].expand(*place.shape, given.shape[-1]))
        return torch.where((ids >= own)[..., None], given.to(embeds.dtype), embeds)


def texts_of(prompts: Any, images: bool = False) -> list[Any]:
    """Return prompts that must be texts, or with `images` texts and `ImagePrompt`s. ValueError names the first invalid one."""
    if isinstance(prompts, str):
        raise ValueError(f"prompts is the one text {shown(prompts)}: give a list of captions, one a picture")
    for prompt in prompts:
        if isinstance(prompt, ImagePrompt) and images and isinstance(prompt.text, str) and prompt.text.strip():
            continue
        if isinstance(prompt, ImagePrompt) and not images:
            raise ValueError("a prompt is an ImagePrompt: this model takes texts only, without images")
        if not isinstance(prompt, str) or not prompt.strip():
            found = f"prompt {shown(prompt)}" if isinstance(prompt, str | int | float) else f"a prompt, a {type(prompt).__name__},"
            raise ValueError(f"{found} is not a text: give a caption")
    return list(prompts)


def class_of(prompt: Any, labels: Sequence[str], classes: int) -> int:
    """Return the number of a class given by name (one of `labels`) or by number below `classes`. ValueError for an unknown one."""
    known = [label.lower() for label in labels]
    if isinstance(prompt, str) and prompt.strip().lower() in known:
        return known.index(prompt.strip().lower())
    number = int(prompt) if isinstance(prompt, int) or (isinstance(prompt, str) and prompt.strip().isdigit()) else -1
    if not 0 <= number < classes:
        names = f", or one of: {', '.join(labels)}" if labels else ""
        raise ValueError(f"unknown class {shown(prompt)}: give a number from 0 to {classes - 1}{names}")
    return number


def decoded(to_pictures: Callable[[Tensor], list[Image.Image]] | None, codes: Tensor, name: str) -> list[Image.Image]:
    """Return pictures by an external decoder. ValueError without one."""
    if to_pictures is None:
        raise ValueError(f"{name} has no decoder of its own: give the adapter to_pictures, a function from codes [B, H, W] to pictures")
    return to_pictures(codes)


def cells_of(size: Size, step: int, name: str) -> tuple[int, int]:
    """Return rows and columns of cells in pictures of `size` pixels, `step` pixels a cell. ValueError unless they are multiples."""
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < step or height % step or width % step:
        raise ValueError(f"size is {size}: {name} makes pictures whose height and width are multiples of {step} pixels")
    return height // step, width // step


def as_pictures(pixels: Tensor) -> list[Image.Image]:
    """Return pictures from `pixels` [B, 1 or 3, H, W] in [-1, 1], grey or RGB; values outside are clipped."""
    levels = ((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    return [Image.fromarray(rearrange(each, "1 h w -> h w" if len(each) == 1 else "c h w -> h w c").numpy()) for each in levels]
