"""Tables of the true columns of masks."""

import torch
from torch import Tensor


def true_columns(mask: Tensor) -> tuple[Tensor, Tensor]:
    """List the columns where a mask is true, row by row. Synchronises: the width depends on the values.

    Args:
        mask: bool [C, V].

    Returns:
        The columns in ascending order, int64 [C, K], 0 after the last one of a row, and which entries are real, bool [C, K]. K is the
        largest number in a row, at least 1.
    """
    row, column = mask.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(mask))
    place = torch.arange(len(row), device=mask.device) - (counts.cumsum(0) - counts)[row]
    width = max(1, int(counts.max())) if len(counts) else 1
    table = torch.zeros(len(mask), width, dtype=torch.long, device=mask.device)
    table[row, place] = column
    return table, torch.arange(width, device=mask.device) < counts[:, None]
