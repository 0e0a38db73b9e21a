"""How drafters with a shape of their own are unrolled over recorded windows: multi-token prediction, adapters."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.drafters.features.glide import Across, Glide
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.heads.mtp import ChainedMTP
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.train.distillation import LevelDrafts, LevelsOfOneHead, RecordedWindow, unroll


@unroll.register
def _(net: ChainedMTP, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Column t holds value t + 1; level k + 1 is module k's, on what module k - 1 made of the column before, all over committed text.

    Past the last module its own output goes in again. Such a column sees those of each level on its chain, and committed ones before.
    """
    value, last = embed(window.ids[:, 1:]), len(net.layers) - 1
    positions, t = _places(value)
    slots, state = positions.expand(len(value), -1), window.features[:, :-1]
    cache = DynamicCache()
    for level in range(depth):
        k, again = min(level, last), max(level - last, 0)
        chain = _on_a_chain(t, again)
        committed = net.sees(k, chain[None, :, : len(t)], slots[:1], slots[:1])[0]
        mask = torch.cat([committed, chain[:, len(t) :]], 1)
        state = net(k, state, value, slots, mask[None, None], cache)
        yield LevelDrafts(state, head, 1, level)
        state = torch.cat([state[:, :1], state[:, :-1]], 1)


@unroll.register
def _(net: ParallelMTP, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Head d foretells the value d + 2 places after every state."""
    positions, t = _places(window.features)
    slots, cache, state = positions.expand(len(window.ids), -1), DynamicCache(), window.features
    for level in range(min(depth, net.most)):
        mask = net.blocks.visible(level, t[None] <= t[None, :, None], slots[:1], slots[:1])
        out, state = net(level, state, slots, mask[None], cache)
        yield LevelDrafts(out, head, 1 + level)


@unroll.register
def _(net: Adapter, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """One level stands for all: draft tokens run through the target's first layers too, so every distribution is made as the first one
    is."""
    positions, t = _places(window.features)
    mask = (t <= t[:, None])[None, None]
    yield LevelDrafts(net(window.features, positions.expand(len(window.ids), -1), mask), partial(net.own_logits, head=head), 0)


@unroll.register
def _(net: Glide, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Column t holds value t. At level d + 1 it is a draft token of depth d: it sees the target's keys up to d + 1 values back.

    The paper hides a random number of the newest keys instead of running every depth for all places.
    """
    value = embed(window.ids)
    positions, t = _places(value)
    slots = positions.expand(len(value), -1)
    keys, values = net.layer.keys(window.features, slots)
    for level in range(depth):
        across = Across(keys, values, (t < t[:, None] - level)[None], net.layer)
        out = net(value, slots, (t <= t[:, None])[None, None], None, across)
        yield LevelDrafts(out, head, 0, level)  # no pending token that far before the window's beginning: the first places are not counted


@unroll.register
def _(net: CTC, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Distributions of the value after every prefix of the text that follows a place. Their sum is the log-chance of a draft that begins
    so. Logits of all frames are held for every place, and for every level those sums over frames are made of."""
    depth = min(depth, net.most)
    rows, places = len(window.ids), window.ids.shape[1] - 1 - depth
    if places < 1:
        raise ValueError(f"windows of {window.ids.shape[1]} values are too short for {depth} levels: give at least {depth + 2}")
    features = net.features(window.features[:, :places].flatten(0, 1), embed(window.ids[:, 1 : 1 + places]).flatten(0, 1))
    hidden, t = features.view(rows, places, -1), torch.arange(places + depth - 1, device=window.ids.device)
    given = window.ids[:, 2 + t.unfold(0, depth, 1)[:, : depth - 1]]  # the values that levels 2, 3, ... stand behind
    made, sets = partial(net.prefix_logits, head=head), net.frames * (1 + depth)
    for level in range(depth):
        yield LevelsOfOneHead(hidden, head=made, after=1 + level, given=given, number=level, sets=sets)


def _on_a_chain(t: Tensor, steps: int) -> Tensor:
    """What columns `t` [M] see that stand `steps` steps past the committed ones: [M, (1 + steps) M], the committed first, then step by
    step."""
    return torch.cat([t <= t[:, None] - steps, *(t == t[:, None] - (steps - earlier) for earlier in range(1, steps + 1))], 1)


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the columns of `x` [B, M, H], [1, M] and [M]."""
    t = torch.arange(x.shape[1], device=x.device)
    return t[None], t
