"""Whether the columns of a forward are independent, and the module where they are not.

A drafted token is scored in one forward with others, in plain decoding in a forward of its own. Both are equal where a column's logits do
not depend on what later columns and other rows hold, nor on the number of columns. One activation scale for a whole tensor, statistics of a
batch, and hooks that change the last position depend on them.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mmspec.models.compat import hooks_of
from mmspec.models.module_copy import is_copy
from mmspec.models.proof.alterations import full_name
from mmspec.models.proof.probes import Probe, difference

COLUMNS = 7
"""Columns of a forward: a number that no width of a model is likely to be."""
_KEPT = 3  # columns that stay as they are where later ones change
_TRIES = 4
_ROW, _BEFORE, _NEIGHBOURS = 1, 0, (2, 0)  # rows of a probe


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


def dependence(probe: Probe, equal: float, allowed: float, rounds: bool, draws: int = 2) -> Dependence | None:
    """Look for columns that depend on others.

    Args:
        probe: of a model, with three prompts, the first and the last of one length.
        equal: allowed difference between forwards of one shape: none but that of sums without a fixed order.
        allowed: allowed difference between forwards of different shapes: rounding.
        rounds: the model's arithmetic rounds coarsely, as int8 does: where a last bit moves a value to the next step, a few columns differ
            by much. A dependence shows in most columns each time, so it is the median of their least differences in some draws that counts.
        draws: how often other columns and rows are drawn anew.

    Returns:
        The first dependence found; None if there is none.
    """
    tokens, rows = probe.draw(2, COLUMNS), (_ROW, _BEFORE)
    run = partial(probe.scores, rows, tokens)
    shared = run()
    for _ in range(draws):
        later = partial(probe.scores, rows, torch.cat([tokens[:, :_KEPT], probe.draw(2, COLUMNS - _KEPT)], 1))
        away = max(differences(shared[:, :_KEPT], later()[:, :_KEPT]))
        if away > equal:
            return Dependence(away, "what is drafted after it", _place(probe, run, later, 2, _KEPT, equal))
    for neighbour in _NEIGHBOURS[:draws]:
        other = partial(probe.scores, (_ROW, neighbour), torch.cat([tokens[:1], probe.draw(1, COLUMNS)]))
        away = max(differences(shared[:1], other()[:1]))
        if away > equal:
            return Dependence(away, "the other rows of a batch", _place(probe, run, other, 1, COLUMNS, equal))
    least = [float("inf")] * COLUMNS
    for _ in range(_TRIES if rounds else 1):
        tokens = probe.draw(1, COLUMNS)
        run, alone = (partial(probe.scores, (_ROW,), tokens, together) for together in (True, False))
        least = [min(each) for each in zip(least, differences(run(), alone()), strict=True)]
        if (away := median(least) if rounds else max(least)) <= allowed:
            return None
    return Dependence(away, "how many others are scored with it", _place(probe, run, alone, 1, COLUMNS, allowed))


def described(name: str, module: Any) -> str:
    """A module: its place in a model, its class, and whether it has hooks or a forward of its own."""
    kind = type(module)
    what = kind.__name__ if kind.__module__.startswith(("torch.nn.modules.", "transformers.models.")) else full_name(kind)
    own = ", which has a forward hook" if hooks_of(module) else ", which has a forward of its own" if "forward" in vars(module) else ""
    return f"{name or 'the model'} ({what}{own})"


def differences(logits: Tensor, expected: Tensor) -> list[float]:
    """`difference` of every column of logits [B, T, V]."""
    return [difference(a.float(), b.float()) for a, b in zip(logits.flatten(0, 1), expected.flatten(0, 1), strict=True)]


def _place(probe: Probe, one: Callable[[], Tensor], other: Callable[[], Tensor], rows: int, columns: int, allowed: float) -> str:
    """The first module whose outputs for the first `rows` and `columns` differ between two runs; empty if there is none.

    A run ends in a forward of `COLUMNS` columns or in as many of one.
    """
    first, second = _outputs(probe, one), _outputs(probe, other)
    for name, calls in first.items():
        batch, layout = first[""][-1].shape[0], _layout(calls[-1], first[""][-1].shape[0])
        if layout is None or name not in second:
            continue
        often = max(1, len(calls) // 2)  # calls a forward: the prompt's and the columns'
        parts = [_by_column(each, layout, batch) for each in second[name][-COLUMNS * often :][often - 1 :: often]]
        a = _by_column(calls[-1], layout, batch)
        b = parts[-1] if parts[-1].shape == a.shape else torch.cat([part for part in parts if part.shape[2] == a.shape[2]], 1)
        if a.shape == b.shape and difference(a[:rows, :columns].float(), b[:rows, :columns].float()) > allowed:
            return described(name, probe.model.get_submodule(name))
    return ""


def _outputs(probe: Probe, run: Callable[[], Tensor]) -> dict[str, list[Tensor]]:
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


def _layout(output: Tensor, batch: int) -> str | None:
    """Where an output holds its columns: "second" axis, "third" axis, or "first" axis together with the rows."""
    size = output.shape
    if len(size) > 1 and size[0] == batch and size[1] == COLUMNS:
        return "second"
    if len(size) == 4 and size[0] == batch and size[2] == COLUMNS:
        return "third"
    return "first" if len(size) == 2 and size[0] == batch * COLUMNS else None


def _by_column(output: Tensor, layout: str, batch: int) -> Tensor:
    """An output as [B, T, *]."""
    if layout == "first":
        return output.unflatten(0, (batch, -1))
    return output.transpose(1, 2).flatten(2) if layout == "third" else output.unsqueeze(-1).flatten(2)
