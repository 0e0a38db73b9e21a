"""The product of a language model's output head on a CPU, chosen by the number of rows.

For few rows of float32, BLAS computes W x^T faster than x W^T, which `F.linear` computes, and two rows faster than one. CPU time of
`F.linear` and of W x^T in ms, one thread of an AMD EPYC with AVX-512 (vocabulary x width; one row is padded to two):

    rows              1         2         3         4         5         6         8          9
    262144 x 640   59 / 35  135 / 35  201 / 83  141 / 70  125 / 62  145 / 98  148 / 95  147 / 196
    151936 x 896   47 / 35  105 / 35  167 / 73  132 / 82  138 / 78  112 / 126 105 / 119 124 / 147
    32000 x 2048   16 / 29   39 / 29   61 / 34   50 / 46   64 / 54   61 / 63   65 / 68   85 / 77

In bfloat16 `F.linear` is the faster one throughout. The rule reads sizes only, so equal requests take equal paths.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST_VALUES = {1: 131072, 2: 32000, 3: 32000, 4: 32000, 5: 32000, 6: 200000, 7: 200000, 8: 200000}
"""Smallest vocabulary for which W x^T is the faster product, by rows."""


def transposes(rows: int, weight: Tensor) -> bool:
    """Tell whether W x^T is taken for x W^T.

    Args:
        rows: rows of x.
        weight: W [V, H].

    Returns:
        Whether it is the faster one.
    """
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[0] >= _LEAST_VALUES.get(rows, torch.inf)


def head_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x W^T.

    Args:
        x: [..., H].
        weight: W [V, H].

    Returns:
        [..., V], contiguous.
    """
    flat = x.reshape(-1, x.shape[-1])
    rows = len(flat)
    if not transposes(rows, weight) or torch.is_grad_enabled():
        return F.linear(x, weight)
    flat = flat.repeat(2, 1) if rows == 1 else flat  # copied: rows that share memory are no BLAS product
    return (weight @ flat.T)[:, :rows].T.contiguous().view(*x.shape[:-1], -1)


def head_changes(model: Any) -> tuple[tuple[nn.Module, str, Any], ...]:
    """Return the changes that choose the product of a model's output head by rows, for `models.changed.replaced`.

    Args:
        model: a copy of a model, see `models.module_copy`.

    Returns:
        (module, name, value); none for a head that is no plain `nn.Linear` without bias, or not on a CPU in float32.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head) or not transposes(2, head.weight):
        return ()
    return ((head, "forward", lambda x: head_product(x, head.weight)),)
