"""Histories of many users in three arrays, read and written as Parquet; a sequence of lists of items."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.preparation.interactions import Interactions
from mmspec.recsys.storage.parquet_columns import read_columns
from mmspec.recsys.storage.table import column_of


def training_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many items of each history are for training.

    The last item is for the test and the one before it for validation. Histories of fewer than three items are for training alone.

    Args:
        lengths: [U] items of each history.

    Returns:
        [U] items from the oldest on.
    """
    return np.where(lengths >= 3, lengths - 2, lengths)


@dataclass(frozen=True, eq=False)
class HistoryRows(Sequence[list[Item]]):
    """Histories, oldest item first; user u's are `rows[first[u] : first[u] + lengths[u]]`.

    Args:
        users: pyarrow Array of user ids, [U].
        items: the catalogue's items.
        rows: number of each event's item in `items`, [E].
        first: where each user's events begin, [U].
        lengths: events of each user, [U].
    """

    users: Any
    items: Sequence[Item]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of(events: Interactions, catalogue: Catalogue) -> "HistoryRows":
        """Return the histories of `events`, all of whose items are in `catalogue`."""
        row = np.array([catalogue.row(item) for item in events.items.to_pylist()], np.int64)
        starts = events.starts()
        return HistoryRows(events.users, catalogue.items, row[events.item], starts[:-1], np.diff(starts))

    @staticmethod
    def read(path: Path, catalogue: Catalogue) -> "HistoryRows":
        """Read a table of user_id and history.

        Args:
            path: the file.
            catalogue: holds every item of it.

        Returns:
            The histories.

        Raises:
            ValueError: for items that the catalogue lacks.
        """
        table = read_columns(path, ("user_id", "history"))
        column = table["history"].combine_chunks()
        coded = column.flatten().dictionary_encode()
        row = np.array([catalogue.row(item) for item in coded.dictionary.to_pylist()], np.int64)
        starts = column.offsets.to_numpy() - column.offsets[0].as_py()
        users = table["user_id"].combine_chunks()
        return HistoryRows(users, catalogue.items, row[coded.indices.to_numpy()], starts[:-1].astype(np.int64), np.diff(starts))

    def write(self, path: Path) -> None:
        """Write a Parquet file with columns user_id and history, atomically."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from mmspec.utils.files import whole

        values = column_of(self.items).take(pa.array(self.rows))
        starts = pa.array(np.append(self.first, len(self.rows)).astype(np.int64))
        table = pa.table({"user_id": self.users, "history": pa.LargeListArray.from_arrays(starts, values)})
        with whole(path, binary=True) as file:
            pq.write_table(table, file, row_group_size=65_536)

    def __len__(self) -> int:
        return len(self.first)

    @overload
    def __getitem__(self, place: int) -> list[Item]: ...

    @overload
    def __getitem__(self, place: slice) -> "list[list[Item]]": ...

    def __getitem__(self, place: int | slice) -> list[Any]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        first = self.first[place]
        return [self.items[row] for row in self.rows[first : first + self.lengths[place]].tolist()]

    def shortened(self, lengths: NDArray[np.int64]) -> "HistoryRows":
        """Return the first `lengths` [U] items of each history."""
        return replace(self, lengths=lengths)

    def of_users(self, users: NDArray[np.int64]) -> "HistoryRows":
        """Return the histories of the users of these numbers."""
        return replace(self, users=self.users.take(users), first=self.first[users], lengths=self.lengths[users])
