"""Tiny pictures with explicit distributions: tables under a grammar, guided tables, and rows that follow different ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Grammar, Raster
from mmspec.core.protocols import Drafter
from mmspec.core.records import Draft, validate
from mmspec.core.stopping import DefaultStopping
from tests.oracles.statistics import chi_square
from tests.oracles.tables import Table, TableTarget, encode

MOST = 5  # values a run commits: 243 outcomes of 3 values
OPEN = Raster.grid(2, 3, 3)
CLOSED = Raster.grid(2, 2, 2, row_end=2)  # row ends at positions 2 and 5
PICTURE = Raster.grid(2, 2, 2)  # of two values, for enumeration


def positions(table: Table) -> Tensor:
    """[codes, 1] how many values each history of `table` has behind its root."""
    count = torch.zeros(len(table.probs), 1, dtype=torch.long)
    edge = table.size
    while edge < len(table.probs):
        count[edge:] += 1
        edge *= table.size
    return count


def under(raster: Raster, table: Table) -> Table:
    """`table` with the controls where `raster` wants them."""
    scores = Grammar(raster).at((table.probs + 1e-9).log()[:, None], positions(table))
    return Table(scores[:, 0].softmax(-1))


def guided(table: Table, other: Table, scale: float) -> Table:
    """Classifier-free guidance: the distribution of logits l_u + scale (l_c - l_u)."""
    return Table((other.probs.log() + scale * (table.probs.log() - other.probs.log())).softmax(-1))


@dataclass(frozen=True)
class Rows(TableTarget):
    """Row r's history begins with value 1 + r mod `kinds`, so neighbouring rows follow different distributions. `kinds` < the table's
    values."""

    kinds: int = 2

    def begin(self, prompt: int):
        session, root = super().begin(prompt)
        return session, Draft.root(root.nodes[:, 0] + torch.arange(prompt) % self.kinds, root.start)

    def joint(self, kind: int, most: int) -> Tensor:
        """[V^most] distribution of the outputs of rows of `kind`."""
        mass, size = torch.ones(1, dtype=torch.float64), self.table.size
        for level in range(most):
            codes = torch.arange(size**level) + (1 + kind) * size**level
            mass = (mass[:, None] * self.table.probs[codes]).flatten()
        return mass


def cut(codes: Tensor, size: int, most: int, end: int) -> Tensor:
    """Outcomes in which `end` fills all that stands behind its first place, as one outcome each."""
    digits = codes[:, None] // size ** torch.arange(most - 1, -1, -1) % size
    return encode(torch.where((digits == end).cumsum(1) > 0, end, digits), size)


def outputs(target, drafter: Drafter, rule, rows: int, window: int, *, most: int = MOST, seed: int = 3, ends=(), check=False) -> Tensor:
    """[rows, most] what whole runs commit; what stands behind an end is filled with it."""
    stopping, noise = DefaultStopping(rows, most, ends), Noise.from_seed(seed, rows)
    for step in decode(target, drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(window - 1)):
        if check:
            validate(step.draft)
    return torch.tensor([values + [values[-1]] * (most - len(values)) for values in stopping.outputs])


def p_value(target: Rows, drafter: Drafter, rule, window: int, *, rows: int = 16_000, most: int = MOST, seed: int = 3, end=None) -> float:
    """The least p-value of any kind of row: do whole runs follow the target's distribution?"""
    size, ends = target.table.size, () if end is None else (end,)
    codes = encode(outputs(target, drafter, rule, rows, window, most=most, seed=seed, ends=ends), size)
    found = []
    for kind in range(target.kinds):
        distribution = target.joint(kind, most)
        if end is not None:
            distribution = torch.zeros_like(distribution).index_add_(0, cut(torch.arange(len(distribution)), size, most, end), distribution)
        found.append(chi_square(codes[kind :: target.kinds], distribution))
    return min(found)


def tables(seed: int, *, sharp: float = 0.7, size: int = 3, length: int = 7) -> Table:
    return Table.random(size, length, seed, sharp=sharp)


WORLDS: dict[str, tuple[Rows, Raster, int | None]] = {
    "plain": (Rows(tables(1)), OPEN, None),
    "guided-top-2": (Rows(guided(tables(1), tables(2), 1.5).truncated(2)), OPEN, None),
    "row-ends": (Rows(under(CLOSED, tables(3))), CLOSED, None),
    "early-end": (Rows(tables(4)), OPEN, 0),
}
"""Targets with their rasters and end values."""
