"""Look-ups in a catalogue: rows of items, paths, and the tables over them, made when they are needed."""

from collections.abc import Hashable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.beams.trie import Trie
from mmspec.recsys.storage.column import Column
from mmspec.recsys.storage.digest import fields_digest
from mmspec.recsys.storage.index import CatalogueIndex
from mmspec.utils.names import shown


class CatalogueLookups:
    """Base of `Catalogue`, over its fields."""

    items: Sequence[Hashable]
    paths: Tensor
    before: tuple[int, ...]
    after: tuple[int, ...]
    most: int
    index: CatalogueIndex | None

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: object) -> bool:
        return self._find(item) is not None

    @property
    def levels(self) -> int:
        """Tokens of a path."""
        return self.paths.shape[1]

    @cached_property
    def _rows(self) -> dict[Hashable, int]:
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def tables(self) -> CatalogueIndex:
        """Tables over the paths: `index`, or made now."""
        return CatalogueIndex.of(self.paths) if self.index is None else self.index

    @property
    def trie(self) -> Trie:
        """Trie of the distinct paths, on the CPU."""
        return self.tables.trie

    @property
    def leaf(self) -> Tensor:
        """Number of each item's path among the distinct ones, IntTensor [items]."""
        return self.tables.leaf

    @property
    def distinct(self) -> Tensor:
        """Distinct paths in order, LongTensor [P, L], on the CPU."""
        return self.path(torch.arange(self.trie.size))

    @cached_property
    def tokens_used(self) -> Tensor:
        """Token ids of the paths, LongTensor [C], ascending."""
        return torch.unique(self.trie.token[1:]).long()

    @cached_property
    def largest_token(self) -> int:
        """Largest token id of the paths."""
        return int(self.tokens_used[-1])

    @cached_property
    def kinds(self) -> frozenset[type]:
        """Types of the items."""
        return frozenset({self.items.kind}) if isinstance(self.items, Column) else frozenset(map(type, self.items))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of items, paths and how histories are written; the same for every file that holds them."""
        return fields_digest(self.items, self.paths, [self.before, self.after, self.most])

    def path(self, leaf: Tensor) -> Tensor:
        """Look up paths.

        Args:
            leaf: numbers of distinct paths [...].

        Returns:
            Their token ids, LongTensor [..., L].
        """
        return self.paths[self.tables.order[self.tables.begin[leaf]].to(self.paths.device)].cpu().long()

    def row(self, item: Hashable) -> int:
        """Look up an item.

        Args:
            item: the item.

        Returns:
            Its row in `items`.

        Raises:
            ValueError: for an unknown item.
        """
        row = self._find(item)
        if row is None:
            raise ValueError(f"item {shown(item)} is not in the catalogue of {len(self)} items")
        return row

    def _find(self, item: object) -> int | None:
        if isinstance(self.items, Column):
            return self.items.find(item)
        try:
            return self._rows.get(item)  # type: ignore[arg-type]
        except TypeError:
            return None

    def shelf(self, leaf: int) -> tuple[int, ...]:
        """Look up the items of a path.

        Args:
            leaf: number of the distinct path.

        Returns:
            Rows of its items, in the catalogue's order.
        """
        return self.tables.shelf(leaf)
