"""Lists of trie nodes per row: a filter whose memory follows the lists and not the catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.rows.changes import join_tensors, rows_of


@dataclass(frozen=True, slots=True)
class ListedNodes:
    """Nodes listed for each row, which are either the only ones that a row may visit or the ones that it may not.

    Args:
        node: LongTensor [B, X], X >= 1, a row's nodes in ascending order, then the number of nodes of the trie.
        only: bool [B], True where a row may visit listed nodes only, False where it may visit all others.
    """

    node: Tensor  # [B, X]
    only: Tensor  # [B]

    def admit(self, node: Tensor) -> Tensor:
        """Tell which nodes a row may visit.

        Args:
            node: LongTensor [B, S].

        Returns:
            Bool [B, S].
        """
        place = torch.searchsorted(self.node, node).clamp_max(self.node.shape[1] - 1)
        return (self.node.gather(1, place) == node) == self.only[:, None]

    def take_rows(self, rows: Sequence[int]) -> "ListedNodes":
        """Return the lists of some rows.

        Args:
            rows: their numbers, in their new order.
        """
        return ListedNodes(rows_of(self.node, rows), rows_of(self.only, rows))

    def join_rows(self, other: "ListedNodes", nodes: int) -> "ListedNodes":
        """Return the lists of the rows of both.

        Args:
            other: lists over the same trie.
            nodes: how many nodes that has.
        """
        return ListedNodes(join_tensors(self.node, other.node, nodes, left=False), torch.cat([self.only, other.only]))

    def to(self, device: torch.device | str) -> "ListedNodes":
        """Move the lists to a device."""
        return ListedNodes(self.node.to(device), self.only.to(device))


def with_ancestors(leaf: Tensor, only: Tensor, spans: list[Tensor], starts: tuple[int, ...], running: Tensor | None) -> ListedNodes:
    """List the nodes that listed paths open or close: at most levels x paths a row.

    Where only listed paths may be visited, these are the paths and everything above them. Where listed paths may not be visited, these are
    the nodes without any other path below them.

    Args:
        leaf: LongTensor [B, E], numbers of distinct paths that are otherwise allowed, in any order; the number of paths for none.
        only: bool [B], as in `ListedNodes`.
        spans: for every level the first path below each node and the one behind its last, [nodes, 2].
        starts: the first node of every level.
        running: LongTensor [P + 1], how many paths before each are allowed; None where all are.

    Returns:
        The lists.
    """
    paths, end = len(spans[-1]), starts[-1] + len(spans[-1])
    leaf = leaf.to(spans[-1].dtype).sort(1).values  # int32, as the spans are
    again = torch.zeros_like(leaf, dtype=torch.bool)
    again[:, 1:] = leaf[:, 1:] == leaf[:, :-1]
    leaf = leaf.masked_fill(again, paths).sort(1).values  # each path once
    found = []
    for start, span in zip(starts, spans, strict=True):
        place = _above(span, leaf) if len(span) < paths else leaf.long()  # of the leaves themselves, and where every path has a node
        place = place.masked_fill(leaf == paths, len(span))  # ascending, as the paths are
        first = torch.searchsorted(place, place)
        below = torch.searchsorted(place, place, right=True) - first
        reach = span[place.clamp_max(len(span) - 1)].long()
        whole = reach[..., 1] - reach[..., 0] if running is None else running[reach[..., 1]] - running[reach[..., 0]]
        fresh = first == torch.arange(place.shape[1], device=place.device)
        kept = fresh & (place < len(span)) & (only[:, None] | (below == whole))
        found.append(torch.where(kept, place + start, end))
    node = torch.cat(found, 1).sort(1).values
    longest = int((node < end).sum(1).max()) if node.numel() else 0
    node = torch.nn.functional.pad(node, (0, 1), value=end)[:, : max(1, longest)]
    return ListedNodes(node.contiguous(), only)


def _above(span: Tensor, leaf: Tensor) -> Tensor:
    """The node of a level above each path, for spans [nodes, 2] and paths [B, E]."""
    return torch.searchsorted(span[:, 1].contiguous(), leaf, right=True).clamp_max(len(span) - 1)
