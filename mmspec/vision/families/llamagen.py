"""LlamaGen as the engine sees it: a square of codes, no controls, a class or a caption in front."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import additive_mask
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, class_of, decoded, texts_of
from mmspec.vision.families.llamagen_network import LlamaGen
from mmspec.vision.families.prompts import Prompt

Captions = Callable[[Sequence[str]], tuple[Tensor, Tensor]]
"""Texts -> features [B, P, W] padded on either side, and their mask [B, P]."""
WORDS = "words.json"
"""The file of a text encoder's folder with the words of the captions it was trained on."""
_FEW, _LONG = 40, 80  # words and characters that a warning shows


def caption_words(text: str) -> list[str]:
    """Return the words of a caption, in lower case."""
    return re.findall(r"\w+", text.lower())


@dataclass(frozen=True)
class T5Captions:
    """Features of captions by a transformers T5 encoder.

    Args:
        encoder: the encoder.
        tokenizer: its tokenizer.
        length: the most tokens of a caption that are read; LlamaGen's are 120 long.
        words: all words that the encoder was trained on, in lower case, if they are known; others cause a warning.
    """

    encoder: Any
    tokenizer: Any
    length: int = 120
    words: frozenset[str] | None = None

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the features [B, `length`, W] of `texts`, and their mask [B, `length`] bool. Warns of what `unread` lists."""
        for line in self.unread(texts):
            warnings.warn(line, stacklevel=2)
        options = {"padding": "max_length", "truncation": True, "max_length": self.length, "return_tensors": "pt"}
        found = self.tokenizer(list(texts), **options).to(self.encoder.device)
        ids, mask = found["input_ids"], found["attention_mask"]
        return self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state, mask.bool()

    def unread(self, texts: Sequence[str]) -> list[str]:
        """Return a line for each text with words that the encoder was not trained on, or more tokens than are read. Nothing is known, and
        the list is empty, without `words`.
        """
        if self.words is None:
            return []
        lines = []
        for text in dict.fromkeys(texts):
            new = [word for word in dict.fromkeys(caption_words(text)) if word not in self.words]
            shown = text if len(text) <= _LONG else f"{text[:_LONG]}..."
            read = self.tokenizer.backend_tokenizer.encode(text)  # as it is set up: other settings would change it for other threads
            tokens = sum(sum(part.attention_mask) for part in (read, *read.overflowing))
            if new:
                known = f"; it knows {', '.join(sorted(self.words))}" if len(self.words) <= _FEW else ""
                lines.append(f"caption {shown!r} has words that the model was not trained on: {', '.join(new)}{known}")
            elif tokens > self.length:
                lines.append(f"caption {shown!r} has {tokens} tokens, and the model reads {self.length}: the rest is left out")
        return lines


class LlamaGenPictures(ImageModel):
    """A `LlamaGen` with its prompts' encoder and its picture decoder.

    Args:
        model: the network.
        to_pictures: maps codes [B, height, width] to PIL pictures, such as a VQ tokenizer's decoder; without it only codes are available.
        codebook: [K, d] vectors of the codes.
        captions: maps texts to features, for caption models.
        labels: one name a class, for class models.
        drafter: the trained net that methods draft with when none is given.
        assistant: the smaller image model that methods draft with when none is given.
        usual_codes: the codes that pictures have most often at each position, row by row; see `ImageModel`.
    """

    def __init__(
        self,
        model: LlamaGen,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        codebook: Tensor | None = None,
        captions: Captions | None = None,
        labels: Sequence[str] = (),
        drafter: Any = None,
        assistant: Any = None,
        usual_codes: tuple[int, ...] | None = None,
    ):
        config = model.config
        self.model, self.to_pictures, self.codebook, self.captions, self.labels = model, to_pictures, codebook, captions, tuple(labels)
        self.drafter, self.assistant, self.usual_codes = drafter, assistant, usual_codes
        self.layers = config.num_hidden_layers
        self.raster = Raster.grid(config.grid, config.grid, config.vocab_size)

    @torch.no_grad()
    def encode(self, prompts: Sequence[Any] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Class names or numbers; captions, or {"features": [B, P, W], "mask": [B, P]} of a text encoder."""
        return self._classes(prompts, guided) if self.model.config.condition == "class" else self._captions(prompts, guided)

    def _classes(self, prompts: Sequence[Any] | Mapping[str, Tensor], guided: bool) -> Prompt:
        ids = [class_of(prompt, [str(label) for label in self.labels], self.model.config.classes) for prompt in prompts]
        none = [self.model.config.classes] * len(ids) if guided else []
        return Prompt.of(self.model.cls_embedding(torch.tensor(ids + none, device=self.model.device)))

    def _captions(self, prompts: Sequence[Any] | Mapping[str, Tensor], guided: bool) -> Prompt:
        if isinstance(prompts, Mapping):
            missing = [name for name in ("features", "mask") if not isinstance(prompts.get(name), Tensor)]
            if missing:
                raise ValueError(f"prompts has no tensor {missing[0]!r}: give a list of captions, or features [B, P, W] and mask [B, P]")
            features, mask = prompts["features"], prompts["mask"].bool()
        elif self.captions is None:
            raise ValueError("this LlamaGen has no text encoder: give captions=T5Captions(encoder, tokenizer), or features and mask")
        else:
            features, mask = self.captions(texts_of(prompts))
        if guided:  # as published: the features of no caption, as many of them as the caption has
            none = self.model.cls_embedding.uncond_embedding[-features.shape[1] :].expand_as(features)
            features, mask = torch.cat([features, none]), torch.cat([mask, mask])
        return Prompt.of(self.model.cls_embedding(features.to(self.model.dtype)), mask)

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.model.tok_embeddings(values)

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        cells = (layout.positions - prompt.lengths[:, None]).clamp(min=-1, max=self.raster.length - 1)
        return self.model(embeds, cells, additive_mask(layout, embeds.dtype), cache)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.model.output(hidden)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return decoded(self.to_pictures, codes, type(self.model).__name__)
