"""Distributions after top-k, top-p and min-p on their support: the values left are found without sorting the vocabulary.

The last steps of a pipeline are a temperature and truncations. The values that may stay are selected by a bound on their scores that is
cheap to compute and never leaves out a value that stays; the truncations then run on those values only. The result is that of the whole
table, bit for bit. The bound is

- for top-k, the k-th largest maximum of groups of values;
- for top-p, the group maximum at which the largest ones add up to p: all smaller values then weigh at most 1 - p together, and those are
  what top-p drops. Where too few maxima add up to p, a weight of (1 - p) / V;
- for min-p, the score of that share of the best value's weight.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.sparse import SparseCategorical
from mmspec.core.gumbel import LARGE
from mmspec.core.masks import at_least, in_groups, true_columns
from mmspec.core.processors.history import History, Processor, per_row
from mmspec.core.processors.pipeline import MinP, Pipeline, Temperature, TopK, TopP

_ORDER = (Temperature, TopK, TopP, MinP)
_SHARE = 4  # with more than a quarter of the values left, tables are used
_LIKELY = 256  # groups whose maxima may make up the mass of top-p
_SLACK = 1e-5  # above the rounding errors of sums and exponentials in single precision


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
    scaled = named.pop(Temperature)(scores, history) if Temperature in named else scores
    flat = scaled.flatten(0, 1)
    best = in_groups(flat).amax(-1)
    weights = None if TopK in named or TopP not in named else (flat - flat.amax(-1, keepdim=True)).exp_()
    bound = _bound(best, weights, scaled, named)
    if bound is None:
        return None
    ids, real = at_least(flat, best, bound)
    if ids.shape[-1] * _SHARE > scores.shape[-1]:
        return None
    kept = flat.gather(-1, ids).masked_fill_(~real, -torch.inf).view(*scores.shape[:2], -1)
    for step in named.values():
        kept = _nucleus(step, kept, weights, ids, real) if isinstance(step, TopP) and weights is not None else step(kept, history)
    place, real = true_columns((kept > -torch.inf).flatten(0, 1))
    ids = torch.where(real, ids.gather(-1, place), scores.shape[-1])
    kept = torch.where(real, kept.flatten(0, 1).gather(-1, place), -torch.inf)
    return SparseCategorical(ids.view(*scores.shape[:2], -1), kept.view(*scores.shape[:2], -1), scores.shape[-1])


def _positive(temperature: float | Sequence[float]) -> bool:
    return temperature > 0 if isinstance(temperature, (int, float)) else min(temperature) > 0


def _bound(best: Tensor, weights: Tensor | None, scaled: Tensor, named: dict[type, Any]) -> Tensor | None:
    """A score that all values that stay have at least [C, 1]; None where none is known."""
    if TopK in named:
        k = [named[TopK].k] if isinstance(named[TopK].k, int) else list(named[TopK].k)
        return best.topk(max(k), -1).values[:, -1:] if min(k) >= 1 and 2 * max(k) <= best.shape[1] else None
    rows, top = scaled.shape[1], best.amax(-1, keepdim=True)
    if weights is None:
        return top + _each_row(named[MinP].p, scaled, rows, "min_p").log() - _SLACK
    p, total = _each_row(named[TopP].p, scaled, rows, "top_p"), weights.sum(-1, keepdim=True)
    rare = top + ((1 - p).clamp(min=_SLACK) * total / weights.shape[1]).log() - _SLACK
    likely = best.topk(min(_LIKELY, best.shape[1]), -1).values
    reached = (likely - top).exp().cumsum(-1) >= p * total * (1 + _SLACK)
    return torch.where(reached.any(-1, keepdim=True), likely.gather(-1, reached.long().argmax(-1, keepdim=True)), rare)


def _each_row(value: float | Sequence[float], scaled: Tensor, nodes: int, name: str) -> Tensor:
    """A setting for every distribution [C, 1]."""
    return torch.as_tensor(per_row(value, scaled, name), dtype=scaled.dtype).expand(len(scaled), nodes, 1).reshape(-1, 1)


def _nucleus(step: TopP, kept: Tensor, weights: Tensor, ids: Tensor, real: Tensor) -> Tensor:
    """Apply top-p to `kept` [B, N, K], the scores of values `ids` [C, K], given the weights of all values [C, V].

    The sum of the weights is computed in single precision, and again in double precision where it decides.
    """
    own = weights.gather(-1, ids).masked_fill_(~real, 0).sum(-1, keepdim=True, dtype=torch.float64)
    index, below = step.ranked(kept)
    rest = (weights.sum(-1, keepdim=True).double() - own).clamp_(min=0).view(*kept.shape[:2], 1)
    over = step.over(below + rest)
    if (over.abs() <= _SLACK * (below + rest)[..., -1:]).any():
        rest = (weights.sum(-1, keepdim=True, dtype=torch.float64) - own).view(*kept.shape[:2], 1)
        over = step.over(below + rest)
    return step.cut(kept, index, over)
