"""A one-entry cache of a result by the tensor it was computed for: rules, meters and residuals ask for the same values in turn."""

from typing import Any

from torch import Tensor


class ValueCache:
    """Caches the result for the last tensor of values.

    Values are recognised by identity, which is unique while they are held here, and by torch's count of in-place writes. Tensors of
    inference mode have no such count and are not cached.
    """

    def __init__(self):
        self._values: tuple[Tensor, int] | None = None
        self._result: Any = None

    def get(self, x: Tensor) -> Any:
        """Look up a result.

        Args:
            x: values [..., *value].

        Returns:
            The result kept for `x`; None if there is none.
        """
        if self._values is None or x.is_inference():
            return None
        values, writes = self._values
        return self._result if values is x and writes == x._version else None

    def keep(self, x: Tensor, result: Any) -> Any:
        """Store a result in place of the one before.

        Args:
            x: values [..., *value].
            result: what was computed for them.

        Returns:
            `result`.
        """
        self._values, self._result = None if x.is_inference() else (x, x._version), result
        return result
