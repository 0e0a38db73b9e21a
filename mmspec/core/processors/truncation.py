"""Distributions after top-k, top-p and min-p on their support: the values left are found without sorting the vocabulary.

The last steps of a pipeline are a temperature and truncations. The values that may stay are selected by a bound that is cheap to compute
and never leaves out a value that stays; the steps then run on those values only. The result is that of the whole table, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.sparse import SparseCategorical
from mmspec.core.gumbel import LARGE
from mmspec.core.masks import true_columns
from mmspec.core.processors.pipeline import History, MinP, Pipeline, Processor, Temperature, TopK, TopP, per_row

_ORDER = (Temperature, TopK, TopP, MinP)
_GROUP = 32  # values whose maximum is compared first
_SHARE = 4  # with more than a quarter of the values left, tables are used
_SLACK = 1e-6  # above the rounding errors of the bounds


def distribution_of(processors: Any, scores: Tensor, history: History) -> Categorical:
    """Apply processors to scores.

    Args:
        processors: a `Pipeline`, or another callable that takes and returns scores.
        scores: [B, N, V].
        history: the paths of the nodes.

    Returns:
        Distributions [B, N] (of half the rows after `models.guidance.Guided`): on their support where a large vocabulary is truncated on
        a CPU, else as a table. On a GPU the width of a support would have to be read by the host.
    """
    if not isinstance(processors, Pipeline):
        return Categorical(processors(scores, history))
    first, last = _split(processors.steps)
    scores, history = processors.before(scores, history)
    for step in first:
        scores = step(scores, history)
    if last and scores.device.type == "cpu" and scores.shape[-1] >= LARGE:
        found = _on_support(scores, history, last)
        if found is not None:
            return found
    for step in last:
        scores = step(scores, history)
    return Categorical(scores)


def _split(steps: Sequence[Processor]) -> tuple[Sequence[Processor], Sequence[Processor]]:
    """The steps before the temperature and truncations at the end, and these; none where they do not stand in the usual order."""
    start = len(steps)
    while start and type(steps[start - 1]) in _ORDER:
        start -= 1
    kinds = [_ORDER.index(type(step)) for step in steps[start:]]  # pyright: ignore[reportArgumentType]
    usual = kinds == sorted(set(kinds)) and any(kind > 0 for kind in kinds)
    return (steps[:start], steps[start:]) if usual else (steps, ())


def _on_support(scores: Tensor, history: History, steps: Sequence[Processor]) -> SparseCategorical | None:
    """The distributions [B, N] after the steps; None where too many values may stay."""
    named: dict[type, Any] = {type(step): step for step in steps}
    if Temperature in named and not _positive(named[Temperature].temperature):
        return None
    weights = None if TopK in named else _weights(scores, history, named)
    chosen = _by_rank(scores, named[TopK]) if weights is None else _by_weight(weights, named)
    if chosen is None:
        return None
    ids, real = _columns(chosen)
    if ids.shape[-1] * _SHARE > scores.shape[-1]:
        return None
    kept = scores.gather(-1, ids).masked_fill_(~real, -torch.inf)
    rest = None if weights is None else _sum(weights) - _sum(weights.gather(-1, ids).masked_fill_(~real, 0))
    for step in steps:
        kept = step.truncated(kept, rest) if isinstance(step, TopP) else step(kept, history)
    place, real = _columns(kept > -torch.inf)
    ids = torch.where(real, ids.gather(-1, place), scores.shape[-1])
    return SparseCategorical(ids, torch.where(real, kept.gather(-1, place), -torch.inf), scores.shape[-1])


def _columns(mask: Tensor) -> tuple[Tensor, Tensor]:
    """`true_columns` of a mask [B, N, V], both [B, N, K]."""
    columns, real = true_columns(mask.flatten(0, 1))
    return columns.view(*mask.shape[:2], -1), real.view(*mask.shape[:2], -1)


def _positive(temperature: float | Sequence[float]) -> bool:
    return temperature > 0 if isinstance(temperature, (int, float)) else min(temperature) > 0


def _by_rank(scores: Tensor, step: TopK) -> Tensor | None:
    """Values that may be among the k best [B, N, V]: at least as large as the k-th largest maximum of groups of values."""
    k = [step.k] if isinstance(step.k, int) else list(step.k)
    groups = scores.shape[-1] // _GROUP
    if min(k) < 1 or 2 * max(k) > groups:
        return None
    best = scores[..., : groups * _GROUP].unflatten(-1, (groups, _GROUP)).amax(-1)
    bound = best.topk(max(k), -1).values[..., -1:]
    return scores >= bound - bound.abs() * _SLACK  # dividing by the temperature may make close scores equal


def _weights(scores: Tensor, history: History, named: dict[type, Any]) -> Tensor:
    """The weights of all values relative to the best one [B, N, V]."""
    scaled = named[Temperature](scores, history) if Temperature in named else scores
    return (scaled - scaled.amax(-1, keepdim=True)).exp_()


def _sum(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True, dtype=torch.float64)


def _by_weight(weights: Tensor, named: dict[type, Any]) -> Tensor:
    """Values that may stay after top-p or min-p [B, N, V].

    Top-p drops the least likely values that weigh (1 - p) together. Values of a weight of (1 - p) / V and less cannot weigh more than that.
    """
    if TopP not in named:
        return weights >= per_row(named[MinP].p, weights, "min_p") * (1 - _SLACK)
    share = (1 - per_row(named[TopP].p, weights, "top_p")) * (1 - _SLACK) / weights.shape[-1]
    return weights > _sum(weights) * share
