"""The product of a language model's output head on a CPU, chosen by the number of rows and the processor's maker.

For few rows of float32, BLAS computes products of one size in very different times. Time of `F.linear` (x W^T), of W x^T (one row is padded
to two) and of `F.linear` over x padded to 16 rows, in ms (vocabulary x width):

AMD EPYC with AVX-512, CPU time of one thread, `F.linear` / W x^T:

    rows              1         2         3         4         5         6         8          9
    262144 x 640   59 / 35  135 / 35  201 / 83  141 / 70  125 / 62  145 / 98  148 / 95  147 / 196
    151936 x 896   47 / 35  105 / 35  167 / 73  132 / 82  138 / 78  112 / 126 105 / 119 124 / 147
    32000 x 2048   16 / 29   39 / 29   61 / 34   50 / 46   64 / 54   61 / 63   65 / 68   85 / 77

Intel Xeon with AVX-512, two threads, `F.linear` / W x^T / padded:

    rows              1             2             4             6             8            12             14            16
    262144 x 640   24 / 24 / 51  26 / 63 / 51  51 / 68 / 55  57 / 72 / 50  84 / 65 / 52  120 / 77 / 54  146 / 80 / 55  51 / 79 / 54
    151936 x 896   19 / 21 / 54  20 / 48 / 50  43 / 46 / 57  49 / 49 / 53  49 / 53 / 52   56 / 54 / 54   55 / 49 / 50  55 / 51 / 48
    32000 x 2048   11 / 11 / 23  12 / 22 / 22  25 / 20 / 22  26 / 20 / 21  38 / 20 / 21   53 / 20 / 21   63 / 20 / 21  25 / 20 / 22

In bfloat16, and on other processors, it is `F.linear`. The rule reads sizes and the maker only, so equal requests take equal paths.
"""

from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.utils.provenance import cpu_fact

Product = Literal["linear", "transposed", "padded"]

_LEAST_VALUES = {1: 131072, 2: 32000, 3: 32000, 4: 32000, 5: 32000, 6: 200000, 7: 200000, 8: 200000}
"""Smallest vocabulary for which W x^T is the faster product on AMD, by rows."""
_FULL = 16  # rows that a tile of Intel's product has
_LEAST_ROWS, _LEAST_PADDED = 7, 32000  # rows, and vocabulary, from which on a full tile is faster than a part of one


@cache
def cpu_maker() -> str:
    """Return the processor's maker as Linux names it, such as "AuthenticAMD"; empty where that is unknown."""
    return cpu_fact("vendor_id") or ""


def product_of(rows: int, weight: Tensor) -> Product:
    """Choose how x W^T is computed.

    Args:
        rows: rows of x.
        weight: W [V, H].

    Returns:
        "linear" for `F.linear`, "transposed" for W x^T, "padded" for `F.linear` over 16 rows.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "linear"
    maker, values = cpu_maker(), weight.shape[0]
    if maker == "AuthenticAMD" and values >= _LEAST_VALUES.get(rows, torch.inf):
        return "transposed"
    return "padded" if maker == "GenuineIntel" and _LEAST_ROWS <= rows < _FULL and values >= _LEAST_PADDED else "linear"


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
    product = product_of(rows, weight)
    if product == "linear" or torch.is_grad_enabled():
        return F.linear(x, weight)
    if product == "padded":
        return F.linear(F.pad(flat, (0, 0, 0, _FULL - rows)), weight)[:rows].view(*x.shape[:-1], -1)
    flat = flat.repeat(2, 1) if rows == 1 else flat  # copied: rows that share memory are no BLAS product
    return (weight @ flat.T)[:, :rows].T.contiguous().view(*x.shape[:-1], -1)


def head_changes(model: Any) -> tuple[tuple[nn.Module, str, Any], ...]:
    """Return the changes that choose the product of a model's output head by rows, for `models.changed.replaced`.

    Args:
        model: a copy of a model, see `models.module_copy`.

    Returns:
        (module, name, value); none for a head that is no plain `nn.Linear` without bias, or for which it is always `F.linear`.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head):
        return ()
    if all(product_of(rows, head.weight) == "linear" for rows in range(1, _FULL)):
        return ()
    return ((head, "forward", lambda x: head_product(x, head.weight)),)
