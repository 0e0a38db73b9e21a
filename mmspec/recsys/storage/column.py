"""A column of items or names that stays in Arrow memory, where a whole number takes 8 bytes, and is read as a sequence."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_PART = 65_536  # values that an iteration turns into Python's at a time


class Column(Sequence[Any]):
    """Whole numbers or texts without nulls.

    Args:
        values: a pyarrow Array of int64, uint64 or large_string.
        order: the rows in ascending order of their values, by which `find` searches; None where the values ascend themselves.

    Attributes:
        kind: int or str.
    """

    def __init__(self, values: Any, order: NDArray[np.int32] | None = None):
        import pyarrow as pa

        self.values, self.order = values, order
        self.kind: type = int if pa.types.is_integer(values.type) else str

    @staticmethod
    def of(values: Any) -> "Column":
        """Make a column that `find` can search.

        Args:
            values: a pyarrow Array of whole numbers or texts without nulls.

        Returns:
            The column.

        Raises:
            ValueError: for a value that is there twice.
        """
        values = typed(values)
        order = _order(values)
        twice = _repeated(values, order)
        if twice is not None:
            raise ValueError(f"item {twice!r} is in the catalogue twice: give every item one path")
        return Column(values, None if bool((order[1:] > order[:-1]).all()) else order.astype(np.int32))

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(self.values.take(np.arange(len(self))[place]).to_pylist())
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return self.values[int(place) % len(self)].as_py()

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), _PART):
            yield from self.values.slice(first, _PART).to_pylist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, item: object) -> bool:
        return self.find(item) is not None

    def find(self, item: object) -> int | None:
        """Search for a value by bisection.

        Args:
            item: a value of any type.

        Returns:
            Its row, or None.
        """
        if type(item) is not self.kind:
            return None
        order, values = self.order, self.values
        at = (lambda place: values[place].as_py()) if order is None else (lambda place: values[int(order[place])].as_py())
        place = bisect_left(range(len(self)), item, key=at)  # type: ignore[type-var]
        if place == len(self) or at(place) != item:
            return None
        return place if order is None else int(order[place])


def typed(values: Any) -> Any:
    """Bring a column into the types that `Column` takes, in one piece.

    Args:
        values: a pyarrow Array or ChunkedArray of whole numbers or texts.

    Returns:
        An Array of int64, uint64 or large_string.
    """
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # an empty one has no chunk
        values = pa.array([], values.type)
    if pa.types.is_integer(values.type):
        return values if pa.types.is_uint64(values.type) else values.cast(pa.int64())
    return values.cast(pa.large_string())


def _order(values: Any) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        if len(numbers) < 2 or bool((numbers[1:] > numbers[:-1]).all()):
            return np.arange(len(numbers))
        return np.argsort(numbers, kind="stable")
    return pc.call_function("array_sort_indices", [values]).to_numpy(zero_copy_only=False)


def _repeated(values: Any, order: NDArray[Any]) -> Any:
    """A value that is there twice, or None."""
    import pyarrow.compute as pc

    ordered = values.take(order)
    same = pc.call_function("equal", [ordered.slice(1), ordered.slice(0, max(0, len(ordered) - 1))])
    found = np.flatnonzero(same.to_numpy(zero_copy_only=False))
    return ordered[int(found[0])].as_py() if len(found) else None
