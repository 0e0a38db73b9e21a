"""Training of look-ahead embeddings (PaSS, Monea et al. 2023) through the frozen target."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.self_drafting.mask_tokens import MaskTokens, put_in
from mmspec.models.families.base import DecoderOnly
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.skipped_parts import rewired
from mmspec.train.distillation import LevelDrafts, RecordedWindow, unroll


@unroll.register
def _(net: MaskTokens, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Behind every place of the text stand all embeddings, which see the text up to there and those before them: one forward.

    Embedding k foretells the distribution k places on. ValueError before `net.attach(target)`, and for windows too short.
    """
    if net.target is None:
        raise ValueError("mask tokens are trained through their target: call attach(target) first")
    count = len(net.embedding)
    places = window.ids.shape[1] - 1 - count
    if places < 1:
        raise ValueError(f"windows of {window.ids.shape[1]} values are too short for {count} mask tokens: give at least {count + 2}")
    refresh(net.target)
    model = own_copy(net.target)
    change = put_in(net.embedding.repeat(places, 1))
    with _frozen(model), rewired({model.get_decoder().get_input_embeddings(): change}):
        logits, _ = DecoderOnly.of(model).forward(model, _columns(window.ids[:, :places], count), None, None, places * count)  # type: ignore[arg-type]
    logits = logits.unflatten(1, (places, count))
    for level in range(min(depth, count)):
        yield LevelDrafts.of_logits(logits[:, :, level], level + 1)


def _columns(ids: Tensor, count: int) -> Layout:
    """The text `ids` [B, P], then `count` columns for each of its places."""
    t = torch.arange(ids.shape[1], device=ids.device)
    place = torch.cat([t, t.repeat_interleave(count)])
    step = torch.cat([torch.zeros_like(t), torch.arange(1, count + 1, device=ids.device).repeat(len(t))])
    text, same = (step == 0) & (place <= place[:, None]), (place == place[:, None]) & (step <= step[:, None])
    positions = (place + step).expand(len(ids), -1)
    blank = ids.new_zeros(len(ids), len(t) * count)
    mask = (text | same).expand(len(ids), -1, -1)
    return Layout(torch.cat([ids, blank], 1), positions, positions, positions.shape[1], mask, positions)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Inside, no gradients are kept for the model's own parameters."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
