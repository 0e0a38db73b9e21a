"""Lists for users whom a recommender cannot search for: empty histories, and histories without any item of the catalogue."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.recsys.catalogue import Catalogue
from mmspec.utils.names import unknown

FALLBACKS = ("none", "popularity", "co-occurrence")
_CONTEXT = 5  # newest items of a history that count
_BESIDE = 256  # items kept beside each item that the catalogue lacks


def check_fallback(name: str) -> None:
    """Raise ValueError for an unknown fallback.

    Args:
        name: the name.
    """
    if name not in FALLBACKS:
        raise unknown("fallback", name, FALLBACKS)


@dataclass(frozen=True)
class Fallback:
    """Counts over a table of histories, from which lists are made without a model.

    "popularity" ranks items by how many histories hold them. "co-occurrence" ranks first what other users have beside those items of a
    history that the catalogue lacks, then by popularity (item-to-item co-occurrence, Linden et al. 2003).

    Args:
        popular: (row in the catalogue, histories that hold the item), by descending count and ascending row.
        beside: for items that the catalogue lacks, the rows of items in the same histories and how many of those there are.
        histories: number of histories counted.
    """

    popular: tuple[tuple[int, int], ...]
    beside: dict[Any, Counter[int]]
    histories: int

    @staticmethod
    def counted(histories: Iterable[Any], catalogue: Catalogue, name: str) -> "Fallback":
        """Count histories.

        Args:
            histories: lists of items; what is no list is passed over.
            catalogue: the items.
            name: "popularity" or "co-occurrence".

        Returns:
            The counts.
        """
        counts: Counter[int] = Counter()
        beside: dict[Any, Counter[int]] = {}
        total = 0
        for history in histories:
            items = set(_hashable(history))
            known = [catalogue.row(item) for item in items if item in catalogue]
            counts.update(known)
            total += bool(known)
            if name == "co-occurrence" and known:
                for item in items:
                    if item not in catalogue:
                        beside.setdefault(item, Counter()).update(known)
        popular = sorted(((row, counts[row]) for row in range(len(catalogue))), key=lambda one: (-one[1], one[0]))
        return Fallback(tuple(popular), {item: _most(found) for item, found in beside.items()}, total)

    def items(self, history: Any, may: Callable[[int], bool], k: int) -> list[tuple[int, float, str]]:
        """List items for a user.

        Args:
            history: the user's items as the table has them, or None.
            may: tells whether the user may get the item of a row.
            k: the most items.

        Returns:
            (row, score, source) best first. A score is the logarithm of (histories that hold the item, or that hold it beside one of the
            user's items, plus 1) over (all histories plus 1).
        """
        found: list[tuple[int, float, str]] = []
        near: Counter[int] = Counter()
        for item in list(_hashable(history))[-_CONTEXT:]:
            near.update(self.beside.get(item, {}))
        first = sorted(near.items(), key=lambda one: (-one[1], one[0]))
        for source, ranked in (("co-occurrence", first), ("popularity", self.popular)):
            for row, count in ranked:
                if len(found) == k:
                    return found
                if may(row) and (source == "co-occurrence" or row not in near):
                    found.append((row, math.log((count + 1) / (self.histories + 1)), source))
        return found


def _most(found: Counter[int]) -> Counter[int]:
    return Counter(dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:_BESIDE]))


def _hashable(history: Any) -> Iterator[Any]:
    """The items of a history that can be items."""
    if isinstance(history, Sequence) and not isinstance(history, str | bytes):
        yield from (item for item in map(whole_number, history) if isinstance(item, int | str) and not isinstance(item, bool))


def whole_number(item: Any) -> Any:
    """Return a whole number that a table stores with a fraction as an int; other values as they are.

    Args:
        item: a value of a table.

    Returns:
        The int, or the value.
    """
    return int(item) if type(item) is float and item.is_integer() else item
