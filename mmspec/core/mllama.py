"""Mllama (Llama 3.2 Vision): pictures enter through cross-attention layers between the others, and no position stands for them.

The layers that attend to pictures keep what they made of them for the whole request; only the others have slots, so rolling a draft
back leaves the pictures alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.family import DecoderOnly, attention_mask, side_by_side, text_prompt
from mmspec.core.layout import Layout
from mmspec.core.multimodal import at_the_door, placeholders_of, unsaid_of

_NEEDS = ("aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask")


@dataclass(frozen=True, slots=True)
class Looked:
    """Pictures a request has brought, and which of them each position of its prompt looks at."""

    states: Tensor | None  # [B * pictures * tiles, patches, D]; None where there are no pictures
    mask: Tensor | None  # [B, P, pictures, tiles] packed to the left
    lengths: Tensor  # [B]

    def at(self, positions: Tensor) -> Tensor | None:
        """[B, M, pictures, tiles] for columns at `positions` [B, M]; behind the prompt as at its end."""
        if self.mask is None:
            return None
        place = torch.minimum(positions, self.lengths[:, None] - 1)
        return self.mask[torch.arange(len(place), device=place.device)[:, None], place]


@dataclass(frozen=True)
class Mllama(DecoderOnly):
    """`crossing` are the layers that attend to pictures."""

    crossing: tuple[int, ...] = ()
    placeholders: tuple[int, ...] = ()
    unsaid: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: Any) -> "Mllama":
        base, config = DecoderOnly.of(model), model.config.get_text_config(decoder=True)
        crossing = tuple(config.cross_attention_layers)
        return cls(base.layers, base.window, base.mixed, crossing, placeholders_of(model), unsaid_of(model))

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Looked]:
        """A cache and the pictures: `inputs["merged"]`, where somebody has looked before, else by running the tower."""
        return SlotCache(self.layers, capacity, self.crossing), inputs.get("merged") or self._look(model, inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Looked, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        looks = state.at(layout.positions)
        if looks is not None and cache.crossed:  # the model leaves out as many columns as the cache says it has
            looks = nn.functional.pad(looks, (0, 0, 0, 0, cache.get_seq_length(), 0))
        out = model(
            input_ids=layout.ids,
            attention_mask=attention_mask(layout.visible, model),
            position_ids=layout.positions,
            cross_attention_states=None if cache.crossed else state.states,
            cross_attention_mask=looks,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=bool(states),
        )
        return out.logits, side_by_side(out.hidden_states, states)

    def _look(self, model: Any, inputs: Mapping[str, Any]) -> Looked:
        ids, mask = text_prompt(inputs)
        marks = (torch.isin(ids, torch.tensor(self.placeholders, device=ids.device)) & mask).sum(1)
        marked = bool(marks.any())
        name = type(model).__name__
        if marked != ("pixel_values" in inputs):
            why = "placeholders for pictures but no pixel_values" if marked else "pixel_values but no placeholder for them"
            raise ValueError(f"inputs has {why} (the placeholder is {self.placeholders[0]}): pass what {name}'s processor returned")
        if not marked:
            return Looked(None, None, mask.sum(1))
        for need in _NEEDS:
            if need not in inputs:
                raise ValueError(f"inputs has pixel_values but no {need}: pass what {name}'s processor returned")
        _check_counts(marks, inputs["aspect_ratio_ids"])
        given = at_the_door(
            model, {key: value for key, value in inputs.items() if key in (*_NEEDS, "input_ids", "pixel_values")}, "pictures"
        )
        order = torch.argsort((~mask).long(), dim=1, stable=True)
        crossing = inputs["cross_attention_mask"]
        if crossing.shape[:2] != ids.shape:
            raise ValueError(
                f"cross_attention_mask has shape {tuple(crossing.shape)}: expected [{ids.shape[0]}, {ids.shape[1]}, pictures, tiles]"
            )
        packed = crossing[torch.arange(len(ids), device=ids.device)[:, None], order]
        return Looked(given["cross_attention_states"], packed, mask.sum(1))


def _check_counts(marks: Tensor, ratios: Tensor) -> None:
    """Every row has as many placeholders `marks` [B] as pictures, which are those with an aspect ratio [B, pictures]."""
    pictures = (ratios > 0).sum(1)
    for row, (marked, seen) in enumerate(zip(marks.tolist(), pictures.tolist(), strict=True)):
        if marked != seen:
            raise ValueError(
                f"prompt and pictures do not fit together (row {row} has {marked} placeholders for {seen} pictures): "
                "pass what the processor returned"
            )
