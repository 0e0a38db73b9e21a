"""What a head over items learns from: histories, and the target's hidden states and distributions where it tells each of their items."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.stack import stack, tapped


@dataclass(frozen=True, slots=True)
class ItemExample:
    """N items, and what the target knew and said of every token of theirs just before it."""

    hidden: Tensor  # [N, L, H] last hidden states
    tokens: Tensor  # [N, L]
    log_p: Tensor  # [N, L, V]


@torch.no_grad()
def item_example(target: Any, batch: Mapping[str, Tensor], before: int, levels: int) -> ItemExample:
    """One forward of a decoder-only `target` over histories (`input_ids` and `attention_mask` [B, T], padded on the right).

    A history is `before` tokens and then items of `levels` tokens each, as `mmspec.recsys.histories.batches` writes it. Every whole item
    with a token before it is a lesson.
    """
    ids, shown = batch["input_ids"], batch["attention_mask"].bool()
    if target.config.is_encoder_decoder:
        raise ValueError("histories are read by a decoder here, and this target has an encoder: record its decoder's states instead")
    layers = len(stack(target))
    refresh(target)
    own = own_copy(target)
    with tapped(own, [layers]) as found:
        logits = own(input_ids=ids, attention_mask=shown.long()).logits
    start = torch.arange(before or levels, ids.shape[1] - levels + 1, levels, device=ids.device)
    place = start[:, None] + torch.arange(levels, device=ids.device)  # [I, L]
    whole = shown[:, place].all(-1)  # [B, I]
    log_p = logits[:, place - 1][whole].float().log_softmax(-1)
    return ItemExample(found[layers][:, place - 1][whole], ids[:, place][whole], log_p)
