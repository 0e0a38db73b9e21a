"""How many values every forward of a picture committed."""

import torch
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.core.records import Step


class CommittedRuns:
    """Records for every position how many values its forward committed.

    Args:
        raster: the grid.
        rows: number of pictures.
    """

    def __init__(self, raster: Raster, rows: int):
        self.raster, self.lengths = raster, [[] for _ in range(rows)]

    def __call__(self, step: Step) -> None:
        """Record a round."""
        for row, values in zip(self.lengths, step.committed.values, strict=True):
            row += [len(values)] * len(values)

    def picture(self) -> Tensor:
        """Return what was recorded, LongTensor [B, height, width]."""
        return self.raster.picture(torch.tensor(self.lengths))
