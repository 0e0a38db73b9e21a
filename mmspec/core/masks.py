"""Finding the few true columns of masks, and the few large values of tables."""

import torch
from torch import Tensor

GROUP = 32
"""Values whose maximum is compared first."""


def true_columns(mask: Tensor) -> tuple[Tensor, Tensor]:
    """List the columns where a mask is true, row by row. Synchronises: the width depends on the values.

    Args:
        mask: bool [C, V].

    Returns:
        The columns in ascending order, int64 [C, K], 0 after the last one of a row, and which entries are real, bool [C, K]. K is the
        largest number in a row, at least 1.
    """
    if len(mask) == 1:
        (column,) = mask[0].nonzero(as_tuple=True)
        return (column[None], mask.new_ones(1, len(column))) if len(column) else (column.new_zeros(1, 1), mask.new_zeros(1, 1))
    row, column = mask.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(mask))
    place = torch.arange(len(row), device=mask.device) - (counts.cumsum(0) - counts)[row]
    width = max(1, int(counts.max())) if len(counts) else 1
    table = torch.zeros(len(mask), width, dtype=torch.long, device=mask.device)
    table[row, place] = column
    return table, torch.arange(width, device=mask.device) < counts[:, None]


def in_groups(table: Tensor) -> Tensor:
    """View a table by groups of `GROUP` columns. Columns after the last whole group are left out.

    Args:
        table: [C, V].

    Returns:
        [C, V // GROUP, GROUP].
    """
    groups = table.shape[1] // GROUP
    return table[:, : groups * GROUP].unflatten(1, (groups, GROUP))


def at_least(table: Tensor, best: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """List the columns of large values: groups are compared first, then the values of those found. Synchronises.

    Args:
        table: [C, V].
        best: the groups' maxima [C, V // GROUP].
        bound: smallest value listed [C, 1].

    Returns:
        The columns in ascending order and which of them are real, [C, K], as in `true_columns`.
    """
    group, real = true_columns(best >= bound)
    names = (group[..., None] * GROUP + torch.arange(GROUP, device=table.device)).flatten(1)
    real = real[..., None].expand(-1, -1, GROUP).flatten(1)
    if best.shape[1] * GROUP < table.shape[1]:
        last = torch.arange(best.shape[1] * GROUP, table.shape[1], device=table.device).expand(len(table), -1)
        names, real = torch.cat([names, last], 1), torch.cat([real, real.new_ones(last.shape)], 1)
    place, real = true_columns(real & (table.gather(1, names) >= bound))
    return names.gather(1, place), real
