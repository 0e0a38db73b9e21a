"""The tables of a catalogue that searches read: its trie, and which items lie on each path, in int32."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.core.beams.trie import Trie
from mmspec.recsys.storage.sorting import sorted_paths


@dataclass(frozen=True, eq=False)
class CatalogueIndex:
    """Tables over I items and their P distinct paths.

    Args:
        trie: the trie of the distinct paths, on the CPU.
        leaf: number of each item's path among the distinct ones, IntTensor [I].
        order: rows of items by path, IntTensor [I].
        begin: where each path's items begin in `order`, IntTensor [P + 1].
    """

    trie: Trie
    leaf: Tensor
    order: Tensor
    begin: Tensor

    @staticmethod
    def of(paths: Tensor) -> "CatalogueIndex":
        """Build the tables.

        Args:
            paths: whole numbers [I, L], the token ids of each item's path.

        Returns:
            The tables. Items of one path keep their order.
        """
        distinct, leaf = sorted_paths(paths.cpu())
        order = torch.argsort(leaf, stable=True).int()
        begin = torch.nn.functional.pad(torch.bincount(leaf, minlength=len(distinct)).cumsum(0, dtype=torch.int32), (1, 0))
        return CatalogueIndex(Trie.of(distinct), leaf.int(), order, begin)

    def shelf(self, leaf: int) -> tuple[int, ...]:
        """Look up the items of a path.

        Args:
            leaf: number of the distinct path.

        Returns:
            Rows of its items, ascending.
        """
        order, begin = self._arrays
        return tuple(order[begin[leaf] : begin[leaf + 1]].tolist())

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """`order` and `begin`, which NumPy reads in place at a fraction of the time."""
        return self.order.numpy(), self.begin.numpy()
