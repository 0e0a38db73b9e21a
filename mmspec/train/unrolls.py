"""How drafters with a shape of their own are unrolled over recorded windows, as `distillation.unroll` says."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.drafters.block.dflash import DFlash
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.features.glide import Across, Glide
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.heads.mtp import ChainedMTP
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens, put_in
from mmspec.models.families.base import DecoderOnly
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.skipped_parts import rewired
from mmspec.train.distillation import RecordedWindow, unroll
from mmspec.train.levels import LevelDrafts, LevelsOfOneHead


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


@unroll.register
def _(net: DFlash, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Blocks behind random positions of each row whose next value is the target's own; behind all of them where there are few."""
    ids, wide = window.ids, window.ids.shape[1]
    anchors = _drawn(window, window.own.roll(-1, 1)[:, : wide - 1])[:, : net.anchors].sort(1).values
    real = window.own.gather(1, anchors + 1)
    states = net.blocks(window.features, net.block_values(embed, ids.gather(1, anchors)), anchors)
    memory = None
    for level in range(min(depth, net.most)):
        places = anchors + level
        feature, memory = net.feature(states[:, :, level], ids.gather(1, places.clamp(max=wide - 1)), memory)
        columns = _standing(places, real & (places < wide), wide)
        yield LevelDrafts(feature, partial(net.own_logits, head=head), level, columns=columns, confidence=net.confidence)


@unroll.register
def _(net: ParallelEagle, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Column t holds value t + 1; behind a random part of the columns stands a mask, behind a part of those another one, and so on.

    The parts are nested, so every mask sees those before it, and the values up to its own column (P-EAGLE's drop-token sampling).
    """
    ids, wide = window.ids, window.ids.shape[1]
    order, embed = _drawn(window, window.own.roll(-2, 1)[:, : wide - 1]), embed if net.embed_tokens is None else net.embed_tokens
    counts = [max(1, round((wide - 1) * net.kept**k)) for k in range(min(depth, 1 + net.extra))]
    chosen = [order[:, :count].sort(1).values for count in counts]
    anchor = torch.cat(chosen, 1)
    depths = torch.cat([torch.full((count,), k, device=ids.device) for k, count in enumerate(counts)])
    masks = net.masks(embed, len(ids), sum(counts[1:]), window.features)
    state = torch.cat([net.take(window.features[:, :-1]), masks[0]], 1)
    value = torch.cat([embed(ids[:, 1:]), masks[1]], 1)
    text = (depths == 0) & (anchor[:, None] <= anchor[..., None])
    mask = text | ((anchor[:, None] == anchor[..., None]) & (depths <= depths[:, None]))
    positions = anchor + depths
    if net.window is not None:
        mask = mask & (positions[..., None] - positions[:, None] < net.window)
    out = net(state, value, positions, mask[:, None], None)
    for level, (part, own) in enumerate(zip(out.split(counts, 1), chosen, strict=True)):
        columns = _standing(own + 1 + level, own + 1 + level < wide, wide)
        yield LevelDrafts(part, partial(net.own_logits, head=head), 1 + level, columns=columns)


@unroll.register
def _(net: MaskTokens, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """PaSS (Monea et al. 2023): behind every place of the text stand all embeddings, in one forward of the frozen target.

    They see the text up to there and the embeddings before them. Embedding k foretells the distribution k places on. ValueError before
    `net.attach(target)`, and for windows too short.
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
        logits, _ = DecoderOnly.of(model).forward(model, _look_ahead_columns(window.ids[:, :places], count), None, None, places * count)  # type: ignore[arg-type]
    logits = logits.unflatten(1, (places, count))
    for level in range(min(depth, count)):
        yield LevelDrafts.of_logits(logits[:, :, level], level + 1)


def _drawn(window: RecordedWindow, counts: Tensor) -> Tensor:
    """The positions [B, N] of each row in a random order, those that `counts` [B, N] marks first. Drawn from the rows' seeds."""
    seeds = range(len(counts)) if window.seeds is None else window.seeds
    keys = torch.stack([torch.rand(counts.shape[1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]).to(counts.device)
    return (keys + (~counts).float()).argsort(1)


def _standing(places: Tensor, real: Tensor, wide: int) -> Tensor:
    """For each of `wide` window positions the column [B, wide] that stands for it, -1 for none, from the position `places` [B, M] of each
    column that is `real`."""
    columns = torch.arange(places.shape[1], device=places.device).expand_as(places)
    found = columns.new_full((len(places), wide + 1), -1)
    return found.scatter_(1, torch.where(real, places, wide), columns)[:, :wide]


def _on_a_chain(t: Tensor, steps: int) -> Tensor:
    """What columns `t` [M] see that stand `steps` steps past the committed ones: [M, (1 + steps) M], the committed first, then step by
    step."""
    return torch.cat([t <= t[:, None] - steps, *(t == t[:, None] - (steps - earlier) for earlier in range(1, steps + 1))], 1)


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the columns of `x` [B, M, H], [1, M] and [M]."""
    t = torch.arange(x.shape[1], device=x.device)
    return t[None], t


def _look_ahead_columns(ids: Tensor, count: int) -> Layout:
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
