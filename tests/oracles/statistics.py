"""Goodness-of-fit tests. Seeds are fixed; a distribution passes above 1e-4, and its biased variant must fall far below."""

import torch
from scipy import stats
from torch import Tensor

PASS = 1e-4
FAIL = 1e-9


def chi_square(values: Tensor, probabilities: Tensor) -> float:
    """p-value that `values` (whole numbers from 0) follow `probabilities` [K]; cells that expect fewer than 5 are pooled."""
    counts = torch.bincount(values.flatten(), minlength=len(probabilities)).double()
    expected = probabilities.double() / probabilities.double().sum() * counts.sum()
    if counts[expected == 0].sum() > 0:
        return 0.0
    small = expected < 5
    pooled = [torch.cat([x[~small], x[small].sum()[None]]) if small.any() else x for x in (counts, expected)]
    keep = pooled[1] > 0
    return float(stats.chisquare(pooled[0][keep], pooled[1][keep]).pvalue)


def uniform(values: Tensor) -> float:
    """p-value that `values` are uniform on (0, 1)."""
    return float(stats.kstest(values.double().flatten().numpy(), "uniform").pvalue)


def independent(one: Tensor, other: Tensor, bins: int = 8) -> float:
    """p-value that two uniform samples, paired, fall into the cells of a bins x bins grid alike."""
    cell = (one * bins).long() * bins + (other * bins).long()
    return chi_square(cell, torch.full((bins * bins,), 1 / bins**2))
