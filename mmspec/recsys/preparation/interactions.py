"""Interactions of users with items: a table of events as histories in the order of time, filtered to a k-core."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.recsys.storage.parquet_columns import id_values, read_columns


@dataclass(frozen=True)
class LeftOut:
    """What one rule leaves out.

    Args:
        events: events.
        users: users of whom no event is left.
        items: items of which no event is left.
        remedy: what keeps them, or "".
    """

    events: int
    users: int = 0
    items: int = 0
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Events sorted by user, then by time; users and items are numbered in the order in which the table first names them.

    Args:
        users: ids of users, [U].
        items: ids of items, [I].
        user: number of each event's user, [E], ascending.
        item: number of each event's item, [E].
        left_out: what was left out so far, by reason.
    """

    users: Any  # pyarrow arrays
    items: Any
    user: NDArray[np.int64]
    item: NDArray[np.int64]
    left_out: dict[str, LeftOut]

    def __len__(self) -> int:
        return len(self.user)

    def core(self, k: int) -> "Interactions":
        """Filter to the k-core: the largest set of events in which every user and every item has at least `k` events.

        Args:
            k: fewest events; 1 keeps all.

        Returns:
            The events left. Users and items without events go.

        Raises:
            ValueError: if no event is left.
        """
        if k < 1:
            raise ValueError(f"the core is {k}: users and items need at least 1 event")
        keep = np.ones(len(self), bool)
        while True:
            counts = [np.bincount(number[keep], minlength=size) for number, size in self._numbered()]
            fewer = keep & (counts[0][self.user] >= k) & (counts[1][self.item] >= k)
            if fewer.sum() == keep.sum():
                break
            keep = fewer
        if not keep.any():
            raise ValueError(f"the {k}-core of {len(self)} events is empty: give a smaller --core")
        return self.only(keep, f"outside the {k}-core", "--core 1 keeps them" if k > 1 else "")

    def only(self, keep: NDArray[np.bool_], reason: str, remedy: str = "") -> "Interactions":
        """Leave out events.

        Args:
            keep: [E] True for events that stay.
            reason: why the others go.
            remedy: what keeps them.

        Returns:
            The events left. Users and items without events go.
        """
        gone = int((~keep).sum())
        user, item = self.user[keep], self.item[keep]
        kept_users, user = np.unique(user, return_inverse=True)
        kept_items, item = np.unique(item, return_inverse=True)
        counted = LeftOut(gone, len(self.users) - len(kept_users), len(self.items) - len(kept_items), remedy)
        left_out = self.left_out | ({reason: counted} if gone else {})
        return replace(self, users=self.users.take(kept_users), items=self.items.take(kept_items), user=user, item=item, left_out=left_out)

    def starts(self) -> NDArray[np.int64]:
        """Return where each user's events begin, and the end, [U + 1]."""
        return np.concatenate([[0], np.bincount(self.user, minlength=len(self.users)).cumsum()])

    def _numbered(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        return (self.user, len(self.users)), (self.item, len(self.items))


def read_interactions(path: Path, user: str = "user", item: str = "item", time: str = "time") -> Interactions:
    """Read a table of events from Parquet.

    Events with a null are left out and counted, as are repetitions of an event at the same time. Events of one user at the same time keep
    the order of the table.

    Args:
        path: a Parquet file, or a folder of them.
        user: column of the user's id: whole numbers or text.
        item: column of the item's id: whole numbers or text.
        time: column of the time: numbers, dates or timestamps.

    Returns:
        The events.

    Raises:
        ValueError: for files and columns that cannot be used, and for a table without events.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported

    table = read_columns(path, (user, item, time))
    users, items = (id_values(table[name], f"column {name} of {path}") for name in (user, item))
    moments = _moments(table[time], f"column {time} of {path}")
    known = pc.and_(pc.and_(pc.is_valid(users), pc.is_valid(items)), pc.is_valid(moments))
    unknown = table.num_rows - (pc.sum(known).as_py() or 0)
    named = [pc.count_distinct(column, mode="only_valid").as_py() for column in (users, items)]
    users, items, when = (pc.filter(column, known) for column in (users, items, moments))
    if not len(users):
        raise ValueError(f"{path} holds no event with a user, an item and a time")
    (users, u), (items, i) = _numbers(users), _numbers(items)
    when = when.to_numpy(zero_copy_only=False)
    order = np.lexsort((np.arange(len(u)), when, u))
    u, i, when = u[order], i[order], when[order]
    again = _repeated(u, i, when)
    left_out = {"with a null": LeftOut(unknown, named[0] - len(users), named[1] - len(items))}
    left_out["repeated at the same time"] = LeftOut(int(again.sum()))
    found = Interactions(users, items, u, i, {reason: count for reason, count in left_out.items() if count.events})
    return replace(found, user=u[~again], item=i[~again])


def _repeated(user: NDArray[Any], item: NDArray[Any], when: NDArray[Any]) -> NDArray[np.bool_]:
    """Is an event of this user with this item at this time already there? [E]"""
    order = np.lexsort((np.arange(len(user)), item, when, user))
    same = np.ones(max(0, len(user) - 1), bool)
    for column in (user, item, when):
        same &= column[order][1:] == column[order][:-1]
    again = np.zeros(len(user), bool)
    again[order[1:]] = same
    return again


def _numbers(ids: Any) -> tuple[Any, NDArray[np.int64]]:
    coded = ids.dictionary_encode()
    return coded.dictionary, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _moments(column: Any, what: str) -> Any:
    """Times as numbers; nulls stay."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported

    found, kind = column.combine_chunks(), column.type
    found = pa.array([], kind) if isinstance(found, pa.ChunkedArray) else found
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind) or pa.types.is_time64(kind):
        return found.cast(pa.int64())
    if pa.types.is_date32(kind):
        return found.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_integer(kind):
        return found
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(found), None, found)
    raise ValueError(f"{what} holds {kind}: times are numbers, dates or timestamps")
