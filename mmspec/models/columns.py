"""Whether the columns of a forward are independent, and the module where they are not.

A drafted token is scored in one forward with others, in plain decoding in a forward of its own. Both are equal where a column's logits do
not depend on what later columns and other rows hold, nor on the number of columns. One activation scale for a whole tensor, statistics of a
batch, and hooks that change the last position depend on them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.records import Draft
from mmspec.models.alterations import full_name
from mmspec.models.compat import hooks_of
from mmspec.models.module_copy import is_copy

REPEATED, REPEATED_ROUGHLY = 1e-4, 5e-3
"""Allowed difference between two identical forwards, as a share of the logits' spread, in float32 and in lower precision: none is random,
but some sums have no fixed order."""
EXACT = 1e-3
"""Allowed difference between forwards of different shapes in float32."""
ROUGHEST = 0.5
"""Where arithmetic is coarse, as that of int8: a difference beyond this is none of rounding."""
COLUMNS = 7
"""Columns of a forward: a number that no width of a model is likely to be."""
_KEPT = 3  # columns that stay as they are where later ones change
_TRIES = 4
_WIDTHS = (COLUMNS, 6, 5, 4)  # of the forwards in which values change their places: a kernel's own edges are not at the end of each


class ColumnProbe(Protocol):
    """A model whose columns can be scored.

    Attributes:
        model: a copy of it, on which hooks are put.
        batches: rows that are scored together; all batches have the first row in common, and each has as many as the first batch.
        single: rows that are scored one column after the other, for comparison.
    """

    model: Any

    @property
    def batches(self) -> Sequence[tuple[int, ...]]:
        """See above."""
        ...

    @property
    def single(self) -> tuple[int, ...]:
        """See above."""
        ...

    def draw(self, rows: int, columns: int) -> Tensor:
        """Draw values [rows, columns, *value] that may be drafted."""
        ...

    def scores(self, rows: tuple[int, ...], *parts: Tensor) -> Tensor:
        """Score chains behind the prompts of `rows`.

        Args:
            rows: the rows.
            parts: chains [B, M, *value] of a forward each. Each stands behind the first value of the one before.

        Returns:
            Logits [B, T, V] of all parts, one after the other.
        """
        ...


@dataclass(frozen=True)
class Dependence:
    """A difference between two forwards of the same column.

    Attributes:
        away: the difference of its logits, as a share of their spread.
        cause: what the column depends on, in words.
        place: the first module whose outputs differ, in words; empty if none was found.
    """

    away: float
    cause: str
    place: str

    def line(self, name: str) -> str:
        """Describe it, for a model of class `name`."""
        line = f"{name}: the logits of a drafted token change by {self.away:.2g} of their spread with {self.cause}"
        return f"{line}, first in {self.place}" if self.place else line


def dependence(probe: ColumnProbe, equal: float, allowed: float, rounds: bool, draws: int = 2) -> Dependence | None:
    """Look for columns that depend on others.

    Args:
        probe: of a model.
        equal: allowed difference between forwards of one shape: none but that of sums without a fixed order.
        allowed: allowed difference between forwards of different shapes: rounding.
        rounds: the model's arithmetic rounds coarsely, as int8 does: where a last bit moves a value to the next step, a few columns differ
            by much. A dependence shows in most columns each time, so it is the median of their least differences in some draws that counts.
        draws: how often other columns and rows are drawn anew.

    Returns:
        The first dependence found; None if there is none.
    """
    rows, *others = probe.batches
    count = len(rows)
    tokens = probe.draw(count, COLUMNS)
    run = partial(probe.scores, rows, tokens)
    shared = run()
    for _ in range(draws):
        later = partial(probe.scores, rows, torch.cat([tokens[:, :_KEPT], probe.draw(count, COLUMNS - _KEPT)], 1))
        away = max(differences(shared[:, :_KEPT], later()[:, :_KEPT]))
        if away > equal:
            return Dependence(away, "what is drafted after it", _place(probe, run, later, count, _KEPT, equal))
    for batch in others[:draws]:
        other = partial(probe.scores, batch, torch.cat([tokens[:1], probe.draw(count - 1, COLUMNS)]))
        away = max(differences(shared[:1], other()[:1]))
        if away > equal:
            return Dependence(away, "the other rows of a batch", _place(probe, run, other, 1, COLUMNS, equal))
    count = len(probe.single)
    edges = [float("inf")] * 2
    for columns in _WIDTHS:
        parts = _shifted(probe.draw(count, columns + 1))
        one, other = probe.scores(probe.single, *parts).split(columns, 1)
        moved: list[float] = torch.tensor(differences(other[:, :-1], one[:, 1:])).view(count, -1).amax(0).tolist()
        edges = [min(edges[0], moved[0]), min(edges[1], moved[-1])]
        if max(edges) <= equal:
            break
    else:
        parts = _shifted(probe.draw(count, COLUMNS + 1))
        run, other = partial(probe.scores, probe.single, parts[0]), partial(probe.scores, probe.single, *parts)
        return Dependence(max(edges), "its place among those scored with it", _place(probe, run, other, count, COLUMNS, equal, shift=1))
    least = [float("inf")] * (count * COLUMNS)
    for _ in range(_TRIES if rounds else 1):
        tokens = probe.draw(count, COLUMNS)
        run, alone = partial(probe.scores, probe.single, tokens), partial(probe.scores, probe.single, *tokens.split(1, 1))
        least = [min(each) for each in zip(least, differences(run(), alone()), strict=True)]
        if (away := median(least) if rounds else max(least)) <= allowed:
            return None
    return Dependence(away, "how many others are scored with it", _place(probe, run, alone, count, COLUMNS, allowed))


def _shifted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Two chains of one length, of which the second begins at the second value of the first."""
    return tokens[:, :-1], tokens[:, 1:]


