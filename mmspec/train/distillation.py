"""Distillation of drafters that read the target: on text the target wrote, its hidden states there, and its distributions.

`unroll` runs a net over recorded windows as its guide runs it in a generation, level by level, on the text's own values; tests compare the
two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.drafters.features.eagle import FeatureNet
from mmspec.drafters.features.reading import Columns, VisionView
from mmspec.drafters.guided import head_of
from mmspec.drafters.heads.medusa import Heads
from mmspec.train.losses import Loss, weighted_loss
from mmspec.train.parallel import shared_count


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """Windows of text with the target's hidden states."""

    ids: Tensor  # [B, W]
    features: Tensor  # [B, W, F] the hidden states the net reads, side by side
    last: Tensor  # [B, W, H] the last hidden state, which the head reads
    own: Tensor  # [B, W] bool: did the target write this value? Only its own text is a lesson
    embeds: Tensor | None = None  # [B, W, H] what the target's decoder read at pictures; None: it saw none
    pictures: Tensor | None = None  # [B, W] which picture of its row a position is of, from 1 on; 0 where there is text

    def widened(self, size: int) -> "RecordedWindow":
        """The windows with zeros behind, `size` values long: nothing there is a lesson."""

        def wide(x: Tensor) -> Tensor:
            return nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, size - x.shape[1]))

        embeds, pictures = (None if x is None else wide(x) for x in (self.embeds, self.pictures))
        return RecordedWindow(wide(self.ids), wide(self.features), wide(self.last), wide(self.own), embeds, pictures)

    def trimmed(self, behind: int = 8) -> "RecordedWindow":
        """The windows without what no row needs: `behind` values stay behind the last lesson of all. Looks at the device once."""
        size = min(self.ids.shape[1], int(self.own.any(0).nonzero().max()) + 1 + behind)
        parts = (self.ids, self.features, self.last, self.own, self.embeds, self.pictures)
        return RecordedWindow(*(part if part is None else part[:, :size] for part in parts))  # type: ignore[arg-type]

    def columns(self, embed: Any) -> Columns:
        """Everything but the last value as a prompt's columns: value t + 1 beside the state at t."""
        vision = None
        if self.pictures is not None and self.embeds is not None:
            vision = VisionView(torch.where((self.pictures > 0)[..., None], self.embeds, embed(self.ids)), self.pictures)
        lengths = self.ids.new_full((len(self.ids),), self.ids.shape[1] - 1)
        return Columns.of(self.ids[:, 1:], lengths, self.features[:, :-1], vision)


@dataclass(frozen=True, slots=True)
class LevelDrafts:
    """A net's predictions at one level, for M places of every window."""

    logits: Tensor  # [B, M, V] over the net's own values
    after: int  # the first draft token is for the distribution after window position `after`, the next for the one after that, ...
    blind: int = 0  # the first places have no states: not counted
    state: Tensor | None = None  # [B, M, H] the net's draft token of the target's last hidden state at those positions


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
        yield LevelDrafts(net.logits(net.read(state, level), level, head), 1 + level)


