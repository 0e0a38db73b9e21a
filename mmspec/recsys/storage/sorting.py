"""Distinct paths in order, by sorting one number a path where it fits."""

import torch
from torch import Tensor

_MOST = 2**62


def sorted_paths(paths: Tensor) -> tuple[Tensor, Tensor]:
    """Sort paths, first tokens first, as `torch.unique(paths, dim=0, return_inverse=True)` does.

    A path becomes one number in mixed radix, so that a sort of numbers takes the place of one of rows.

    Args:
        paths: LongTensor [items, L], non-negative.

    Returns:
        The distinct paths [P, L], and the number of each item's among them, [items].
    """
    low, high = paths.amin(0), paths.amax(0)
    sizes = (high - low + 1).tolist()
    whole = 1
    for size in sizes:
        whole *= size
    if whole >= _MOST:
        return torch.unique(paths, dim=0, return_inverse=True)  # pyright: ignore[reportReturnType]
    key = torch.zeros(len(paths), dtype=torch.long)
    for level, size in enumerate(sizes):
        key.mul_(size).add_(paths[:, level] - low[level])
    distinct, leaf = torch.unique(key, return_inverse=True)
    columns = []
    for level in range(len(sizes) - 1, -1, -1):
        columns.append(distinct % sizes[level] + low[level])
        distinct = distinct // sizes[level]
    return torch.stack(columns[::-1], 1).to(paths.dtype), leaf