def chain_scores(session: Any, pending: Draft, parts: Sequence[Tensor], read: Callable[[Any, int], Tensor]) -> Tensor:
    """Score chains behind the prompts of an open session, which is not used afterwards; see `ColumnProbe.scores`.

    Args:
        session, pending: what a target's `begin` returned.
        parts: the chains.
        read: returns logits [B, M, V] of distributions [B, M], given these and M.

    Returns:
        Logits [B, T, V].
    """
    session.score(pending)  # caches the prompts
    found, rows, device = [], len(parts[0]), parts[0].device
    for part in parts:
        session.commit(torch.zeros(rows, 1, dtype=torch.long, device=device), 1)
        pending, drafted = Draft.root(part[:, 0], pending.start + 1), part[:, 1:]
        parents = torch.arange(drafted.shape[1], device=device).expand(rows, -1).clone()
        draft = pending.extend(drafted, parents, linear=True, width=1, levels=None) if drafted.shape[1] else pending
        found.append(read(session.score(draft).p, part.shape[1]))
    return torch.cat(found, 1)


def difference(logits: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over the vocabulary, divided by the standard deviation of `expected`. Infinite for NaN."""
    finite = torch.isfinite(expected)
    if logits.shape != expected.shape or not torch.equal(finite, torch.isfinite(logits)) or expected.isnan().any() or not finite.any():
        return float("inf")
    away = (logits[finite].double() - expected[finite].double()).square().mean().sqrt()
    return (away / expected[finite].double().std(correction=0).clamp_min(1e-9)).item()


def described(name: str, module: Any) -> str:
    """A module: its place in a model, its class, and whether it has hooks or a forward of its own."""
    kind = type(module)
    what = kind.__name__ if kind.__module__.startswith(("torch.nn.modules.", "transformers.models.")) else full_name(kind)
    own = ", which has a forward hook" if hooks_of(module) else ", which has a forward of its own" if "forward" in vars(module) else ""
    return f"{name or 'the model'} ({what}{own})"


def differences(logits: Tensor, expected: Tensor) -> list[float]:
    """`difference` of every column of logits [B, T, V]."""
    return [difference(a.float(), b.float()) for a, b in zip(logits.flatten(0, 1), expected.flatten(0, 1), strict=True)]


def _place(
    probe: ColumnProbe, one: Callable[[], Tensor], other: Callable[[], Tensor], rows: int, columns: int, allowed: float, shift: int = 0
) -> str:
    """The first module whose outputs for the first `rows` and `columns` differ between two runs; empty if there is none.

    A run ends in a forward of `COLUMNS` columns or in as many of one. Column c of the second one is column c + `shift` of the first.
    """
    first, second = _outputs(probe, one), _outputs(probe, other)
    batch = len(first[""][-1])
    for name, calls in first.items():
        layout = _layout(calls[-1], batch)
        if layout is None or name not in second:
            continue
        often = max(1, len(calls) // 2)  # calls a forward: the prompt's and the columns'
        others = second[name][-COLUMNS * often :][often - 1 :: often]
        parts = [_by_column(each, layout) for each in others if each.dim() == calls[-1].dim()]
        if not parts:
            continue
        a = _by_column(calls[-1], layout)
        b = parts[-1] if parts[-1].shape == a.shape else torch.cat([part for part in parts if part.shape[2] == a.shape[2]], 1)
        a, b = a[:, shift:], b[:, : b.shape[1] - shift]
        if a.shape == b.shape and difference(b[:rows, :columns].float(), a[:rows, :columns].float()) > allowed:
            return described(name, probe.model.get_submodule(name))
    return ""


def _outputs(probe: ColumnProbe, run: Callable[[], Tensor]) -> dict[str, list[Tensor]]:
    """What every module of a probe's copy returns during `run`, call by call: modules in the order in which they end, "" for the logits."""
    found: dict[str, list[Tensor]] = {}

    def noted(name: str, module: Any, args: Any, output: Any) -> None:
        while isinstance(output, (tuple, list, Mapping)) and output:
            output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
        if isinstance(output, Tensor):
            found.setdefault(name, []).append(output.detach().clone())

    with ExitStack() as hooks:
        for name, module in probe.model.named_modules():
            if name and is_copy(module):
                hooks.callback(module.register_forward_hook(partial(noted, name)).remove)
        return found | {"": [run()]}


def _layout(output: Tensor, batch: int) -> tuple[str, int] | None:
    """Where an output holds its columns: "second" axis, "third" axis, or "first" axis together with the rows; and its number of rows, those
    of a prompt counted as often as the model reads it, twice under guidance.
    """
    size = output.shape
    if len(size) > 1 and size[0] % batch == 0 and size[1] == COLUMNS:
        return "second", size[0]
    if len(size) == 4 and size[0] % batch == 0 and size[2] == COLUMNS:
        return "third", size[0]
    return ("first", size[0] // COLUMNS) if len(size) > 1 and size[0] % (batch * COLUMNS) == 0 else None


def _by_column(output: Tensor, layout: tuple[str, int]) -> Tensor:
    """An output as [B, T, *]."""
    axis, rows = layout
    if axis == "first":
        return output.flatten(1).unflatten(0, (rows, -1))
    return output.transpose(1, 2).flatten(2) if axis == "third" else output.unsqueeze(-1).flatten(2)
