"""The product of a language model's output head on a CPU, chosen by the number of rows and the processor's maker.

For few rows of float32, BLAS computes products of one size in very different times. Milliseconds (vocabulary x width):

AMD EPYC with AVX-512, CPU time of one thread, `F.linear` (x W^T) / W x^T, one row padded to two:

    rows              1         2         3         4         5         6         8          9
    262144 x 640   59 / 35  135 / 35  201 / 83  141 / 70  125 / 62  145 / 98  148 / 95  147 / 196
    151936 x 896   47 / 35  105 / 35  167 / 73  132 / 82  138 / 78  112 / 126 105 / 119 124 / 147
    32000 x 2048   16 / 29   39 / 29   61 / 34   50 / 46   64 / 54   61 / 63   65 / 68   85 / 77

Intel Xeon with AVX-512, two threads, `F.linear` / padded to 16 rows / by a copy of W in oneDNN's layout:

    rows              1             2             3             4             6             8            12             16
    262144 x 640   23 / 51 / 22  25 / 50 / 24  28 / 49 / 25  50 / 49 / 26  57 / 49 / 28  89 / 48 / 30  133 / 49 / 36  50 / 49 / 38
    151936 x 896   18 / 48 / 18  19 / 49 / 19  21 / 47 / 20  40 / 48 / 22  44 / 47 / 24  45 / 47 / 25   48 / 47 / 28  48 / 47 / 32
    32000 x 2048    9 / 23 / 9    9 / 21 / 9   10 / 21 / 10  17 / 21 / 10  19 / 21 / 10  28 / 21 / 12   38 / 21 / 13  21 / 21 / 15

of 64 rows 137, 93, 40 ms by `F.linear` and 105, 71, 34 by the copy, which takes 0.1 to 1.2 s to make.

In bfloat16, and on other processors, it is `F.linear`. The rule reads sizes and the maker only, so equal requests take equal paths. The
copy is made by the first product that takes it and lives as long as W; every session drops it if W has changed.
"""

from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.models.compat.packed_product import drop_changed_copy, packed_copy, packs
from mmspec.utils.provenance import cpu_fact

Product = Literal["linear", "transposed", "padded", "packed"]

_LEAST_VALUES = {1: 131072, 2: 32000, 3: 32000, 4: 32000, 5: 32000, 6: 200000, 7: 200000, 8: 200000}
"""Smallest vocabulary for which W x^T is the faster product on AMD, by rows."""
_SMALLEST = min(_LEAST_VALUES.values())  # below it, it is `F.linear` for any number of rows and any maker
_FULL = 16  # rows that a tile of Intel's product has
_PACKED, _PADDED = range(4, 65), range(7, _FULL)  # rows for which these are faster than `F.linear` on Intel, for 32,000 values and more
_MOST_PACKED = 2**30  # bytes of a copy


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
        "linear" for `F.linear`, "transposed" for W x^T, "padded" for `F.linear` over 16 rows, "packed" for a copy of W
        (`packed_product`).
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "linear"
    maker, values = cpu_maker(), weight.shape[0]
    if maker == "AuthenticAMD" and values >= _LEAST_VALUES.get(rows, torch.inf):
        return "transposed"
    if maker != "GenuineIntel" or values < 32000:
        return "linear"
    if packs() and weight.nbytes <= _MOST_PACKED:
        return "packed" if rows in _PACKED else "linear"
    return "padded" if rows in _PADDED else "linear"


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
    if product == "packed":
        return packed_copy(weight).product(flat).view(*x.shape[:-1], -1)
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
    head = _head_of(model)
    return () if head is None else ((head, "forward", lambda x: head_product(x, head.weight)),)


def drop_changed_head(model: Any) -> None:
    """Drop the copy of a model's output head that products take, if the head has changed since it was made.

    Args:
        model: the model.
    """
    head = _head_of(model)
    if head is not None:
        drop_changed_copy(head.weight)


def _head_of(model: Any) -> nn.Linear | None:
    """The head, if any of its products is not `F.linear`."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head) or head.weight.shape[0] < _SMALLEST:
        return None
    return None if all(product_of(rows, head.weight) == "linear" for rows in range(1, _FULL)) else head
