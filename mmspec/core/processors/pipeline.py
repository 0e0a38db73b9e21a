"""From logits to distributions: one pipeline of processors, applied once by whatever makes p or q, with the history of every node.

A processor takes scores [B, N, V] and the `History` of the nodes, and returns scores. Settings may be given per row. The order is
transformers': penalties and bans first, then temperature, then truncation. Temperature 0 leaves a point mass on the best value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Pathless, Processor, ban, per_row


def _one_of(ids: Sequence[int], scores: Tensor) -> Tensor:
    """[V] bool: the value is among `ids`."""
    return _among(tuple(ids), scores.shape[-1], scores.device)


@lru_cache(maxsize=64)
def _among(ids: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """[size] bool, cached, since every step of a request uses the same few."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[[i for i in ids if 0 <= i < size]] = True
    return mask.to(device)


@dataclass(frozen=True)
class Temperature(Pathless):
    """Divide scores by the temperature; 0 leaves a point mass on the best value."""

    temperature: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        degree = per_row(self.temperature, scores, "temperature")
        if isinstance(degree, (int, float)):
            return scores / max(degree, 1e-6) if degree > 0 else _only_best(scores)
        return torch.where(degree > 0, scores / degree.clamp(min=1e-6), _only_best(scores))


def _only_best(scores: Tensor) -> Tensor:
    best = scores.argmax(-1, keepdim=True)
    return torch.full_like(scores, -torch.inf).scatter_(-1, best, 0.0)


@dataclass(frozen=True)
class TopK(Pathless):
    """Keep the k most likely values (ties with the k-th stay); 0 keeps all."""

    k: int | Sequence[int]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        size = scores.shape[-1]
        if isinstance(self.k, int):
            kth = scores.topk(min(self.k or size, size), -1, sorted=False).values.amin(-1, keepdim=True)
        else:
            ordered = scores.sort(-1, descending=True).values
            k = torch.as_tensor(per_row([min(k or size, size) for k in self.k], scores, "top_k"))
            kth = ordered.gather(-1, (k.long() - 1).expand(*scores.shape[:2], 1))
        return ban(scores, scores < kth)


