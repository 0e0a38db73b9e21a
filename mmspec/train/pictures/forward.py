"""One forward of an image model over whole pictures, for every family: hidden states before every code."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.models.layout import Layout
from mmspec.models.module_copy import on_copy, refresh
from mmspec.models.stack import numbered, stack, tapped
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt


def picture_states(model: ImageModel, prompt: Prompt, sequences: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Run an image model over whole pictures.

    Args:
        model: the adapter.
        prompt: R embedded prompts, padded on the left.
        sequences: LongTensor [R, T] of codes and controls.
        dtype: of the embeddings, which the layers read; by default the prompts'.

    Returns:
        The last hidden states [R, T, D]; position t predicts value t.
    """
    layout, size = _layout(prompt, sequences), prompt.embeds.shape[1]
    embeds = torch.cat([prompt.embeds, model.embed(sequences[:, :-1])], 1).to(dtype or prompt.embeds.dtype)
    return model.hidden(embeds, layout, DynamicCache(), prompt)[:, size - 1 :]  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def recorded_states(model: ImageModel, prompt: Prompt, sequences: Tensor, states: Sequence[int]) -> list[Tensor]:
    """Run an image model over whole pictures and return hidden states of several layers.

    Args:
        model: the adapter.
        prompt: R embedded prompts, padded on the left.
        sequences: LongTensor [R, T] of codes and controls.
        states: numbers of hidden states, as in `mmspec.models.stack`.

    Returns:
        For each number the hidden states [R, T, H] before every value.
    """
    refresh(model.model)
    own, wanted, size = on_copy(model, model.model), numbered(states, len(stack(model.model))), prompt.embeds.shape[1]
    with tapped(own.model, wanted) as found:
        picture_states(own, prompt, sequences)
    return [found[state][:, size - 1 :] for state in wanted]


def _layout(prompt: Prompt, sequences: Tensor) -> Layout:
    """The columns of prompts and of all values but the last, in one forward without a cache of earlier ones."""
    real = torch.cat([prompt.mask, prompt.mask.new_ones(len(sequences), sequences.shape[1] - 1)], 1)
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    column = torch.arange(real.shape[1], device=real.device)
    visible = (real[:, None] & (column <= column[:, None])) | torch.eye(len(column), dtype=torch.bool, device=real.device)
    return Layout(positions, positions, column.expand_as(positions), len(column), visible, positions)
