"""Lumina-mGPT (2024, arXiv 2408.02657): a Chameleon whose pictures begin with their size and whose rows end with a token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.vision.families.base import Size
from mmspec.vision.families.chameleon import Chameleon

BEGIN, END, ROW, TURN = "<racm3:break>", "<eoss>", "<reserved08799>", "<reserved08706>"
"""The tokens that begin and end a picture, end a row, and end a turn of the conversation."""
SIZES = 8800
"""`<reserved0NNNN>` with this number and n stands for n units of 32 pixels."""


class LuminaMGPT(Chameleon):
    """A `ChameleonForConditionalGeneration` with the weights of Lumina-mGPT, and its tokenizer or processor for prompts that are texts.

    `to_pictures` makes PIL pictures of codes [B, height, width]. `size` is in pixels, in multiples of 32. Guidance leads away from a
    picture of no prompt, or from `negative`.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        size: Size = 768,
        negative: str | Sequence[str] = "",
    ):
        words = model.config.vocabulary_map
        missing = [name for name in (BEGIN, END, ROW) if name not in words]
        if missing:
            raise ValueError(f"the vocabulary_map of this model has no {missing[0]}: it is no Lumina-mGPT")
        super().__init__(model, processor, to_pictures, size, row_end=words[ROW], tail=(words[END],), negative=negative)

    def _tokenize(self, texts: list[str]) -> Mapping[str, Any]:
        """The published prompt of each text; an empty text is a picture without a prompt."""
        tokenizer, words = getattr(self.processor, "tokenizer", self.processor), self.model.config.vocabulary_map
        side = 2 * self.step
        height, width = self.raster.height * self.step, self.raster.width * self.step
        if height % side or width % side:
            raise ValueError(f"size is ({height}, {width}): Lumina-mGPT makes pictures in multiples of {side} pixels")
        names = [f"<reserved{SIZES + pixels // side:05d}>" for pixels in (height, width)]
        opening = [words[BEGIN], *(words[name] if name in words else tokenizer.convert_tokens_to_ids(name) for name in names)]
        rows = []
        for text in texts:
            said = f"Generate an image of {width}x{height} according to the following prompt:\n{text}{TURN}"
            rows.append([*(tokenizer(said)["input_ids"] if text else []), *opening])
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}
