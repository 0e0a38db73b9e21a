"""Distributions after top-k, top-p and min-p on their support: the values left are found without sorting the vocabulary.

The last steps of a pipeline are a temperature and truncations. The values that may stay are selected by a bound on their scores that is
cheap to compute and never leaves out a value that stays; the truncations then run on those values only. The result is that of the whole
table, bit for bit. The bound is

- for top-k, the k-th largest maximum of groups of values;
- for top-p, the group maximum at which the largest ones add up to p: all smaller values then weigh at most 1 - p together, and those are
  what top-p drops. Where too few maxima add up to p, a weight of (1 - p) / V;
- for min-p, the score of that share of the best value's weight.

Top-p needs the sum of all weights. The groups with the largest maxima are summed; of the others the maxima alone, which bound their sums
from both sides. Only where these bounds leave open which values stay, all weights are summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.deferred import DeferredCategorical
from mmspec.core.distributions.sparse import SparseCategorical
from mmspec.core.gumbel import LARGE
from mmspec.core.masks import GROUP, at_least, in_groups, true_columns
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import History, Processor, per_row
from mmspec.core.processors.pipeline import MinP, Pipeline, Temperature, TopK, TopP

_ORDER = (Temperature, TopK, TopP, MinP)
_SHARE = 4  # with more than a quarter of the values left, tables are used
_LIKELY = (256, 2048)  # groups whose maxima may make up the mass of top-p
_WIDE = 256  # ids from which on those that do not stay are left out
_SLACK = 1e-5  # above the rounding errors of sums and exponentials in single precision


def distribution_of(processors: Any, scores: Tensor, history: History, deferred: bool = False) -> Any:
    """Apply processors to scores.

    Args:
        processors: a `Pipeline`, or another callable that takes and returns scores.
        scores: [B, N, V].
        history: the paths of the nodes.
        deferred: truncate a large vocabulary when a distribution is asked for.

    Returns:
        Distributions [B, N] (of half the rows after `models.guidance.Guided`): on their support where a large vocabulary is truncated on
        a CPU, else as a table. On a GPU the width of a support would have to be read by the host.
    """
    if isinstance(processors, RowPipelines) and processors.shared is not None:
        processors = processors.shared
    if not isinstance(processors, Pipeline):
        return Categorical(processors(scores, history))
    first, last = _split(processors.steps)
    scores, history = processors.before(scores, history)
    for step in first:
        scores = step(scores, history)
    if not last or scores.device.type != "cpu" or scores.shape[-1] < LARGE:
        return Categorical(_after(last, scores, history))
    make = partial(_truncated, history=history, steps=last)
    return DeferredCategorical(scores, make) if deferred and scores.shape[1] > 1 else make(scores)


def _truncated(scores: Tensor, rows: Tensor | None = None, *, history: History, steps: Sequence[Processor]) -> Categorical:
    """The distributions [R, N] after the steps, which read no paths; `scores` [R, N, V] are of `rows` [R], or of all rows."""
    if rows is not None:
        steps = [_of_rows(step, rows) for step in steps]
    found = _on_support(scores, history, steps)
    return Categorical(_after(steps, scores, history)) if found is None else found


def _after(steps: Sequence[Processor], scores: Tensor, history: History) -> Tensor:
    for step in steps:
        scores = step(scores, history)
    return scores


def _of_rows(step: Any, rows: Tensor) -> Processor:
    """A step whose settings, where there is one per row, are those of `rows`."""
    chosen = {name: [value[row] for row in rows.tolist()] for name, value in vars(step).items() if not isinstance(value, (int, float))}
    return replace(step, **chosen) if chosen else step


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
    temperature = named.pop(Temperature, None)
    if temperature is not None and not _positive(temperature.temperature):
        return None
    table = _Table.of(scores, 1.0 if temperature is None else temperature.temperature)
    bound, total = _bound(table, named)
    if bound is None:
        return None
    ids, real = at_least(table.flat, table.best, table.unscaled(bound))
    if ids.shape[-1] * _SHARE > scores.shape[-1]:
        return None
    shape = (*scores.shape[:2], -1)
    kept = table.flat.gather(-1, ids).masked_fill_(~real, -torch.inf).view(shape)
    kept = kept if temperature is None else temperature(kept, history)
    for step in named.values():
        kept = _nucleus(step, kept, table, total) if isinstance(step, TopP) and total is not None else step(kept, history)
    return _compact(ids.masked_fill_(~real, scores.shape[-1]), kept.flatten(0, 1), shape, scores.shape[-1])


def _positive(temperature: float | Sequence[float]) -> bool:
    return temperature > 0 if isinstance(temperature, (int, float)) else min(temperature) > 0


@dataclass(frozen=True)
class _Table:
    """The scores of C distributions [C, V] before the temperature.

    Args:
        flat: the scores.
        best: the largest of each group of values [C, V // GROUP].
        top: the largest of all [C, 1].
        degree: temperatures, one or [C, 1].
        nodes: distributions of each row.
    """

    flat: Tensor
    best: Tensor
    top: Tensor
    degree: float | Tensor
    nodes: int

    @staticmethod
    def of(scores: Tensor, temperature: float | Sequence[float]) -> "_Table":
        flat, nodes = scores.flatten(0, 1), scores.shape[1]
        best = in_groups(flat).amax(-1)
        top, rest = best.amax(-1, keepdim=True), flat[:, best.shape[1] * GROUP :]
        top = torch.maximum(top, rest.amax(-1, keepdim=True)) if rest.shape[1] else top
        found = _Table(flat, best, top, 1.0, nodes)
        degree = found.each(temperature, "temperature")
        return replace(found, degree=degree.clamp(min=1e-6) if isinstance(degree, Tensor) else max(degree, 1e-6))

    def each(self, value: float | Sequence[float], name: str) -> float | Tensor:
        """A setting for every distribution, one or [C, 1]."""
        if isinstance(value, (int, float)):
            return float(value)
        rows = len(self.flat) // self.nodes
        given = per_row(value, self.flat.view(rows, self.nodes, -1), name)
        return torch.as_tensor(given, dtype=self.flat.dtype).expand(rows, self.nodes, 1).reshape(-1, 1)

    def mass(self) -> Tensor:
        """The sums of all weights relative to the best value's [C, 1], in double precision. One distribution at a time: its weights stay
        in the cache."""
        weights, top = torch.empty_like(self.flat[0]), self.top / self.degree
        degrees = self.degree if isinstance(self.degree, Tensor) else [self.degree] * len(top)
        rows = zip(self.flat, degrees, top, strict=True)
        sums = [torch.div(scores, degree, out=weights).sub_(most).exp_().sum(dtype=torch.float64) for scores, degree, most in rows]
        return torch.stack(sums)[:, None]

    def mass_bounds(self, relative: Tensor, likely: Tensor) -> "_Bounds":
        """Bounds of `mass`: the values of the `likely` groups [C, L] are summed, and of the others what their maxima tell."""
        weights, tail = relative.exp(), self.flat[:, self.best.shape[1] * GROUP :]
        values = in_groups(self.flat).gather(1, likely[..., None].expand(-1, -1, GROUP)).flatten(1)
        known = torch.cat([values, tail], 1) if tail.shape[1] else values
        inside = (known / self.degree).sub_(self.top / self.degree).exp_().sum(-1, keepdim=True)
        rest = weights.scatter_(1, likely, 0.0).sum(-1, keepdim=True)
        return _Bounds((inside + rest) * (1 - _SLACK), (inside + GROUP * rest) * (1 + _SLACK))

    def relative(self) -> Tensor:
        """The groups' logarithmic weights relative to the best value's [C, V // GROUP]."""
        return self.best / self.degree - self.top / self.degree

    def unscaled(self, bound: Tensor) -> Tensor:
        """The score of a logarithmic weight relative to the best value's [C, 1], and below it by more than all rounding errors."""
        return self.top + self.degree * (bound - _SLACK * (1 + bound.abs())) - 1e-6 * self.top.abs()


@dataclass(frozen=True)
class _Bounds:
    """Bounds of the sums of all weights [C, 1]."""

    least: Tensor
    most: Tensor


def _bound(table: _Table, named: dict[type, Any]) -> tuple[Tensor | None, _Bounds | None]:
    """A logarithmic weight that all values that stay have at least [C, 1], None where none is known; and for top-p alone the sums."""
    if TopK in named:
        k = [named[TopK].k] if isinstance(named[TopK].k, int) else list(named[TopK].k)
        known = min(k) >= 1 and 2 * max(k) <= table.best.shape[1]
        return (table.relative().topk(max(k), -1).values[:, -1:] if known else None), None
    if TopP not in named:
        return torch.as_tensor(table.each(named[MinP].p, "min_p")).log(), None
    return _bound_of_top_p(table, table.each(named[TopP].p, "top_p"))


def _bound_of_top_p(table: _Table, p: float | Tensor) -> tuple[Tensor, _Bounds]:
    relative = table.relative()
    for count in _LIKELY:
        likely = relative.topk(min(count, relative.shape[1]), -1)
        total = table.mass_bounds(relative, likely.indices)
        reached = likely.values.exp().cumsum(-1) >= p * total.most * (1 + _SLACK)
        if reached[:, -1].all():
            break
    dropped = (1 - p).clamp(min=_SLACK) if isinstance(p, Tensor) else max(1 - p, _SLACK)
    rare = (total.least * (dropped / table.flat.shape[1])).log()
    return torch.where(reached[:, -1:], likely.values.gather(-1, reached.long().argmax(-1, keepdim=True)), rare), total


def _nucleus(step: TopP, kept: Tensor, table: _Table, total: _Bounds) -> Tensor:
    """Apply top-p to `kept` [B, N, K]. All weights are summed where the bounds of their sum do not decide."""
    index, below = step.ranked(kept)

    def over(sums: Tensor) -> Tensor:
        return step.over(below + (sums.double().view(*kept.shape[:2], 1) - below[..., -1:]).clamp_(min=0))

    found = over(total.most)
    if ((found > 0) != (over(total.least) > 0)).any():
        found = over(table.mass())
    return step.cut(kept, index, found)


def _compact(ids: Tensor, kept: Tensor, shape: tuple[int, ...], size: int) -> SparseCategorical:
    """The distributions of `ids` [C, K] with scores `kept`; without those of no probability where there are many ids."""
    if ids.shape[-1] > _WIDE:
        place, real = true_columns(kept > -torch.inf)
        ids = torch.where(real, ids.gather(-1, place), size)
        kept = torch.where(real, kept.gather(-1, place), -torch.inf)
    return SparseCategorical(ids.view(shape), kept.view(shape), size)
