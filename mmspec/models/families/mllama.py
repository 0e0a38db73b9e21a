"""Mllama (Llama 3.2 Vision): images enter through cross-attention layers between the others, and take no positions.

The layers that attend to images keep their keys and values for the whole request; only the others have slots, so rolling back a draft does
not affect the images.

transformers pads a batch to the most images of any row, and a position that sees no image (all before a row's first image) then attends to
all of them, padding included, so its rows depend on each other. Here a row gives what it gives alone: such a position attends to the row's
own images, and rows without images attend to zeros, which is the same as skipping these layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import DecoderOnly, attention_mask, side_by_side, text_prompt
from mmspec.models.families.multimodal import never_generated_ids_of, placeholders_of, refuse_unread_inputs
from mmspec.models.intercept import handing, intercept_decoder_inputs
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache

_NEEDS = ("aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask")


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """The images of a request, and which of them each position of its prompt sees."""

    states: Tensor | None  # [B * images * tiles, patches, D], zeros for padding; None without images
    mask: Tensor | None  # [B, P, images, tiles] packed to the left
    lengths: Tensor  # [B]
    real: Tensor | None = None  # [B, images] bool: not padding; None where all rows have the same number
    blind: bool = False  # the last position of a row with padding sees no image

    def at(self, positions: Tensor) -> Tensor | None:
        """[B, M, images, tiles] for columns at `positions` [B, M]; after the prompt as at its end."""
        if self.mask is None:
            return None
        place = torch.minimum(positions, self.lengths[:, None] - 1)
        return self.mask[torch.arange(len(place), device=place.device)[:, None], place]

    def masks(self, layout: Layout, dtype: torch.dtype) -> dict[str, Tensor]:
        """The language model's own masks, for columns that see no image in rows with padding; empty where none are needed."""
        if self.real is None or not (layout.opening or self.blind):
            return {}
        looks = self.at(layout.positions).bool()  # type: ignore[union-attr]
        nothing = ~looks.flatten(2).any(-1)  # [B, M]
        own = self.real | ~self.real.any(1, keepdim=True)  # rows without images see all padding, which is zeros
        sees = torch.where(nothing[..., None, None], own[:, None, :, None], looks).repeat_interleave(self.states.shape[1], 3)  # type: ignore
        mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)
        return {"cross_attention_mask": mask.flatten(2)[:, None], "full_text_row_masked_out_mask": (~nothing)[:, None, :, None].to(dtype)}


@dataclass(frozen=True)
class Mllama(DecoderOnly):
    """Mllama models. `crossing` are the layers that attend to images."""

    crossing: tuple[int, ...] = ()
    placeholders: tuple[int, ...] = ()
    never_generated_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: Any) -> "Mllama":
        """The family of `model`. ValueError for models it cannot drive."""
        base, config = DecoderOnly.of(model), model.config.get_text_config(decoder=True)
        crossing = tuple(config.cross_attention_layers)
        return cls(base.layers, base.window, base.mixed, crossing, placeholders_of(model), never_generated_ids_of(model))

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, EncodedImages]:
        """A cache and the encoded images: `inputs["merged"]` if they were encoded before, else by running the vision tower."""
        return SlotCache(self.layers, capacity, self.crossing), inputs.get("merged") or self._encode_images(model, inputs)

    def pieces(self, model: Any, state: EncodedImages) -> tuple[int, int] | None:
        return None  # its first forward fills the layers that read images

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: EncodedImages, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        looks = state.at(layout.positions)
        if looks is not None and cache.crossed:  # the model skips as many columns as the cache reports
            looks = nn.functional.pad(looks, (0, 0, 0, 0, cache.get_seq_length(), 0))
        with handing(model, state.masks(layout, model.dtype)) as model:
            out = model(
                input_ids=layout.ids,
                attention_mask=attention_mask(layout.visible, model),
                position_ids=layout.positions,
                cross_attention_states=None if cache.crossed else state.states,
                cross_attention_mask=looks,
                **cache_keyword(model, cache),
                use_cache=True,
                logits_to_keep=keep,
                output_hidden_states=bool(states),
            )
        return out.logits, side_by_side(out.hidden_states, states)

    def _encode_images(self, model: Any, inputs: Mapping[str, Any]) -> EncodedImages:
        ids, mask = text_prompt(inputs)
        marks = (torch.isin(ids, torch.tensor(self.placeholders, device=ids.device)) & mask).sum(1)
        marked = bool(marks.any())
        name = type(model).__name__
        refuse_unread_inputs(model, inputs, ("input_ids", "attention_mask", "pixel_values", *_NEEDS))
        if marked != ("pixel_values" in inputs):
            why = "placeholders for pictures but no pixel_values" if marked else "pixel_values but no placeholder for them"
            raise ValueError(f"inputs has {why} (the placeholder is {self.placeholders[0]}): pass what {name}'s processor returned")
        if not marked:
            return EncodedImages(None, None, mask.sum(1))
        for need in _NEEDS:
            if need not in inputs:
                raise ValueError(f"inputs has pixel_values but no {need}: pass what {name}'s processor returned")
        _check_counts(marks, inputs["aspect_ratio_ids"])
        given = intercept_decoder_inputs(
            model, {key: value for key, value in inputs.items() if key in (*_NEEDS, "input_ids", "pixel_values")}, "pictures"
        )
        order = torch.argsort((~mask).long(), dim=1, stable=True)
        crossing = inputs["cross_attention_mask"]
        if crossing.shape[:2] != ids.shape:
            raise ValueError(
                f"cross_attention_mask has shape {tuple(crossing.shape)}: expected [{ids.shape[0]}, {ids.shape[1]}, pictures, tiles]"
            )
        packed = crossing[torch.arange(len(ids), device=ids.device)[:, None], order]
        return _encoded_images(given["cross_attention_states"], packed, mask.sum(1), inputs["aspect_ratio_ids"] > 0)


def _encoded_images(states: Tensor, mask: Tensor, lengths: Tensor, real: Tensor) -> EncodedImages:
    """`states` and `mask` as the model made them; `real` [B, images] bool marks images that are not padding."""
    if real.all():
        return EncodedImages(states, mask, lengths)
    per_picture = states.unflatten(0, (*real.shape, -1))
    states = torch.where(real[..., None, None, None], per_picture, 0).flatten(0, 2)
    mask = torch.where(real[:, None, :, None], mask, 0)
    last = mask[torch.arange(len(mask), device=mask.device), lengths - 1].flatten(1)
    return EncodedImages(states, mask, lengths, real, bool((~last.bool().any(1) & real.any(1) & ~real.all(1)).any()))


def _check_counts(marks: Tensor, ratios: Tensor) -> None:
    """Check that every row has as many placeholders `marks` [B] as images, which have an aspect ratio [B, images]."""
    pictures = (ratios > 0).sum(1)
    for row, (marked, seen) in enumerate(zip(marks.tolist(), pictures.tolist(), strict=True)):
        if marked != seen:
            raise ValueError(
                f"prompt and pictures do not fit together (row {row} has {marked} placeholders for {seen} pictures): "
                "pass what the processor returned"
            )
