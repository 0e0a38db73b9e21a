"""Masks and lists of the items that each user may get, and the trie that holds a search to them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.trie import Trie

Lists = Sequence[Sequence[Hashable] | None]
"""A list of items for each user, or None."""


@dataclass(frozen=True)
class ItemFilter:
    """The items that each of B users may get.

    Args:
        mask: bool [items] or [B, items]; None where all may be recommended.
        allow: for each user the rows in the catalogue of the only items that may be recommended, or None.
        deny: for each user the rows of items that may not be recommended.
    """

    mask: Tensor | None
    allow: tuple[frozenset[int] | None, ...]
    deny: tuple[frozenset[int], ...]

    @staticmethod
    def of(catalogue: Any, rows: int, mask: Tensor | None, allow: Lists | None, deny: Lists | None, seen: Any) -> "ItemFilter":
        """Check and combine the arguments of `recommend`.

        Args:
            catalogue: the items.
            rows: number of users.
            mask: bool [items] or [rows, items], or None.
            allow: a list of items for each user, or None for all.
            deny: a list of items for each user, or None for none.
            seen: the histories, whose items are left out too; None if they stay.

        Returns:
            The filter.

        Raises:
            ValueError: for another shape, another number of lists, unknown items, and prompts as `seen`.
        """
        if mask is not None and tuple(mask.shape) not in ((len(catalogue),), (rows, len(catalogue))):
            raise ValueError(
                f"allowed has shape {tuple(mask.shape)}: give [{len(catalogue)}], or [{rows}, {len(catalogue)}], one row a history"
            )
        if isinstance(seen, Mapping):
            raise ValueError("unseen needs the histories' items, and prompts were given: pass deny with a list a prompt instead")
        allowed = _lists("allow", catalogue, rows, allow)
        denied, known = (_lists(name, catalogue, rows, lists) for name, lists in (("deny", deny), ("histories", seen)))
        empty = frozenset[int]()
        mask = None if mask is None else mask.cpu()
        return ItemFilter(mask, allowed, tuple((a or empty) | (b or empty) for a, b in zip(denied, known, strict=True)))

    @property
    def lists(self) -> bool:
        """True where any user has a list."""
        return any(self.deny) or any(line is not None for line in self.allow)

    def may(self, row: int, item: int) -> bool:
        """Tell whether a user may get an item.

        Args:
            row: the user, from 0.
            item: the item's row in the catalogue.

        Returns:
            True if no mask and no list forbids it.
        """
        allow = self.allow[row]
        if item in self.deny[row] or (allow is not None and item not in allow):
            return False
        return self.mask is None or bool(self.mask[item] if self.mask.dim() == 1 else self.mask[row, item])

    def trie(self, catalogue: Any) -> Trie:
        """Restrict the catalogue's trie.

        Lists cost their own length in memory, where the mask is None or the same for all users. Beside a mask of one row a user they are
        written into it.

        Args:
            catalogue: the items.

        Returns:
            The trie, on the CPU.
        """
        if self.mask is not None and self.mask.dim() > 1:
            return catalogue.trie.only(catalogue.only(self._table()))
        trie = catalogue.trie if self.mask is None else catalogue.trie.only(catalogue.only(self.mask))
        return self.listed_trie(catalogue, trie) if self.lists else trie

    def listed_trie(self, catalogue: Any, trie: Trie) -> Trie:
        """Restrict a trie by the lists, those of users without one being empty.

        Args:
            catalogue: the items.
            trie: the catalogue's, restricted for all users alike, if at all.

        Returns:
            The trie.
        """
        leaves = [sorted(self._listed(catalogue, row)) for row in range(len(self.deny))]
        table = torch.full((len(leaves), max(1, *map(len, leaves))), -1)
        for row, line in enumerate(leaves):
            table[row, : len(line)] = torch.tensor(line, dtype=torch.long)
        return trie.list_paths(table, torch.tensor([line is not None for line in self.allow]))

    def as_lists(self) -> "ItemFilter":
        """Return the same filter with its mask written into the lists, of allowed items or of denied ones, whichever are fewer."""
        if self.mask is None:
            return self
        allow, deny = list(self.allow), list(self.deny)
        for row, mask in enumerate(self.mask.expand(len(deny), -1)):
            kept, listed = frozenset(mask.nonzero()[:, 0].tolist()), allow[row]
            if listed is not None:
                allow[row] = listed & kept
            elif 2 * len(kept) <= len(mask):
                allow[row] = kept
            else:
                deny[row] |= frozenset((~mask).nonzero()[:, 0].tolist())
        return ItemFilter(None, tuple(allow), tuple(deny))

    def _listed(self, catalogue: Any, row: int) -> set[int]:
        """The paths to admit for users with a list of allowed items; for others those on which no item is left."""
        allow, deny = self.allow[row], self.deny[row]
        if allow is not None:
            kept = [item for item in allow if self.may(row, item)]
            return set(catalogue.leaf[kept].tolist())
        found = set(catalogue.leaf[list(deny)].tolist())
        return {leaf for leaf in found if not any(self.may(row, item) for item in catalogue.shelf(leaf))}

    def _table(self) -> Tensor:
        """[B, items] the mask with the lists in it."""
        assert self.mask is not None
        table = self.mask.clone()
        for row, (allow, deny) in enumerate(zip(self.allow, self.deny, strict=True)):
            if allow is not None:
                own = torch.zeros_like(table[row])
                own[list(allow)] = True
                table[row] &= own
            table[row, list(deny)] = False
        return table


def _lists(name: str, catalogue: Any, rows: int, given: Lists | None) -> tuple[frozenset[int] | None, ...]:
    if given is None:
        return (None,) * rows
    if isinstance(given, str | bytes) or not hasattr(given, "__len__") or len(given) != rows:
        raise ValueError(f"{name} is {given!r:.60}: give a list of {rows}, one list of items or None for each history")
    found: list[frozenset[int] | None] = []
    for number, line in enumerate(given):
        if line is not None and (isinstance(line, str | bytes) or not hasattr(line, "__iter__")):
            raise ValueError(f"{name} {number} is {line!r:.60}: give a list of items, or None")
        try:
            found.append(None if line is None else frozenset(map(catalogue.row, line)))
        except ValueError as error:
            raise ValueError(f"{name} {number}: {error}") from None
    return tuple(found)
