"""Distillation of drafters that read the target: on text the target wrote, its hidden states there, and its distributions.

`unroll` runs a net over recorded windows as its guide runs it in a generation, level by level, on the text's own values; tests compare the
two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.drafters.features.eagle import FeatureNet
from mmspec.drafters.guided import head_of
from mmspec.drafters.heads.medusa import Heads
from mmspec.models.compat.mixers import without_attention
from mmspec.train.comparison import ComparedPositions, Comparison, TargetSide
from mmspec.train.levels import LevelDrafts, compared_levels
from mmspec.train.losses import Loss, taken_and_agreed, weighted_loss
from mmspec.train.parallel import shared_counts
from mmspec.train.states.memory import LOGITS
from mmspec.train.states.window import RecordedWindow


@singledispatch
def unroll(net: Any, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Yield levels 1 to `depth` of `net`, each on the text's own values. TypeError for types without a registered `unroll`."""
    raise TypeError(f"{type(net).__name__} cannot be trained here: register a function for it with mmspec.train.distillation.unroll")


@unroll.register
def _(net: Heads, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    depth = min(depth, net.most)
    values = embed(window.ids)
    places = window.ids.shape[1] - 1 - depth  # so that every level has a value and a distribution at each of them
    if places < 1:
        raise ValueError(f"windows of {window.ids.shape[1]} values are too short for {depth} levels: give at least {depth + 2}")
    state = net.start(window.features[:, :places], values[:, 1 : 1 + places])
    for level in range(depth):
        if level:
            state = net.advance(state, values[:, 1 + level : 1 + level + places], level)
        yield LevelDrafts(net.read(state, level), partial(net.own_logits, level=level, head=head), 1 + level)


@unroll.register
def _(net: FeatureNet, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Column t holds value t + 1 and a state at t: the target's at level 1, the net's own of the level before from then on.

    Where a window holds pictures, the net's `reading` says which columns there are. Places without one get a state of zero.
    A column of level j sees the level-1 columns up to t - j + 1 and one column of each level between, as on a chain of j draft tokens
    (EAGLE-3's training-time test; HASS's context alignment).
    """
    columns, places = net.reading(window.columns(embed)), window.ids.shape[1] - 1
    t = torch.arange(columns.values.shape[1], device=window.ids.device)
    slots = t.expand(len(columns.values), -1)
    value = columns.over((embed if net.embed_tokens is None else net.embed_tokens)(columns.values), slots)
    positions, beside = columns.along(slots), None if columns.beside is None else columns.beside[:, :-1]
    state, cache = net.take(columns.features), DynamicCache()
    known, glances = net.enter(state, 0, beside), _glances(net, window, len(t), depth)
    for level in range(depth if net.most is None else min(depth, net.most)):
        before = state  # of each column's parent
        if level == 0 or net.reads_drafts:
            blocks = [t <= t[:, None] - level] + [t == t[:, None] - (level - earlier) for earlier in range(1, level + 1)]
            mask = torch.cat(blocks, 1)
            mask[:, 0] |= ~mask.any(1)  # a place with nothing to see would be NaN; it is not counted
            seen = torch.stack([mask, mask & (torch.arange(mask.shape[1], device=t.device) < len(t))]) if net.across else mask[None]
            into = known if level == 0 else torch.where(glances[..., level : level + 1], known, net.enter(before, level, beside))
            state = net(into, value, positions, seen[None], cache)
        state = net.node_states(state, value) if net.attends(level) else net.advance(before, value, level)
        feature = columns.spread(net.feature(state, level), places)
        yield LevelDrafts(feature, partial(net.own_logits, head=head), 1, level, feature)
        state = torch.cat([state[:, :1], state[:, :-1]], 1)


def _glances(net: FeatureNet, window: RecordedWindow, places: int, depth: int) -> Tensor:
    """Where the net is given the target's states in place of its own, [B, M, depth] bool: in training a share `net.glancing`, drawn from
    the rows' seeds (Falcon's glancing distillation, Gao et al. 2024)."""
    if not (net.training and net.glancing):
        return torch.zeros(1, 1, depth, dtype=torch.bool, device=window.ids.device)
    seeds = range(len(window.ids)) if window.seeds is None else window.seeds
    drawn = torch.stack([torch.rand(places, depth, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    return (drawn < net.glancing).to(window.ids.device)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Loss of a distillation: a mixture of losses by name, decaying over levels.

    The loss is the weighted mean over levels.

    Args:
        depth: number of levels.
        distributions: losses by name and weight.
        decay: factor of the weight from level to level.
        states: weight of SmoothL1 between the net's states and the target's (EAGLE-1).
        confidence: weight of the cross-entropy between the net's estimate of acceptance and 1 - TV (DSpark).
        alignment: weight of the contrast between the net's states of level 1 and those of deeper ones at the same position (CORAL).
        summed: give level k = 1, 2, ... the weight decay ** k instead of the mean, as Medusa and VADUSA do.
    """

    depth: int = 4
    distributions: dict[str, float] = field(default_factory=lambda: {"kl": 1.0})
    decay: float = 0.8
    states: float = 0.0
    confidence: float = 0.0
    alignment: float = 0.0
    summed: bool = False

    def __post_init__(self):
        if self.depth < 1:
            raise ValueError(f"Aim.depth is {self.depth}: a drafter needs at least one level")
        weighted_loss(self.distributions)


_PUBLISHED = {  # for kinds that have an aim of their own; 0.78 ** k is exp(-k / 4), as published for blocks of 8
    "eagle1": Aim(depth=2, states=1.0),
    "coral": Aim(alignment=0.1),
    "dflash": Aim(decay=0.78),
    "dspark": Aim(distributions={"ce": 0.1, "tv": 1.8}, decay=0.78, confidence=1.0),  # tv is half of the published L1
}


def aim_for(net: Any, depth: int | None = None, distributions: Mapping[str, float] | None = None) -> Aim:
    """Return the loss that a drafter of this kind is trained with.

    Args:
        net: the drafter net. Nets that have levels are unrolled over all of them.
        depth: number of levels instead.
        distributions: losses by name and weight instead of those published.

    Returns:
        The aim.
    """
    usual = _PUBLISHED.get(net.kind, Aim())
    sure = usual.confidence if getattr(net, "confidence_head", None) is not None else 0.0
    losses = dict(distributions or usual.distributions)
    return replace(usual, depth=depth or getattr(net, "most", None) or usual.depth, distributions=losses, confidence=sure)


class DistillationLoss(nn.Module):
    """A net and its loss over recorded windows as one module, so that several processes can share the training.

    `target` is neither trained nor saved. Freeze it (`requires_grad_(False)`), or its head accumulates unused gradients. See `Joint` for
    training both.

    Logits are made and compared chunk by chunk (`mmspec.train.comparison.Comparison`). A net with a part of the vocabulary is compared with
    the target's own probabilities of these values. What the target gives to others counts as rejected in `acceptance`.

    Args:
        net: the drafter net.
        target: the transformers model it drafts for.
        aim: the loss.
        logits: about how many logits stand in memory at once.
    """

    def __init__(self, net: nn.Module, target: Any, aim: Aim, logits: int = LOGITS):
        super().__init__()
        self.net, self.aim, self.most_logits = net, aim, logits
        self._target = (target,)  # in a tuple, or it would be a submodule
        if getattr(net, "shared_head", False):
            net.attach(target)  # type: ignore[operator]
        if aim.confidence and getattr(net, "confidence_head", None) is None:
            raise ValueError(f"Aim.confidence is {aim.confidence}, but this {net.kind} drafter has no confidence head")

    def forward(self, window: RecordedWindow) -> Tensor:
        """Return the loss of `window`, a scalar."""
        levels = [(level, level.counted(window.own)) for level in self._unrolled(window)]
        decay = self.aim.decay ** torch.arange(len(levels), device=window.last.device)
        counts = shared_counts(torch.stack([counted.sum() for _, counted in levels]))
        weights = decay * (self.aim.decay if self.aim.summed else 1 / decay.sum()) / counts
        leaves = [each for part in (self.net, *self._target) for each in part.parameters() if each.requires_grad]
        of = weighted_loss(self.aim.distributions)
        loss = self._comparison(of, window, levels, window.ids.roll(-1, 1), self.aim.confidence).loss(weights, leaves)
        first = levels[0][0]
        for weight, (level, counted) in zip(weights, levels, strict=True):
            if self.aim.states and level.state is not None:
                loss = loss + weight * self.aim.states * level.state_gap(window.last, counted)
            if self.aim.alignment and level.state is not None and level is not first:
                loss = loss + weight * self.aim.alignment * level.state_contrast(first, counted)
        return loss

    @torch.no_grad()
    def acceptance(self, window: RecordedWindow) -> list[tuple[float, float]]:
        """Return for every level the acceptance of the token rule (1 - TV), and how often the most likely values agree."""
        levels = [(level, level.counted(window.own)) for level in self._unrolled(window)]
        sums = self._comparison(taken_and_agreed, window, levels, window.best).sums()
        means = sums / torch.stack([counted.sum().clamp_min(1) for _, counted in levels])[:, None]
        return [(taken, agreed) for taken, agreed in means.tolist()]

    def _unrolled(self, window: RecordedWindow) -> Iterator[LevelDrafts]:
        """The levels of the net, which computes in the windows' dtype whatever the target's is."""
        (target,) = self._target
        embed, head = target.get_input_embeddings(), head_of(target)
        embed = self.net.embedding(target, embed) if hasattr(self.net, "embedding_scale") else embed  # type: ignore[operator]
        dtype, theirs = window.last.dtype, getattr(target.get_output_embeddings(), "weight", window.last).dtype
        return unroll(self.net, window, lambda ids: embed(ids).to(dtype), lambda hidden: head(hidden.to(theirs)), self.aim.depth)

    def _comparison(
        self, of: Loss, window: RecordedWindow, levels: Sequence[tuple[LevelDrafts, Tensor]], value: Tensor | None, sure: float = 0.0
    ) -> Comparison:
        """The target's and the net's distributions at the places that count."""
        compared = torch.stack([counted for _, counted in levels]).any(0)
        row, place = compared.nonzero(as_tuple=True)
        total, value = (None if x is None else x[row, place] for x in (window.total, value))
        theirs = TargetSide(self._target[0], getattr(self.net, "vocabulary", None))
        predicted = compared_levels(levels, compared)
        return Comparison(of, theirs, ComparedPositions(window.last[row, place], total, value), predicted, self.most_logits, sure)


class Joint(nn.Module):
    """Joint training of a target and its drafter (Medusa-2; VADUSA): next-value loss plus `weight` of the distillation loss.

    The target's hidden states are recomputed with gradients, so its distribution changes: afterwards, decoding is exact for the new
    target. Keep the target `frozen` for the first steps, and give the heads a higher rate (`Fit.rates`). Windows are packed to the left.
    With `own_only` the next-value loss counts `own` values only: in text-to-speech the audio codes.
    """

    def __init__(self, net: nn.Module, target: nn.Module, aim: Aim, weight: float = 0.2, own_only: bool = False):
        super().__init__()
        if getattr(net, "shared_head", False):
            raise ValueError("a drafter that shares the head of a target cannot be trained together with it: give it a head of its own")
        if target is not None and without_attention(target):  # Mamba: state 0 has passed the first layer
            name = type(target).__name__
            raise ValueError(f"{name} numbers the hidden states it returns otherwise than drafters do: train the drafter alone")
        self.example, self.target, self.weight, self.own_only = DistillationLoss(net, target, aim), target, weight, own_only
        self._trained = [parameter for parameter in target.parameters() if parameter.requires_grad]

    def forward(self, ids: Tensor, own: Tensor, frozen: bool = False) -> Tensor:
        """The loss over windows `ids` [B, W] of which `own` [B, W] are lessons; while `frozen` it is the heads' alone."""
        for parameter in self._trained:
            parameter.requires_grad_(not frozen)
        net: Any = self.example.net
        labels = None if frozen else ids.masked_fill(~own, -100) if self.own_only else ids
        out = self.target(ids, labels=labels, output_hidden_states=True)
        features = torch.cat([out.hidden_states[state] for state in net.reads], -1)
        example = self.example(RecordedWindow(ids, features, out.hidden_states[-1], own))
        return example if frozen else out.loss + self.weight * example


def acceptance_text(levels: Sequence[tuple[float, float]]) -> str:
    """Return the acceptance of all levels as text."""
    return "  ".join(f"{depth}: {taken:.3f}/{agree:.3f}" for depth, (taken, agree) in enumerate(levels, 1))
