"""Janus and Janus-Pro (Wu et al. 2024; Chen et al. 2025): a language model with an embedding and a head of its own for picture codes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Size, as_pictures
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.families.tokens import prompt_tokens, stack_prompts, states, tokens_on


class Janus(ImageModel):
    """A `JanusForConditionalGeneration`, and its processor for prompts that are texts.

    Tokens must end with the one that begins a picture, as the processor's do under `generation_mode="image"`. The unconditional prompt's
    tokens are those of `generation_config`, by default the model's.
    """

    def __init__(self, model: Any, processor: Any = None, generation_config: Any = None):
        self.model, self.processor, self.decoder = model, processor, model.model.language_model
        self.generation_config = generation_config
        refuse_unsupported(self.decoder)
        config = model.config
        self.layers = config.text_config.num_hidden_layers
        self.raster = Raster.grid(config.vq_config.num_patches, config.vq_config.num_patches, config.vq_config.num_embeddings)
        self.codebook = F.normalize(model.model.vqmodel.quantize.embedding.weight.detach(), dim=-1)

    def resized(self, size: Size) -> "Janus":
        """The picture tokenizer knows one grid: only that size will do."""
        side = self.raster.height * 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)
        if size not in (side, (side, side)):
            raise ValueError(f"size is {size}: this Janus makes pictures of {side} x {side} pixels only, leave size out")
        return self

    @torch.no_grad()
    def encode(self, prompts: Sequence[str] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Texts, or what the processor returned for them."""
        inputs = prompt_tokens(prompts, self._tokenize if self.processor is not None else None, "Janus")
        ids, mask = tokens_on(inputs, self.model.device)
        if guided:
            ids, mask = stack_prompts((ids, mask), (self._silenced(ids), mask))
        return Prompt.of(self.decoder.get_input_embeddings()(ids), mask)

    def _tokenize(self, texts: list[str]) -> Mapping[str, Any]:
        if self.processor.chat_template is not None:
            said = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
            texts = self.processor.apply_chat_template(said, add_generation_prompt=True)
        return self.processor(text=texts, generation_mode="image", padding=True, return_tensors="pt")

    def _silenced(self, ids: Tensor) -> Tensor:
        """The unconditional prompts: padding, which is attended to, for all but the tokens that begin the text and the picture."""
        config = self.model.generation_config if self.generation_config is None else self.generation_config
        image = (getattr(config, "generation_kwargs", None) or {}).get("boi_token_id")
        if image is None:  # transformers 5.23 does not read it from a file
            image = getattr(getattr(self.processor, "tokenizer", None), "boi_token_id", None)
        known = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id, "generation_kwargs['boi_token_id']": image}
        missing = [name for name, value in known.items() if value is None]
        if missing:
            raise ValueError(f"guidance needs the model's generation_config to have {' and '.join(missing)}: set it as the checkpoint does")
        return torch.where((ids == config.bos_token_id) | (ids == image), ids, config.pad_token_id)

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.model.prepare_embeddings_for_image_generation(values)

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        return states(self.decoder, embeds, layout, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.model.model.generation_head(hidden)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return as_pictures(rearrange(self.model.decode_image_tokens(codes.flatten(1)), "b h w c -> b c h w"))
