"""A trie over token paths of one length, laid out so that children are found by arithmetic on the device.

The paths are sorted, and nodes are numbered level by level in that order: the children of a node are adjacent, and so are the paths below
it. Two numbers a node suffice: its first child and its first path. Vectorised tries with sparse rows are due to Su et al. 2026 (STATIC),
who store edges; numbering the nodes in sorted order makes edges unnecessary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmspec.core.beams.listed import ListedNodes, with_ancestors
from mmspec.core.rows.changes import rows_of

NOWHERE = -1
"""The state that stands for no node."""
_MOST_LISTED = 2**18
"""Entries up to which the children of all nodes are written down, so that a level is two look-ups."""


@dataclass(frozen=True, slots=True)
class Children:
    """The children of M nodes a row, C columns each."""

    state: Tensor  # [B, M, C] the node, NOWHERE where there is none
    token: Tensor  # [B, M, C] what leads to it; 0 where there is none

    @property
    def valid(self) -> Tensor:
        """[B, M, C] bool: there is a child."""
        return self.state != NOWHERE


@dataclass(frozen=True)
class Trie:
    """N nodes over P distinct paths of `levels` tokens; node 0 is the root.

    `allowed` excludes nodes, for all rows or row by row; `listed` admits or excludes a few nodes of each row.
    """

    token: Tensor  # [N] int32 the token that leads to a node; 0 for the root
    child: Tensor  # [N + 1] int32 the first child of a node; the last one ends where the next node's begin
    span: Tensor  # [N, 2] int32 the first path below a node, and the one behind its last
    starts: tuple[int, ...]  # the first node of every level, root and leaves included
    widths: tuple[int, ...]  # per level: the most children that any node on it, or on a deeper one, has
    allowed: Tensor | None = None  # [N] or [B, N] bool
    listed: ListedNodes | None = None
    tables: dict[int, Children] = field(default_factory=dict, repr=False, compare=False)  # by columns: of all nodes, then of NOWHERE

    @staticmethod
    def of(paths: Tensor) -> "Trie":
        """The trie over distinct, sorted `paths` [P, L], in int32."""
        count, levels = paths.shape
        if not count or not levels:
            raise ValueError(f"paths have shape {tuple(paths.shape)}: give at least one path of at least one token")
        if count * levels >= 2**31 - 1:
            raise ValueError(f"{count} paths of {levels} tokens are more than a trie can number: give fewer than 2**31 tokens")
        fresh = _fresh(paths)
        first = [torch.zeros(1, dtype=torch.int32, device=paths.device), *(column.nonzero()[:, 0].int() for column in fresh)]
        sizes = [len(column) for column in first]
        starts = [sum(sizes[:level]) for level in range(levels + 1)]
        tokens = [torch.zeros_like(first[0]), *(paths[begin, level].int() for level, begin in enumerate(first[1:]))]
        child = [
            torch.searchsorted(below, above, out_int32=True).add_(begin)
            for begin, above, below in zip(starts[1:], first[:-1], first[1:], strict=True)
        ]
        end = torch.full((count + 1,), starts[levels] + count, dtype=torch.int32, device=paths.device)
        children = torch.cat([*child, end])  # a node's first child begins where it does
        most = [int((children[1:] - children[:-1])[begin : starts[levels]].max()) for begin in starts[:levels]]
        ends = [torch.cat([begin[1:], begin.new_full((1,), count)]) for begin in first]
        return Trie(torch.cat(tokens), children, torch.stack([torch.cat(first), torch.cat(ends)], 1), tuple(starts), tuple(most))

    @property
    def levels(self) -> int:
        """Tokens in a path."""
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """Number of distinct paths P, whatever is allowed."""
        return len(self.token) - self.starts[-1]

    def to(self, device: torch.device | str) -> "Trie":
        """Move the tables to a device."""
        if self.token.device == torch.device(device):
            return self
        allowed = None if self.allowed is None else self.allowed.to(device)
        tables = {name: getattr(self, name).to(device) for name in ("token", "child", "span")}
        return replace(self, **tables, allowed=allowed, listed=None if self.listed is None else self.listed.to(device), tables={})

    @property
    def unrestricted(self) -> bool:
        """True if all paths are allowed in every row."""
        return self.allowed is None and self.listed is None

    def count_children(self, state: Tensor) -> Tensor:
        """[B, M] how many children nodes `state` [B, M] have, allowed or not; NOWHERE has none."""
        node = state.clamp_min(0)
        return torch.where(state == NOWHERE, 0, self.child[node + 1] - self.child[node])

    def children(self, state: Tensor, level: int) -> Children:
        """The allowed children of nodes `state` [B, M] on `level` or deeper; NOWHERE has none."""
        every = self._every_child(state, self.widths[level])
        if self.unrestricted:
            return every
        valid, flat = every.valid, every.state.clamp_min(0).flatten(1)
        if self.allowed is not None:
            valid = valid & (self.allowed[flat] if self.allowed.dim() == 1 else self.allowed.gather(1, flat)).view_as(valid)
        if self.listed is not None:
            valid = valid & self.listed.admit(flat).view_as(valid)
        return Children(torch.where(valid, every.state, NOWHERE), torch.where(valid, every.token, 0))

    def _every_child(self, state: Tensor, width: int) -> Children:
        """The children of nodes `state` [B, M], allowed or not, in `width` columns."""
        if len(self.child) * width > _MOST_LISTED:
            return self._found_children(state, width)
        if width not in self.tables:
            with torch.inference_mode(False):  # it outlives the search
                nodes = torch.arange(len(self.child), device=state.device)
                self.tables[width] = self._found_children(torch.where(nodes < len(self.token), nodes, NOWHERE), width)
        table = self.tables[width]
        return Children(table.state[state], table.token[state])  # NOWHERE, -1, is the last entry

    def _found_children(self, state: Tensor, width: int) -> Children:
        """The children of nodes `state` [...], by arithmetic."""
        node = state.clamp_min(0)
        found = self.child[node][..., None] + torch.arange(width, device=state.device)
        valid = (found < self.child[node + 1][..., None]) & (state != NOWHERE)[..., None]
        return Children(torch.where(valid, found, NOWHERE), torch.where(valid, self.token[torch.where(valid, found, 0)].long(), 0))

    def below(self, weights: Tensor) -> Tensor:
        """The sum of `weights` [..., P] over the paths below every node, [..., N], in float64 or int64."""
        exact = torch.float64 if weights.is_floating_point() else torch.long  # differences of long sums
        total = torch.nn.functional.pad(weights.cumsum(-1, dtype=exact), (1, 0))
        return total[..., self.span[:, 1]] - total[..., self.span[:, 0]]

    def only(self, paths: Tensor) -> "Trie":
        """This trie with only `paths` ([P] or [B, P] bool) allowed. Nodes stay as they are, so it costs one pass."""
        return replace(self, allowed=self.below(paths.long()) > 0, listed=None)

    def list_paths(self, leaf: Tensor, only: Tensor) -> "Trie":
        """This trie with some paths admitted or excluded for each row, at a cost that follows their number and not the trie's.

        Args:
            leaf: LongTensor [B, E], numbers of distinct paths, -1 for none.
            only: bool [B], True where these are the only paths, False where they are excluded.

        Returns:
            The trie with `listed`.

        Raises:
            ValueError: where `allowed` already differs from row to row, or paths are listed already.
        """
        if self.listed is not None or (self.allowed is not None and self.allowed.dim() > 1):
            raise ValueError("the trie is restricted row by row already: combine the restrictions in one")
        leaf, running = torch.where(leaf < 0, self.size, leaf), None
        if self.allowed is not None:
            there = self.allowed[self.starts[-1] :]
            running = torch.nn.functional.pad(there.cumsum(0), (1, 0))
            leaf = torch.where(torch.nn.functional.pad(there, (0, 1))[leaf], leaf, self.size)
        ends = (*self.starts[1:], len(self.token))
        spans = [self.span[start:end] for start, end in zip(self.starts, ends, strict=True)]
        return replace(self, listed=with_ancestors(leaf, only, spans, self.starts, running))

    def take_rows(self, rows: Sequence[int]) -> "Trie":
        """Return this trie with the restrictions of some rows.

        Args:
            rows: their numbers, in their new order.
        """
        allowed = self.allowed if self.allowed is None or self.allowed.dim() == 1 else rows_of(self.allowed, rows)
        return replace(self, allowed=allowed, listed=None if self.listed is None else self.listed.take_rows(rows))

    def join_rows(self, other: "Trie") -> "Trie":
        """Return this trie with the restrictions of the rows of both, of which each has lists.

        Args:
            other: the same paths, and the same ones allowed for all rows.

        Raises:
            ValueError: for a trie without lists.
        """
        if self.listed is None or other.listed is None:
            raise ValueError("rows can join where both tries have lists of each row: give empty ones")
        return replace(self, listed=self.listed.join_rows(other.listed, len(self.token)))

    def open_paths(self) -> Tensor:
        """Tell which paths are allowed.

        Returns:
            Bool [1, P], or [B, P] where rows differ.
        """
        if self.allowed is None:
            found = torch.ones(1, self.size, dtype=torch.bool, device=self.token.device)
        else:
            found = self.allowed[..., self.starts[-1] :].view(-1, self.size)
        if self.listed is None:
            return found
        leaf = (self.listed.node - self.starts[-1]).clamp_min(-1)
        leaf = leaf.masked_fill(leaf < 0, self.size)  # nodes above the leaves go where the padding is
        named = torch.zeros(len(leaf), self.size + 1, dtype=torch.bool, device=leaf.device).scatter_(1, leaf, True)[:, :-1]
        return found & (named == self.listed.only[:, None])


def _fresh(paths: Tensor) -> list[Tensor]:
    """For every level, where a node begins among `paths` [P, L]: bool [P]. ValueError unless they are distinct and sorted."""
    differs = torch.zeros(len(paths) - 1, dtype=torch.bool, device=paths.device)
    found, descends = [], torch.zeros((), dtype=torch.bool, device=paths.device)
    for column in paths.unbind(1):
        before, after = column[:-1], column[1:]
        descends = descends | ((after < before) & ~differs).any()
        differs = differs | (after != before)
        found.append(torch.nn.functional.pad(differs, (1, 0), value=True))
    if bool(descends) or not bool(differs.all()):
        raise ValueError("paths must be distinct and sorted: pass torch.unique(paths, dim=0)")
    return found