@dataclass(frozen=True)
class TopP(Pathless):
    """Nucleus sampling: keep the smallest set of values, at least one, whose mass reaches p. Sums are in double precision."""

    p: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        index, below = self.ranked(scores)
        return self.cut(scores, index, self.over(below))

    def ranked(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The values of `scores` [B, N, V] from the least likely on, and the weight up to each relative to the best value's."""
        ordered, index = scores.sort(dim=-1, stable=True)
        return index, (ordered - ordered[..., -1:]).exp_().cumsum(-1, dtype=torch.float64)

    def over(self, below: Tensor) -> Tensor:
        """How far each weight of `below` exceeds what is dropped."""
        return below - (1 - per_row(self.p, below, "top_p")) * below[..., -1:]

    def cut(self, scores: Tensor, index: Tensor, over: Tensor) -> Tensor:
        """Drop the values that do not exceed it, but never the best one."""
        drop = over <= 0
        drop[..., -1] = False
        return ban(scores, torch.zeros_like(drop).scatter_(-1, index, drop))


@dataclass(frozen=True)
class MinP(Pathless):
    """Keep values at least `p` times as likely as the best one."""

    p: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        weights = (scores - scores.amax(-1, keepdim=True)).exp_()
        return ban(scores, weights < per_row(self.p, scores, "min_p"))


def penalised(scores: Tensor, penalty: float | Sequence[float], values: Tensor) -> Tensor:
    """CTRL's penalty (Keskar et al. 2019) on `values` [B, N, V] bool: positive scores are divided, negative ones multiplied."""
    strength = per_row(penalty, scores, "repetition_penalty")
    return torch.where(values, torch.where(scores < 0, scores * strength, scores / strength), scores)


@dataclass(frozen=True)
class RepetitionPenalty:
    """CTRL's penalty on every value that occurs on the node's path, prompt included."""

    penalty: float | Sequence[float]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return penalised(scores, self.penalty, history.seen(scores.shape[-1]))


@dataclass(frozen=True)
class Suppress(Pathless):
    """Never produce these ids."""

    ids: tuple[int, ...]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return ban(scores, _one_of(self.ids, scores))


@dataclass(frozen=True)
class SuppressAt(Pathless):
    """Never produce these ids at output positions from `start` up to, but not including, `stop`."""

    ids: tuple[int, ...]
    start: int
    stop: int

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        inside = (history.position >= self.start) & (history.position < self.stop)
        return ban(scores, inside[..., None] & _one_of(self.ids, scores))


def min_length(ends: Sequence[int], least: int) -> SuppressAt:
    """Forbid `ends` at the first `least` output positions.

    In front of a sampler in a pipeline the masked scores are sampled; behind it, this conditions its draw on no end. ValueError if
    negative.
    """
    if not least >= 0:
        raise ValueError(f"the minimum length is {least}: give 0 or more outputs")
    return SuppressAt(tuple(ends), 0, least)


@dataclass(frozen=True)
class ForceAt(Pathless):
    """Produce one of these ids at output position `position`."""

    ids: tuple[int, ...]
    position: int

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        here = (history.position == self.position)[..., None]
        forced = torch.where(_one_of(self.ids, scores), 0.0, -torch.inf).to(scores.dtype)
        return torch.where(here, forced, scores)


@dataclass(frozen=True)
class Pipeline:
    """Processors in order. An empty pipeline leaves the distribution of the raw logits."""

    steps: tuple[Processor, ...] = ()

    @property
    def idle(self) -> bool:
        """True if it leaves every distribution as it is."""
        return not self.steps

    @property
    def reads_paths(self) -> bool:
        """True unless all of its processors are `Pathless`."""
        return any(getattr(step, "reads_paths", True) for step in self.steps)

    @property
    def repairs(self) -> bool:
        """True if its processors replace NaN and infinities."""
        return any(getattr(step, "repairs", False) for step in self.steps)

    @property
    def bare(self) -> "Pipeline":
        """What makes distributions of the raw logits: without processors."""
        return Pipeline()

    def keep(self, kinds: tuple[type[Processor], ...]) -> "Pipeline":
        """Return this pipeline without processors of other classes than `kinds`."""
        return Pipeline(tuple(step for step in self.steps if isinstance(step, kinds)))

    def before(self, scores: Tensor, history: History) -> tuple[Tensor, History]:
        """Return scores [B, N, V] and history for the steps: what is given, unless a subclass prepares them."""
        return scores, history

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        scores, history = self.before(scores, history)
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
    """Make the usual processors in transformers' order; `first` ones precede all others. ValueError, by name, for numbers out of range."""
    steps: list[Processor] = list(first)
    if repetition_penalty is not None:
        penalty = _checked("repetition_penalty", repetition_penalty, lambda v: 0 < v < math.inf, "above 0")
        steps += [RepetitionPenalty(penalty)] if penalty != 1 else []
    if suppress:
        steps.append(Suppress(tuple(suppress)))
    if temperature is not None:
        degree = _checked("temperature", temperature, lambda v: 0 <= v < math.inf, "0 or more, and finite")
        steps += [Temperature(degree)] if degree != 1 else []
    if top_k is not None:
        k = _checked("top_k", top_k, lambda v: v >= 0 and float(v).is_integer(), "a whole number, 0 for none")
        steps += [TopK(int(k) if isinstance(k, (int, float)) else tuple(map(int, k)))] if k != 0 else []
    if top_p is not None:
        mass = _checked("top_p", top_p, lambda v: 0 < v <= 1, "above 0 and at most 1")
        steps += [TopP(mass)] if mass != 1 else []
    if min_p is not None:
        share = _checked("min_p", min_p, lambda v: 0 <= v <= 1, "between 0 and 1")
        steps += [MinP(share)] if share != 0 else []
    return Pipeline(tuple(steps))


def _checked(name: str, value: Any, rule: Callable[[float], bool], words: str) -> Any:
    """Return `value`, a number or one per row, after checking every number by `rule`."""
    value = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value
    if value == ():
        raise ValueError(f"{name} is empty: give one number, or one per row")
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, (int, float)) or not rule(one):
            raise ValueError(f"{name} is {one!r}: it must be {words}")
    return value
