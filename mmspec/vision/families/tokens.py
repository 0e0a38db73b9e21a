"""What the classes over transformers' decoders share: picture codes as tokens of a vocabulary, prompts made of tokens, the forward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import causal_mask, text_prompt
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import texts_of
from mmspec.vision.families.prompts import ImagePrompt

Tokens = tuple[Tensor, Tensor]
"""Ids [R, P], padded on either side, and their mask [R, P] bool."""


class Vocabulary:
    """The tokens that codes and controls are. `ids` [values] are their rows in the embedding and the head, codes first."""

    def __init__(self, ids: Tensor):
        self.ids, first, last = ids, int(ids.min()), int(ids.max())
        self.rows = slice(first, last + 1)
        self.near = last - first < 2 * len(ids)  # close enough together to multiply one stretch of the head, without copying its rows
        self.straight = bool((ids == torch.arange(first, first + len(ids), device=ids.device)).all())

    def tokens(self, values: Tensor) -> Tensor:
        """Vocabulary ids of codes and controls, of any shape."""
        self.ids = self.ids.to(values.device)
        return self.ids[values]

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """Logits [R, N, values] of `hidden` [R, N, D] by these rows of `head` [vocabulary, D] alone."""
        self.ids = self.ids.to(hidden.device)
        if not self.near:
            return F.linear(hidden, head[self.ids])
        stretch = F.linear(hidden, head[self.rows])
        return stretch if self.straight else stretch[..., self.ids - self.rows.start]


def prompt_tokens(
    prompts: Any, tokenize: Callable[[list[Any]], Mapping[str, Any]] | None, name: str, images: bool = False
) -> Mapping[str, Any]:
    """`prompts` as tensors: what the processor returned, or what `tokenize` makes of texts (with `images`, of `ImagePrompt`s, too).

    ValueError where there is nothing to tokenize with, and for pictures in prompts without `images`.
    """
    if not isinstance(prompts, Mapping):
        texts = texts_of(prompts, images)
        if tokenize is None:
            raise ValueError(f"{name} was given texts but no processor: make the adapter with one, or pass what the processor returned")
        prompts = tokenize(texts)
    if prompts.get("pixel_values") is not None and not images:
        raise ValueError("the prompts hold pixel_values: pictures in prompts are not supported, give texts only")
    return prompts


def content_of(prompt: str | ImagePrompt) -> list[dict[str, Any]]:
    """A prompt as the content of a chat message: its images, then its text."""
    text, images = (prompt.text, prompt.images) if isinstance(prompt, ImagePrompt) else (prompt, ())
    return [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}]


def tokens_on(inputs: Mapping[str, Any], device: torch.device, ids: str = "input_ids", mask: str = "attention_mask") -> Tokens:
    """The tokens that `inputs` holds under these names."""
    found, real = text_prompt({name: inputs[own] for name, own in (("input_ids", ids), ("attention_mask", mask)) if own in inputs})
    return found.to(device), real.to(device)


def negative_tokens(inputs: Mapping[str, Any], rows: int, device: torch.device, name: str) -> Tokens:
    """The unconditional prompts in `inputs`, one a row or one for all, under the names `generate` of transformers has for them."""
    if inputs.get("negative_prompt_ids") is None:
        raise ValueError(
            f"guidance needs prompts to guide {name} away from: add negative_prompt_ids (and negative_prompt_attention_mask) "
            "to the prompts, or leave guidance out"
        )
    ids, mask = tokens_on(inputs, device, "negative_prompt_ids", "negative_prompt_attention_mask")
    if len(ids) not in (1, rows):
        raise ValueError(f"{len(ids)} negative prompts for {rows} prompts: give one for each, or one for all")
    return ids.expand(rows, -1), mask.expand(rows, -1)


def one_each(negative: str | Sequence[str], rows: int) -> list[str]:
    """Negative texts, one a row. ValueError for another number of them."""
    texts = [negative] * rows if isinstance(negative, str) else list(negative)
    if len(texts) != rows:
        raise ValueError(f"{len(texts)} negative prompts for {rows} prompts: give one for each, or one for all")
    return texts


def stack_prompts(first: Tokens, second: Tokens) -> Tokens:
    """Both, one under the other; the shorter ones padded, where `mask` says so."""
    width = max(first[0].shape[1], second[0].shape[1])
    ids, mask = (torch.cat([F.pad(part, (0, width - part.shape[1])) for part in pair]) for pair in zip(first, second, strict=True))
    return ids, mask


def states(decoder: Any, embeds: Tensor, layout: Layout, cache: SlotCache, positions: Tensor | None = None) -> Tensor:
    """The last hidden states [R, M, D] of a transformers decoder; `positions` where they are more than logical ones."""
    return decoder(
        inputs_embeds=embeds,
        attention_mask=causal_mask(layout, decoder),
        position_ids=layout.positions if positions is None else positions,
        **cache_keyword(decoder, cache),
        use_cache=True,
    ).last_hidden_state
