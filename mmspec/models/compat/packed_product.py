"""Products x W^T by a copy of W in the layout of oneDNN, which on a CPU cost nearly the same for 1 to 8 rows of x."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_ROWS = 8  # of x, for which the layout is chosen; products of other numbers of rows are computed by it, too
_copies: Any = WeakTensorKeyDictionary()


class PackedWeight:
    """W in the layout of oneDNN, and what tells whether W has changed since.

    Relies on `mkldnn::_reorder_linear_weight` and `mkldnn::_linear_pointwise`, which torch's compiler uses for frozen weights.

    Args:
        weight: W [V, H], float32 on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        self._probe = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(0))
        self._found = F.linear(self._probe, weight.detach())

    def product(self, x: Tensor) -> Tensor:
        """Compute x W^T.

        Args:
            x: [R, H].

        Returns:
            [R, V], contiguous.
        """
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")

    def still_of(self, weight: Tensor) -> bool:
        """Tell whether W is unchanged, by one product with it."""
        return torch.equal(self._found, F.linear(self._probe, weight.detach()))


def packs() -> bool:
    """Tell whether torch was built with oneDNN."""
    return torch.backends.mkldnn.is_available()


def packed_copy(weight: Tensor) -> PackedWeight:
    """Return the packed copy of a weight. It is made at the first call and lives as long as the weight.

    Args:
        weight: W [V, H], float32 on a CPU.

    Returns:
        The copy, of the size of W.
    """
    found = _copies.get(weight)
    if found is None:
        found = _copies[weight] = PackedWeight(weight)
    return found


def drop_changed_copy(weight: Tensor) -> None:
    """Drop the packed copy of a weight that has changed since it was made.

    Args:
        weight: W [V, H]; the caller may have written to it by any way.
    """
    found = _copies.get(weight)
    if found is not None and not found.still_of(weight):
        del _copies[weight]
