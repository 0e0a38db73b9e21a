"""GLM-Image (2026): an autoregressive model writes a small preview, then the picture, in codes that condition a diffusion model."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Prompt, Size, cells_of, decoded
from mmspec.vision.families.tokens import Vocabulary, prompt_tokens, states, tokens_on

PIXELS = 32
"""A code's side in the picture; a preview has about (PIXELS / 2)^2 codes, whatever the picture's size."""


class GlmImage(ImageModel):
    """A `GlmImageForConditionalGeneration`, and its processor for prompts that are texts.

    `to_pictures` makes PIL pictures of codes [B, height, width]: diffusers' `GlmImagePipeline` called with the same prompts and with
    `prior_token_ids=prior_tokens(codes)`. Guidance is the pipeline's affair too. `size` is in pixels; `preview` the rows and columns of
    the preview, by default the published ones.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        size: Size = (1152, 768),
        preview: tuple[int, int] | None = None,
    ):
        self.model, self.processor, self.to_pictures = model, processor, to_pictures
        self.decoder = model.model.language_model
        refuse_unsupported(self.decoder)
        config = model.config
        self.layers, self.codes = config.text_config.num_hidden_layers, config.vq_config.num_embeddings
        self.codebook = F.normalize(model.model.vqmodel.quantize.embedding.weight.detach(), dim=-1)
        self.vocabulary = Vocabulary(torch.tensor([*range(self.codes), config.image_end_token_id], device=model.device))
        self._resize(size, preview)

    def _resize(self, size: Size, preview: tuple[int, int] | None) -> None:
        height, width = cells_of(size, PIXELS, "GLM-Image")
        ratio = height / width
        self.preview = preview or (int(ratio**0.5 * (PIXELS // 2)), int((1 / ratio) ** 0.5 * (PIXELS // 2)))
        small = Raster.grid(*self.preview, self.codes)
        self.raster = Raster.grid(height, width, self.codes, tail=(self.codes,)).behind(small)

    def resized(self, size: Size) -> "GlmImage":
        """Resize a picture to the input size of the tokenizer; see `ImageModel.resized`."""
        other = copy(self)
        other._resize(size, None)
        return other

    @torch.no_grad()
    def encode(self, prompts: Sequence[str] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Texts, or what the processor returned for them."""
        if guided:
            raise ValueError("GLM-Image is guided in its diffusion stage, not here: leave guidance out, give it to the pipeline instead")
        inputs = prompt_tokens(prompts, self._tokenize if self.processor is not None else None, "GLM-Image")
        ids, mask = tokens_on(inputs, self.model.device)
        self._check_grids(inputs)
        return Prompt.of(self.decoder.embed_tokens(ids), mask, extra=self._places(mask.sum(1)))

    def _tokenize(self, texts: list[str]) -> Mapping[str, Any]:
        said = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
        size = {"target_h": self.raster.height * PIXELS, "target_w": self.raster.width * PIXELS}
        options = {"tokenize": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
        return self.processor.apply_chat_template(said, **options, **size)

    def _check_grids(self, inputs: Mapping[str, Any]) -> None:
        """The processor says which grids the prompts ask for: the picture's and the preview's, in turn."""
        own = [[1, self.raster.height, self.raster.width], [1, *self.preview]]
        asked = torch.as_tensor(inputs.get("image_grid_thw", [])).tolist()
        if asked and asked != own * (len(asked) // 2):
            raise ValueError(
                f"the prompts ask for grids {asked}, but this adapter makes {own} a prompt: use resized, or the same target size"
            )

    def _places(self, lengths: Tensor) -> Tensor:
        """Time, row and column [3, R, P + T] of logical positions: equal in the prompts of `lengths` [R], and apart in the grids behind.

        The class itself keeps this table on the module, where it is the last caller's.
        """
        lines, start = [], 0
        for height, width in (self.preview, (self.raster.height, self.raster.width)):
            cell = torch.arange(height * width, device=lengths.device)
            lines.append(torch.stack([torch.zeros_like(cell), cell // width, cell % width]) + start)
            start += max(height, width)
        grids = torch.cat([*lines, torch.full((3, 1), start, device=lengths.device)], 1)  # [3, T], from the prompt's end
        position = torch.arange(int(lengths.max()) + grids.shape[1], device=lengths.device).expand(len(lengths), -1)
        after = position - lengths[:, None]
        inside = grids[:, after.clamp(0, grids.shape[1] - 1)] + lengths[:, None]
        return torch.where(after < 0, position, inside)

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.decoder.embed_tokens(self.vocabulary.tokens(values))

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        places = prompt.extra.gather(2, layout.positions.expand(3, -1, -1))
        return states(self.decoder, embeds, layout, cache, places)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.vocabulary.logits(hidden, self.model.lm_head.weight)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return decoded(self.to_pictures, codes, "GLM-Image")


def prior_tokens(codes: Tensor) -> Tensor:
    """What the diffusion stage takes: every code twice as high and wide, in raster order. [B, H, W] -> [B, 4 H W]"""
    return codes.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
