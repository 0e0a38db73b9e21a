"""GLM-Image as its own `generate` draws it: every token of the head may stand anywhere, and the prompt is as `generate` prepared it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.vision.families.glm_image import GlmImage
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.families.tokens import Vocabulary

READ = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "images_per_sample", "logits_to_keep", "use_cache")
"""Inputs of GLM-Image's `generate` that are drafted for."""


class GlmImageTokens(GlmImage):
    """A GLM-Image whose values are the tokens of its head.

    Args:
        model: a `GlmImageForConditionalGeneration`.
        grids: rows and columns of the grids that are written, in turn.
        most: tokens that a row may write.
    """

    def __init__(self, model: Any, grids: Sequence[tuple[int, int]], most: int):
        self.size, self.most = model.config.text_config.vision_vocab_size, most
        super().__init__(model)
        self.vocabulary = Vocabulary(torch.arange(self.size, device=model.device))
        self._write(grids)

    def _write(self, grids: Sequence[tuple[int, int]]) -> None:
        """Set the grids; behind them stand cells for what is written after the picture."""
        self.grids = tuple(grids)
        behind = self.most - sum(height * width for height, width in self.grids)
        self.raster = Raster.grid(1, max(1, behind), self.size)
        for grid in self.grids[::-1]:
            self.raster = self.raster.behind(Raster.grid(*grid, self.size))

    def encode_prepared(self, ids: Tensor, inputs: Mapping[str, Any]) -> Prompt:
        """Encode a prompt as `generate` prepared it; tokens behind the picture share its end's place, as the class has no other for them.

        Args:
            ids: LongTensor [B, P].
            inputs: the model's other inputs.

        Returns:
            Embedded prompts.
        """
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        prompt = self.encode({**inputs, "input_ids": ids, "attention_mask": mask}, guided=False)
        assert prompt.extra is not None
        table, more = prompt.extra, max(0, self.most - sum(height * width for height, width in self.grids) - 1)
        return Prompt(prompt.embeds, prompt.mask, torch.cat([table, table[..., -1:].expand(-1, -1, more)], -1))


def grids_of(thw: Tensor, per_row: Tensor | None, ids: Tensor, end: int) -> tuple[tuple[int, int], ...]:
    """Return the grids that `generate` writes for these prompts: the preview, if any, and the picture.

    Args:
        thw: LongTensor [grids, 3], time, rows and columns of all prompts' grids.
        per_row: LongTensor [B], grids of each prompt; None for one prompt.
        ids: LongTensor [B, P], the prompts.
        end: the token that ends an image in a prompt.

    Returns:
        Rows and columns of each grid, in the order in which they are written.

    Raises:
        ValueError: for prompts that write different grids.
    """
    counts = [len(thw)] if per_row is None else per_row.tolist()
    if sum(counts) != len(thw) or len(counts) != len(ids):
        raise ValueError(f"images_per_sample is {counts} for {len(thw)} grids in image_grid_thw and {len(ids)} prompts")
    found = set()
    for lines, shown in zip(thw.split(counts), (ids == end).sum(1).tolist(), strict=True):
        found.add(tuple((height, width) for _, height, width in lines[shown:].flip(0).tolist()))
    if len(found) != 1 or not next(iter(found)):
        raise ValueError("the prompts of a batch write grids of different sizes: draw them in turn")
    return found.pop()
