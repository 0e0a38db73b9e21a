"""The last values a distribution was asked about, and what was said: rules ask for chances, meters and residuals of the same values."""

from typing import Any

from torch import Tensor


class ValueCache:
    """What was said of the last values asked about.

    Values are known again by identity, which cannot pass to others while they are held here, and by torch's count of writes into
    them. Tensors of inference mode have no such count, and are asked about anew.
    """

    def __init__(self):
        self._values: tuple[Tensor, int] | None = None
        self._said: Any = None

    def get(self, x: Tensor) -> Any:
        """What `keep` was told of `x`; None where that was of other values, or of nothing."""
        if self._values is None or x.is_inference():
            return None
        values, writes = self._values
        return self._said if values is x and writes == x._version else None

    def keep(self, x: Tensor, said: Any) -> Any:
        self._values, self._said = None if x.is_inference() else (x, x._version), said
        return said
