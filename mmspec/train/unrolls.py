"""How drafters with a shape of their own are unrolled over recorded windows: multi-token prediction."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.drafters.mtp import ChainedMTP
from mmspec.drafters.mtp_parallel import ParallelMTP
from mmspec.train.lessons import Level, Window, unroll


@unroll.register
def _(net: ChainedMTP, window: Window, embed: Any, head: Any, depth: int) -> Iterator[Level]:
    """Column t holds value t + 1; level k + 1 is module k's, on what module k - 1 made of the column before, all over settled text.

    Past the last module its own output goes in again. Such a column sees those of each level on its chain, and settled ones before.
    """
    value, last = embed(window.ids[:, 1:]), len(net.layers) - 1
    positions, t = _places(value)
    slots, state = positions.expand(len(value), -1), window.features[:, :-1]
    cache = DynamicCache()
    for level in range(depth):
        k, again = min(level, last), max(level - last, 0)
        settled = net.sees(k, t[None] <= t[None, :, None] - again, slots[:1], slots[:1])[0]
        own = [t == t[:, None] - (again - earlier) for earlier in range(1, again + 1)]
        mask = torch.cat([settled, *own], 1)
        mask[:, 0] |= ~mask.any(1)  # a place with nothing to see would be NaN; it is not counted
        state = net(k, state, value, slots, mask[None, None], cache)
        yield Level(head(state), 1, level)
        state = torch.cat([state[:, :1], state[:, :-1]], 1)


@unroll.register
def _(net: ParallelMTP, window: Window, embed: Any, head: Any, depth: int) -> Iterator[Level]:
    """Head d foretells the value d + 2 places after every state."""
    positions, t = _places(window.features)
    slots, cache = positions.expand(len(window.ids), -1), DynamicCache()
    for level in range(min(depth, net.most)):
        mask = net.blocks.visible(level, t[None] <= t[None, :, None], slots[:1], slots[:1])
        yield Level(head(net(level, window.features, slots, mask[None], cache)), 1 + level)


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the columns of `x` [B, M, H], [1, M] and [M]."""
    t = torch.arange(x.shape[1], device=x.device)
    return t[None], t
