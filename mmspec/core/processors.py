"""From logits to laws: one pipeline, applied once, by whoever builds p or q, with every node's own history.

A processor takes scores [B, N, V] and the `History` of the nodes, and returns scores. Numbers may be given per row. The order is
transformers': penalties and bans first, then temperature, then truncation. Temperature 0 leaves a point mass on the best value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class History:
    """What came before the value each node calls for: the ids on its own path, prompt included."""

    ids: Tensor  # [B, S] ids by cache slot
    visible: Tensor  # [B, N, S] bool: is the slot on the node's path?
    position: Tensor  # [B, N] output position of the value the node calls for

    def seen(self, size: int) -> Tensor:
        """[B, N, V] bool: does the value occur on the node's path?"""
        counts = torch.zeros(*self.visible.shape[:2], size, device=self.ids.device)
        index = self.ids.clamp(max=size - 1)[:, None, :].expand_as(self.visible)
        return counts.scatter_add_(2, index, self.visible.float()) > 0

    def paths(self) -> Iterator[tuple[int, int, Tensor]]:
        """Every (row, node, ids on its path in order [L]). Synchronises: for processors that must be called one by one."""
        for row in range(self.visible.shape[0]):
            for node in range(self.visible.shape[1]):
                yield row, node, self.ids[row][self.visible[row, node]]


class Processor(Protocol):
    def __call__(self, scores: Tensor, history: History) -> Tensor: ...


def per_row(value: float | Sequence[float], like: Tensor) -> float | Tensor:
    """A number as it is, or one per row as something that broadcasts over [B, N, V]."""
    if isinstance(value, (int, float)):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)[:, None, None]


def ban(scores: Tensor, banned: Tensor) -> Tensor:
    return scores.masked_fill(banned, -torch.inf)


def _one_of(ids: Sequence[int], scores: Tensor) -> Tensor:
    """[V] bool: is the value among `ids`?"""
    mask = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
    inside = [i for i in ids if i < scores.shape[-1]]
    mask[inside] = True
    return mask


@dataclass(frozen=True)
class Temperature:
    temperature: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        heat = per_row(self.temperature, scores)
        if isinstance(heat, (int, float)):
            return scores / heat if heat > 0 else _only_best(scores)
        return torch.where(heat > 0, scores / heat.clamp(min=1e-6), _only_best(scores))


def _only_best(scores: Tensor) -> Tensor:
    best = scores.argmax(-1, keepdim=True)
    return torch.full_like(scores, -torch.inf).scatter_(-1, best, 0.0)


@dataclass(frozen=True)
class TopK:
    """Keep the k most likely values (ties with the k-th stay)."""

    k: int | Sequence[int]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        size = scores.shape[-1]
        if isinstance(self.k, int):
            kth = scores.topk(min(self.k, size), -1).values[..., -1:]
        else:
            ordered = scores.sort(-1, descending=True).values
            k = torch.as_tensor(self.k, device=scores.device).clamp(max=size)
            kth = ordered.gather(-1, (k - 1)[:, None, None].expand(*scores.shape[:2], 1))
        return ban(scores, scores < kth)


@dataclass(frozen=True)
class TopP:
    """Nucleus sampling: keep the smallest set of values whose mass reaches p, and at least one."""

    p: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ordered, index = scores.sort(-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - per_row(self.p, scores)
        drop[..., -1] = False
        return ban(scores, torch.zeros_like(drop).scatter_(-1, index, drop))


@dataclass(frozen=True)
class MinP:
    """Keep values at least `p` times as likely as the best one."""

    p: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        probs = scores.softmax(-1)
        return ban(scores, probs < per_row(self.p, scores) * probs.amax(-1, keepdim=True))


@dataclass(frozen=True)
class RepetitionPenalty:
    """CTRL's penalty on every value that already stands on the node's path, prompt included."""

    penalty: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        penalty = per_row(self.penalty, scores)
        penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(history.seen(scores.shape[-1]), penalised, scores)


@dataclass(frozen=True)
class Suppress:
    """Never produce these ids."""

    ids: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return ban(scores, _one_of(self.ids, scores))


@dataclass(frozen=True)
class SuppressAt:
    """Never produce these ids at output positions below `until` (minimum length), or only at position `until` - 1 if `only_last`."""

    ids: tuple[int, ...]
    start: int
    stop: int

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        inside = (history.position >= self.start) & (history.position < self.stop)
        return ban(scores, inside[..., None] & _one_of(self.ids, scores))


@dataclass(frozen=True)
class ForceAt:
    """Produce one of these ids at output position `position`."""

    ids: tuple[int, ...]
    position: int

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        here = (history.position == self.position)[..., None]
        forced = torch.where(_one_of(self.ids, scores), 0.0, -torch.inf).to(scores.dtype)
        return torch.where(here, forced, scores)


@dataclass(frozen=True)
class Pipeline:
    """Processors in order. An empty pipeline leaves the law of the raw logits."""

    steps: tuple[Processor, ...] = ()

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        for step in self.steps:
            scores = step(scores, history)
        return scores


def pipeline(
    *,
    temperature: float | Sequence[float] | None = None,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] | None = None,
    min_p: float | Sequence[float] | None = None,
    repetition_penalty: float | Sequence[float] | None = None,
    suppress: Sequence[int] = (),
    first: Sequence[Processor] = (),
) -> Pipeline:
    """The usual processors in transformers' order; `first` ones go before all others. Checks every number."""
    steps: list[Processor] = list(first)
    if repetition_penalty is not None and _checked("repetition_penalty", repetition_penalty, lambda v: v > 0, "above 0") != 1:
        steps.append(RepetitionPenalty(repetition_penalty))
    if suppress:
        steps.append(Suppress(tuple(suppress)))
    if temperature is not None and _checked("temperature", temperature, lambda v: v >= 0, "0 or more") != 1:
        steps.append(Temperature(temperature))
    if top_k is not None and _checked("top_k", top_k, lambda v: v >= 0 and v == int(v), "a whole number, 0 for none") != 0:
        steps.append(TopK(top_k if isinstance(top_k, int) else tuple(top_k)))
    if top_p is not None and _checked("top_p", top_p, lambda v: 0 < v <= 1, "above 0 and at most 1") != 1:
        steps.append(TopP(top_p))
    if min_p is not None and _checked("min_p", min_p, lambda v: 0 <= v <= 1, "between 0 and 1") != 0:
        steps.append(MinP(min_p))
    return Pipeline(tuple(steps))


def _checked(name: str, value, rule, words: str):
    values = [value] if isinstance(value, (int, float)) else list(value)
    for one in values:
        if not rule(float(one)):
            raise ValueError(f"{name} is {one}: it must be {words}")
    return value
