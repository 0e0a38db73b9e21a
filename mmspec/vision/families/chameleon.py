"""Chameleon (2024) and what was trained from it: Anole, Lumina-mGPT. The class has no picture generation and no picture decoder.

Its forward hides the picture tokens' logits, so the adapter goes through the inner model and the head.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Size, cells_of, decoded
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.families.tokens import Tokens, Vocabulary, negative_tokens, one_each, prompt_tokens, stack_prompts, states, tokens_on


class Chameleon(ImageModel):
    """A `ChameleonForConditionalGeneration`, and its processor for prompts that are texts.

    `to_pictures` makes PIL pictures of codes [B, height, width] (the decoder of its VQ tokenizer). `size` is in pixels, by default what
    the model's own pictures have. `row_end` and `tail` are vocabulary ids that close every row and the picture: none in Anole, 8803 and
    (8196,) in Lumina-mGPT. Tokens given as prompts must end with the one that begins a picture (and, in Lumina-mGPT, those that say its
    size), and hold `negative_prompt_ids` for guidance; texts are guided away from `negative`, one text or one a prompt.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        size: Size | None = None,
        row_end: int | None = None,
        tail: Sequence[int] = (),
        negative: str | Sequence[str] | None = None,
    ):
        refuse_unsupported(model.model)
        self.model, self.processor, self.to_pictures, self.negative = model, processor, to_pictures, negative
        self.layers = model.config.num_hidden_layers
        self.codebook = model.model.vqmodel.quantize.embedding.weight.detach()
        known = model.model.vocabulary_mapping.img2bpe
        codes = [known[code] for code in range(len(known))]
        controls = ([] if row_end is None else [row_end]) + list(tail)
        self.vocabulary = Vocabulary(torch.tensor([*codes, *controls], device=model.device))
        self.codes, self.closed, self.tail = len(codes), row_end is not None, len(tail)
        self.raster = self._raster(model.config.vq_config.resolution if size is None else size)

    def _raster(self, size: Size) -> Raster:
        self.step = 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)  # pixels a code
        height, width = cells_of(size, self.step, "Chameleon")
        first = self.codes + self.closed
        row_end = self.codes if self.closed else None
        return Raster.grid(height, width, self.codes, row_end=row_end, tail=range(first, first + self.tail))

    def resized(self, size: Size) -> "Chameleon":
        """Resize a picture to the input size of the tokenizer; see `ImageModel.resized`."""
        other = copy(self)
        other.raster = self._raster(size)
        return other

    def guided_from(self, negative: str | Sequence[str]) -> "Chameleon":
        """Guide away from other texts; see `ImageModel.guided_from`."""
        other = copy(self)
        other.negative = negative
        return other

    @torch.no_grad()
    def encode(self, prompts: Sequence[str] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Texts, or what the processor returned for them."""
        inputs = prompt_tokens(prompts, self._tokenize if self.processor is not None else None, "Chameleon")
        ids, mask = tokens_on(inputs, self.model.device)
        if guided:
            ids, mask = stack_prompts((ids, mask), self._away(prompts, inputs, len(ids)))
        return Prompt.of(self.model.model.embed_tokens(ids), mask)

    def _away(self, prompts: Any, inputs: Mapping[str, Any], rows: int) -> Tokens:
        """The unconditional prompts: of `negative` for texts, else those among the inputs."""
        if self.negative is None or isinstance(prompts, Mapping):
            return negative_tokens(inputs, rows, self.model.device, "Chameleon")
        return tokens_on(self._tokenize(one_each(self.negative, rows)), self.model.device)

    def _tokenize(self, texts: list[str]) -> Mapping[str, Any]:
        texts = [f"{text}{self.processor.image_start_token}" for text in texts]
        return self.processor(text=texts, return_for_text_completion=True, padding=True, return_tensors="pt")

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.model.model.embed_tokens(self.vocabulary.tokens(values))

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        return states(self.model.model, embeds, layout, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.vocabulary.logits(hidden, self.model.lm_head.weight)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return decoded(self.to_pictures, codes, "Chameleon")
