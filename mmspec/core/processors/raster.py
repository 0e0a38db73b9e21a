"""Rasters: outputs that are grids read row by row, with forced control values between and after the cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Pathless, ban
from mmspec.utils.devices import to_device

FREE = -1
"""In `forced`: any code is allowed here. In `left` and `up`: there is no such neighbour."""


@dataclass(frozen=True)
class Raster:
    """The T output positions of one image. Values below `codes` are image codes, the others controls, such as a row's end.

    `left` and `up` are output positions, too, so neighbours are found without knowing where the controls are.
    """

    codes: int
    forced: tuple[int, ...]  # [T] the control that must stand at each position, or FREE
    left: tuple[int, ...]  # [T] the cell to the left, or FREE
    up: tuple[int, ...]  # [T] the cell above, or FREE
    cells: tuple[int, ...]  # [height * width] the positions of the picture's cells, row by row
    height: int
    width: int

    @staticmethod
    def grid(height: int, width: int, codes: int, *, row_end: int | None = None, tail: Sequence[int] = ()) -> "Raster":
        """Make `height` rows of `width` codes, each followed by the control `row_end` if given, and `tail` controls at the end."""
        if min(height, width, codes) < 1:
            raise ValueError(f"a grid of {height} x {width} cells over {codes} codes: give at least 1 of each")
        step = width + (row_end is not None)
        forced, left, up, cells = [], [], [], []
        for position in range(height * step):
            row, column = divmod(position, step)
            cell = column < width
            forced.append(FREE if cell or row_end is None else row_end)
            left.append(position - 1 if cell and column else FREE)
            up.append(position - step if cell and row else FREE)
            cells += [position] if cell else []
        none = [FREE] * len(tail)
        return Raster(codes, (*forced, *tail), (*left, *none), (*up, *none), tuple(cells), height, width)

    def behind(self, before: "Raster") -> "Raster":
        """Concatenate two rasters in one output: `before` is written first; the image is this one."""
        shift = before.length

        def moved(positions):
            return tuple(p if p == FREE else p + shift for p in positions)

        return Raster(
            self.codes,
            before.forced + self.forced,
            before.left + moved(self.left),
            before.up + moved(self.up),
            moved(self.cells),
            self.height,
            self.width,
        )

    @property
    def length(self) -> int:
        """Output positions, controls included."""
        return len(self.forced)

    @cached_property
    def controls(self) -> int:
        """How many control values there are."""
        return max((value - self.codes + 1 for value in self.forced if value != FREE), default=0)

    @property
    def values(self) -> int:
        """Codes and controls: the width of every distribution."""
        return self.codes + self.controls

    def picture(self, sequences: Tensor) -> Tensor:
        """Select the codes [B, height, width] of outputs [B, T]."""
        cells = torch.tensor(self.cells, device=sequences.device)
        return sequences[:, cells].unflatten(1, (self.height, self.width))


@lru_cache(maxsize=64)
def _forced(forced: tuple[int, ...], device: torch.device) -> Tensor:
    """[T] `forced` on a device, cached, since every round reads it."""
    return to_device(forced, device)


@dataclass(frozen=True)
class Grammar(Pathless):
    """The processor of a raster: controls stand where they are forced, and nowhere else."""

    raster: Raster

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return self.at(scores, history.position)

    def at(self, scores: Tensor, position: Tensor) -> Tensor:
        """Process `scores` [B, N, V] at output positions [B, N]: a forced control becomes a point mass, elsewhere controls are banned."""
        if self.raster.controls == 0:
            return scores
        forced = self._forced_at(position)[..., None]
        value = torch.arange(scores.shape[-1], device=scores.device)
        free = ban(scores, value >= self.raster.codes)
        point = torch.where(value == forced, 0.0, -torch.inf).to(scores.dtype)
        return torch.where(forced == FREE, free, point)

    def forced(self, values: Tensor, position: Tensor) -> Tensor:
        """Return `values` [B, N] at output positions [B, N], the forced controls in their places."""
        if self.raster.controls == 0:
            return values
        forced = self._forced_at(position)
        return torch.where(forced == FREE, values, forced)

    def _forced_at(self, position: Tensor) -> Tensor:
        """The control that is forced at each position, or FREE."""
        table = _forced(self.raster.forced, position.device)
        return table[position.clamp(max=len(table) - 1)]
