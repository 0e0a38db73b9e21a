"""Delay patterns: book k of a codec lags `delays[k]` steps behind, so that a step's codes are independent given the steps before it.

At step s the cells (k, s - delays[k]) are committed, for all books k at once (MusicGen, Copet et al. 2023; Dia). Cells that lie before
their book's first frame or behind its last are forced. What is forced is told by a node's position and by its own path, never by state kept
beside it: so it holds for drafted nodes in chains and trees, for p and q alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from mmspec.core.distributions.frame import Frame
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import History, ban
from mmspec.core.processors.pipeline import Pipeline
from mmspec.utils.devices import to_device


def frame_distribution(scores: Tensor, history: History, processors: Pipeline) -> Frame:
    """The distribution of frames from scores [B, N, K, V] of K independent codes; of pairs [2B, N, K, V] under `Guided` processors.

    Processors whose `frames` is True see whole frames, all others each book by itself, with that book's own history.
    """
    by_row = isinstance(processors, RowPipelines)
    return Frame(processors.by_group(scores, history, _formed) if by_row else _formed(processors, scores, history))


def _formed(processors: Pipeline, scores: Tensor, history: History) -> Tensor:
    scores, history = processors.before(scores, history)
    for step in processors.steps:
        scores = step(scores, history) if getattr(step, "frames", False) else _by_book(step, scores, history)
    return scores


def _by_book(step: Any, scores: Tensor, history: History) -> Tensor:
    """A processor of single ids on [B, N, K, V]: every book is a row. Its numbers must be the same for all rows."""
    books = scores.shape[2]
    visible, position = (repeat(part, "b ... -> (b k) ...", k=books) for part in (history.visible, history.position))
    history = History(rearrange(history.ids, "b n k -> (b k) n"), visible, position)
    out = step(rearrange(scores, "b n k v -> (b k) n v"), history)
    return rearrange(out, "(b k) n v -> b n k v", k=books)


def forced(scores: Tensor, where: Tensor, value: int | Tensor) -> Tensor:
    """`scores` [B, N, K, V] with point masses on `value`, one or [B, N, K], at the cells `where` [B, N, K]. A single value that the heads
    lack is added to the distributions."""
    if isinstance(value, Tensor):
        point = torch.full_like(scores, -torch.inf).scatter(-1, value.clamp(min=0)[..., None], 0.0)
        return torch.where(where[..., None], point, scores)
    scores = F.pad(scores, (0, max(0, value + 1 - scores.shape[-1])), value=-torch.inf)
    point = torch.full_like(scores[0, 0, 0], -torch.inf)
    point[value] = 0
    return torch.where(where[..., None], point, scores)


@dataclass(frozen=True)
class NotYet:
    """Book k holds `fill` until its first frame, at step `delays[k]`."""

    delays: Sequence[int]
    fill: int
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return forced(scores, history.position[..., None] < _on(self.delays, scores), self.fill)


@dataclass(frozen=True)
class NoMore:
    """Book k holds `fill` behind its last of `count` frames, from step `delays[k] + count` on."""

    delays: Sequence[int]
    fill: int
    count: int
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return forced(scores, history.position[..., None] >= _on(self.delays, scores) + self.count, self.fill)


@dataclass(frozen=True)
class EndAt:
    """Book 0 ends at output position `position`, one or one a row, if it has not ended before. To stand before `EndsInFirst`."""

    position: int | Sequence[int]
    end: int
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        first = torch.arange(scores.shape[2], device=scores.device) == 0
        last = self.position if isinstance(self.position, int) else to_device(list(self.position), scores.device)[:, None]
        return forced(scores, (history.position == last)[..., None] & first, self.end)


@dataclass(frozen=True)
class EndsInFirst:
    """Book 0 alone may end a row; the others follow by their delays, and hold `pad` behind their end.

    Book 0 ends where the end is its likeliest code, and nowhere else: the end is never drawn by chance, nor missed. Ids from `end` on
    are no codes.
    """

    delays: Sequence[int]
    end: int
    pad: int
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, first = torch.arange(scores.shape[-1], device=scores.device), torch.arange(scores.shape[2], device=scores.device) == 0
        scores = ban(scores, (ids > self.end) | ((ids == self.end) & ~first[:, None]))
        ends = (scores[:, :, 0].argmax(-1) == self.end)[..., None]  # [B, N, 1]
        scores = ban(scores, first[:, None] & ((ids == self.end) != ends)[:, :, None])
        since = self.since(history)[..., None]
        over, delays = ends | (since > 0), _on(self.delays, scores)
        scores = forced(scores, over & (since == delays), self.end)
        return forced(scores, over & (since > delays), self.pad)

    def since(self, history: History) -> Tensor:
        """[B, N] steps from the one at which book 0 ended to the one a node calls for, on the node's own path; 0 if it has not ended."""
        ended = history.visible & (history.ids[:, None, :, 0] == self.end)
        return (history.visible & (ended.cumsum(-1) > 0)).sum(-1)


def _on(delays: Sequence[int], scores: Tensor) -> Tensor:
    return to_device(list(delays), scores.device)


def undelayed(steps: Sequence[Sequence[int]], delays: Sequence[int], first: int = 0) -> list[list[int]]:
    """The frames from number `first` on that `steps` hold whole: frame f is code (k, f + delays[k]) of every book k."""
    return [[steps[f + lag][k] for k, lag in enumerate(delays)] for f in range(first, len(steps) - max(delays))]
