"""ImageGPT (Chen et al. 2020): pixels as 512 colours, from a start token, with learned positions and no prompt."""

from collections.abc import Mapping, Sequence
from copy import copy
from math import isqrt
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor, nn
from transformers.models.imagegpt.modeling_imagegpt import ImageGPTModel

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Size, as_pictures
from mmspec.vision.families.prompts import Prompt


class _Masked(ImageGPTModel):
    """An ImageGPT that goes by the mask alone. Its own forward flattens masks, and its attention hides columns by their number, while
    in our cache a slot's number is not its column's. Made as a view of a model: parameters and hooks are the model's own."""

    @staticmethod
    def of(model: ImageGPTModel) -> "_Masked":
        view = copy(model)
        view.__class__ = _Masked
        view._modules = {**model._modules, "h": nn.ModuleList(_masked(block) for block in model.h)}
        return view  # pyright: ignore[reportReturnType]

    def forward(self, embeds: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> tuple[Tensor]:  # pyright: ignore
        """The last hidden states [R, M, D], in a tuple. `mask` [R, 1, M, S] is added to the attention's scores."""
        hidden = self.drop(embeds + self.wpe(positions))
        for block in self.h:
            hidden = block(hidden, cache, mask)[0]
        return (self.ln_f(hidden),)


def _masked(block: nn.Module) -> nn.Module:
    """A view of `block` whose attention adds no triangle of its own: it has none where it believes it looks at an encoder."""
    view, attention = copy(block), copy(block.attn)
    attention.is_cross_attention = True  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    view._modules = {**block._modules, "attn": attention}  # pyright: ignore[reportAttributeAccessIssue]
    return view


class ImageGPT(ImageModel):
    """An `ImageGPTForCausalImageModeling`. `clusters` [K, 3] are its colours from -1 to 1, as its image processor holds them; without
    them only codes can be had. Pictures are square unless `size` says otherwise; they have as many pixels as the model has positions.

    Prompts are None, one a picture.
    """

    capturable = False

    def __init__(self, model: Any, clusters: Any = None, size: Size | None = None):
        refuse_unsupported(model)
        config, self.model = model.config, model
        self.layers, self.codebook = config.n_layer, None if clusters is None else torch.as_tensor(clusters, dtype=torch.float32)
        height, width = (size, size) if isinstance(size, int) else size or (isqrt(config.n_positions),) * 2
        if height * width != config.n_positions:
            raise ValueError(f"size {height} x {width}: this ImageGPT makes pictures of {config.n_positions} pixels, no more and no fewer")
        self.raster = Raster.grid(height, width, config.vocab_size - 1)

    @torch.no_grad()
    def encode(self, prompts: Sequence[Any] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """None for each picture, or {"input_ids": [B, 1]} of start tokens."""
        if guided:
            raise ValueError("ImageGPT takes no prompt, so there is nothing to guide it by: leave guidance out")
        start = self.model.config.vocab_size - 1
        given = prompts["input_ids"].tolist() if isinstance(prompts, Mapping) else prompts
        for prompt in given:
            if prompt not in (None, "", [start]):
                raise ValueError(f"prompt {prompt!r}: ImageGPT takes none, give None for every picture (or its start token {start})")
        return Prompt.of(self.embed(torch.full((len(given), 1), start, device=self.model.device)))

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.model.transformer.wte(values)

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        hide = torch.zeros(layout.visible.shape, dtype=embeds.dtype, device=embeds.device)
        hide.masked_fill_(~layout.visible, torch.finfo(embeds.dtype).min)
        return _Masked.of(self.model.transformer)(embeds, layout.positions, hide[:, None], cache)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.model.lm_head(hidden)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        if self.codebook is None:
            raise ValueError("ImageGPT's colours are not in the model: give the adapter clusters, those of its image processor")
        return as_pictures(rearrange(self.codebook.to(codes.device)[codes], "b h w c -> b c h w"))

    def resized(self, size: Size) -> "ImageGPT":
        """Resize a picture to the input size of the tokenizer; see `ImageModel.resized`."""
        other = ImageGPT(self.model, self.codebook, size)
        other.drafter, other.assistant = self.drafter, self.assistant
        return other