@unroll.register
def _(net: FeatureNet, window: RecordedWindow, embed: Any, head: Any, depth: int) -> Iterator[LevelDrafts]:
    """Column t holds value t + 1 and a state at t: the target's at level 1, the net's own of the level before from then on.

    Where a window holds pictures, the net's `reading` says which columns there are. Places without one get logits of zero.
    A column of level j sees the level-1 columns up to t - j + 1 and one column of each level between, as on a chain of j draft tokens
    (EAGLE-3's training-time test; HASS's context alignment).
    """
    columns, places = net.reading(window.columns(embed)), window.ids.shape[1] - 1
    t = torch.arange(columns.values.shape[1], device=window.ids.device)
    slots = t.expand(len(columns.values), -1)
    value = columns.over((embed if net.embed_tokens is None else net.embed_tokens)(columns.values), slots)
    positions, beside = columns.along(slots), None if columns.beside is None else columns.beside[:, :-1]
    state, cache = net.take(columns.features), DynamicCache()
    for level in range(1, depth + 1):
        blocks = [t <= t[:, None] - (level - 1)] + [t == t[:, None] - (level - earlier) for earlier in range(2, level + 1)]
        mask = torch.cat(blocks, 1)
        mask[:, 0] |= ~mask.any(1)  # a place with nothing to see would be NaN; it is not counted
        state = net(net.enter(state, level - 1, beside), value, positions, mask[None, None], cache)
        yield LevelDrafts(columns.spread(net.own_logits(state, head), places), 1, level - 1, columns.spread(state, places))
        state = torch.cat([state[:, :1], state[:, :-1]], 1)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Loss of a distillation: a mixture of losses by name, decaying over levels.

    The loss is the weighted mean over levels.

    Args:
        depth: number of levels.
        distributions: losses by name and weight.
        decay: factor of the weight from level to level.
        states: weight of SmoothL1 between the net's states and the target's (EAGLE-1).
        summed: give level k = 1, 2, ... the weight decay ** k instead of the mean, as Medusa and VADUSA do.
    """

    depth: int = 4
    distributions: dict[str, float] = field(default_factory=lambda: {"kl": 1.0})
    decay: float = 0.8
    states: float = 0.0
    summed: bool = False

    def __post_init__(self):
        if self.depth < 1:
            raise ValueError(f"Aim.depth is {self.depth}: a drafter needs at least one level")
        weighted_loss(self.distributions)


class DistillationLoss(nn.Module):
    """A net and its loss over recorded windows as one module, so that several processes can share the training.

    `target` is neither trained nor saved. Freeze it (`requires_grad_(False)`), or its head accumulates unused gradients. See `Joint` for
    training both.
    """

    def __init__(self, net: nn.Module, target: Any, aim: Aim):
        super().__init__()
        self.net, self.aim = net, aim
        self._target = (target,)  # in a tuple, or it would be a submodule

    def forward(self, window: RecordedWindow) -> Tensor:
        """Return the loss of `window`, a scalar."""
        loss, total = window.last.new_zeros(()), 0.0
        for depth, (level, log_p, log_q, value, counted) in enumerate(self._compared(window)):
            weight = self.aim.decay**depth
            count = shared_count(counted)
            value_loss = (self._loss(log_p, log_q, value) * counted).sum() / count
            if self.aim.states and level.state is not None:
                goal = window.last[:, level.after : level.after + counted.shape[1]]
                gap = nn.functional.smooth_l1_loss(level.state, goal, reduction="none").mean(-1)
                value_loss = value_loss + self.aim.states * (gap * counted).sum() / count
            loss, total = loss + weight * value_loss, total + weight
        return self.aim.decay * loss if self.aim.summed else loss / total

    @torch.no_grad()
    def acceptance(self, window: RecordedWindow) -> list[tuple[float, float]]:
        """Return for every level the acceptance of the token rule (1 - TV), and how often the most likely values agree."""
        found = []
        for _, log_p, log_q, _, counted in self._compared(window, whole=True):
            taken = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
            agree = (log_p.argmax(-1) == log_q.argmax(-1)).float()
            found.append((_mean(taken, counted).item(), _mean(agree, counted).item()))
        return found

    @property
    def _loss(self) -> Loss:
        return weighted_loss(self.aim.distributions)

    def _compared(self, window: RecordedWindow, whole: bool = False) -> Iterator[tuple[LevelDrafts, Tensor, Tensor, Tensor, Tensor]]:
        """Every level with log p, log q, the value that came and which places count, over the net's values or the target's `whole`."""
        (target,) = self._target
        head, embed = head_of(target), target.get_input_embeddings()
        with torch.no_grad():
            logits = head(window.last).float()
        known = getattr(self.net, "vocabulary", None)
        for level in unroll(self.net, window, embed, head, self.aim.depth):
            places = min(level.logits.shape[1], window.ids.shape[1] - 1 - level.after)  # the last distribution has no value after it
            at = slice(level.after, level.after + places)
            log_p, log_q = logits[:, at], level.logits[:, :places].float().log_softmax(-1)
            value = window.ids[:, level.after + 1 : level.after + 1 + places]
            counted = window.own[:, level.after + 1 : level.after + 1 + places].clone()
            counted[:, : level.blind] = False
            if known is not None and whole:
                log_q = torch.full_like(log_p, -torch.inf).index_copy_(-1, known, log_q)
            elif known is not None:
                log_p, value = log_p[..., known], _within(value, known, log_p.shape[-1])
            level = level if level.state is None else LevelDrafts(level.logits, level.after, level.blind, level.state[:, :places])
            yield level, log_p.log_softmax(-1), log_q, value, counted


def _within(value: Tensor, known: Tensor, size: int) -> Tensor:
    """`value` by its place among `known` ids, -1 where it is not there."""
    places = torch.full((size,), -1, dtype=torch.long, device=value.device)
    places[known] = torch.arange(len(known), device=value.device)
    return places[value]


def _mean(x: Tensor, counted: Tensor) -> Tensor:
    return (x * counted).sum() / counted.sum().clamp_min(1)


class Joint(nn.Module):
    """Joint training of a target and its drafter (Medusa-2; VADUSA): next-value loss plus `weight` of the distillation loss.

    The target's hidden states are recomputed with gradients, so its distribution changes: afterwards, decoding is exact for the new
    target. Keep the target `frozen` for the first steps, and give the heads a higher rate (`Fit.rates`). Windows are packed to the left.
    With `own_only` the next-value loss counts `own` values only: in text-to-speech the audio codes.
    """

    def __init__(self, net: nn.Module, target: nn.Module, aim: Aim, weight: float = 0.2, own_only: bool = False):
        super().__init__()
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
