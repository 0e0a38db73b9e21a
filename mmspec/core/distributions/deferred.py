"""Distributions that are made when they are asked for: a rule that walks along one path of a draft asks for few of them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mmspec.core.distributions.categorical import Categorical


class DeferredCategorical:
    """Distributions [B, N] over V values, known by what makes them of scores.

    Single ones are made as they are picked. Everything else that rules and drafters ask makes all of them, once.

    Args:
        raw: scores before the last processors [B, N, V].
        make: (scores [R, M, V], their rows [R], or None for all) -> distributions [R, M].

    Attributes:
        size: number of values V.
    """

    __slots__ = ("_found", "_make", "_raw", "size")

    searched = True
    """As `Categorical.searched`: it is cheaper to draw one distribution after another, while draft tokens pass."""

    def __init__(self, raw: Tensor, make: Callable[..., Categorical]):
        self._raw, self._make, self.size = raw, make, raw.shape[-1]
        self._found: Categorical | None = None

    def all(self) -> Categorical:
        """Make all of them.

        Returns:
            Distributions [B, N].
        """
        if self._found is None:
            self._found = self._make(self._raw)
            del self._raw
        return self._found

    def at(self, index: Tensor) -> Categorical:
        """Select columns.

        Args:
            index: columns [B, M].

        Returns:
            Distributions [B, M].
        """
        if self._found is not None or index.shape[1] > 1:
            return self.all().at(index)
        return self._make(self._raw.gather(1, index[..., None].expand(*index.shape, self.size)))

    def last(self, count: int) -> Categorical:
        """Select the last columns.

        Args:
            count: how many.

        Returns:
            Distributions [B, count].
        """
        if self._found is not None or count > 1:
            return self.all().last(count)
        return self._make(self._raw[:, -count:])

    def picked(self, rows: Tensor, columns: Tensor) -> Categorical:
        """Select single distributions of the batch.

        Args:
            rows: row of each one [R, 1].
            columns: its column [R, 1].

        Returns:
            Distributions [R, 1].
        """
        return self.all().picked(rows, columns) if self._found is not None else self._make(self._raw[rows, columns], rows[:, 0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.all(), name)
