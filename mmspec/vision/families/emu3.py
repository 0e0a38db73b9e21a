"""Emu3 (Wang et al. 2024): picture codes are tokens; every row is closed by a token, and three more end the picture."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Size, as_pictures, cells_of
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.families.tokens import Vocabulary, negative_tokens, one_each, prompt_tokens, stack_prompts, states, tokens_on

ENDS = ("<|extra_201|>", "<|image end|>")
"""The tokens that end the frame and the picture; the text's own end follows."""


class Emu3(ImageModel):
    """An `Emu3ForConditionalGeneration`, and its processor for prompts that are texts. `negative` is the text guidance leads away from.

    `size` is in pixels. Tokens given as prompts must name that size, as the processor's do under `return_for_image_generation`, and hold
    `negative_prompt_ids` for guidance. Where the vocabulary does not name all three closing tokens, pictures end with their last row.
    """

    def __init__(self, model: Any, processor: Any = None, size: Size = 720, negative: str | Sequence[str] = ""):
        self.model, self.processor, self.negative = model, processor, negative
        self.decoder = model.model.text_model
        refuse_unsupported(self.decoder)
        self.layers = model.config.text_config.num_hidden_layers
        self.codebook = model.model.vqmodel.quantize.embedding.weight.detach()
        known = model.vocabulary_mapping
        codes = [known.img2bpe[code] for code in range(len(known.img2bpe))]
        end = model.config.text_config.eos_token_id
        tail = [known.vocab_map.get(name) for name in ENDS] + [end[0] if isinstance(end, (list, tuple)) else end]
        tail = [] if None in tail else tail
        self.vocabulary = Vocabulary(torch.tensor([*codes, known.eol_token_id, *tail], device=model.device))
        self.codes, self.tail = len(codes), len(tail)
        self.raster = self._raster(size)

    def _raster(self, size: Size) -> Raster:
        height, width = cells_of(size, self.model.model.vqmodel.spatial_scale_factor, "Emu3")
        tail = range(self.codes + 1, self.codes + 1 + self.tail)
        return Raster.grid(height, width, self.codes, row_end=self.codes, tail=tail)

    def resized(self, size: Size) -> "Emu3":
        """Resize a picture to the input size of the tokenizer; see `ImageModel.resized`."""
        other = copy(self)
        other.raster = self._raster(size)
        return other

    def guided_from(self, negative: str | Sequence[str]) -> "Emu3":
        """Guide away from other texts; see `ImageModel.guided_from`."""
        other = copy(self)
        other.negative = negative
        return other

    @torch.no_grad()
    def encode(self, prompts: Sequence[str] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Texts, or what the processor returned for them."""
        inputs = prompt_tokens(prompts, self._tokenize if self.processor is not None else None, "Emu3")
        self._check_sizes(inputs)
        device = self.model.device
        ids, mask = tokens_on(inputs, device)
        if guided:
            own = inputs.get("negative_prompt_ids") is None and self.processor is not None
            away = (
                tokens_on(self._tokenize(one_each(self.negative or "", len(ids))), device)
                if own
                else negative_tokens(inputs, len(ids), device, "Emu3")
            )
            ids, mask = stack_prompts((ids, mask), away)
        return Prompt.of(self.decoder.embed_tokens(ids), mask)

    def _tokenize(self, texts: list[str]) -> Mapping[str, Any]:
        height, width = self.raster.height, self.raster.width
        area = height * width * self.processor.downsample_ratio**2
        size = {"ratio": f"{width}:{height}", "image_area": area}
        return self.processor(text=texts, return_for_image_generation=True, padding=True, return_tensors="pt", **size)

    def _check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """The processor says how many rows and columns of codes the prompts ask for."""
        own = [self.raster.height, self.raster.width]
        for asked in torch.as_tensor(inputs.get("image_sizes", [])).tolist():
            if asked != own:
                raise ValueError(
                    f"a prompt asks for {asked[0]} x {asked[1]} codes, but this adapter makes {own[0]} x {own[1]}: use resized"
                )

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.decoder.embed_tokens(self.vocabulary.tokens(values))

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        return states(self.decoder, embeds, layout, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.vocabulary.logits(hidden, self.model.lm_head.weight)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return as_pictures(self.model.model.vqmodel.decode(codes))
