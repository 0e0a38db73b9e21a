"""A branching draft level by level: every node's states begin at those after its parent."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.records import CONTEXT, PAD
from mmspec.utils.devices import to_device

Point = tuple[int, int]
"""(row, number of columns of the draft's first, unbranched part after which its states are meant)."""


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """Nodes whose parents' states are known, one column each.

    Args:
        rows: [P] row of each node.
        columns: [P] its column among those of the forward's branching part.
        parents: [P] place of its parent's states.
        first: place of the first node's states; the others' follow.
    """

    rows: Tensor
    columns: Tensor
    parents: Tensor
    first: int


@dataclass(frozen=True, slots=True)
class TreeColumns:
    """The columns of one forward from `start` on, which belong to a branching draft.

    Args:
        start: the first of them.
        points: where new branches leave the draft's unbranched part: their states take the next places.
        levels: the nodes.
        nodes: number of nodes.
    """

    start: int
    points: Sequence[Point]
    levels: Sequence[TreeLevel]
    nodes: int


class NodePlaces:
    """Where the states after each node of a draft are kept, in one round.

    Args:
        chains: [B, N] bool, the columns of the draft's unbranched part that hold values.
        base: how many of these columns, by row, are not recorded.
    """

    def __init__(self, chains: Tensor, base: Sequence[int]):
        self.device = chains.device
        self.counts = [
            [count - first for count in line]
            for line, first in zip(chains.long().cumsum(1).tolist(), base or [0] * len(chains), strict=True)
        ]
        self.size = 0
        self._points: dict[Point, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}

    def columns(self, parents: Tensor, seen: int, start: int) -> TreeColumns:
        """Give places to the nodes of a forward. One host synchronisation.

        Args:
            parents: [B, N] column of each node's parent, CONTEXT or PAD.
            seen: columns of the draft before them.
            start: where they begin in the forward.

        Returns:
            The nodes by level.
        """
        depth: dict[tuple[int, int], int] = {}
        levels: list[list[tuple[int, int, int]]] = []
        points: list[Point] = []
        for row, line in enumerate(parents.tolist()):
            for column, parent in enumerate(line):
                if parent == PAD:
                    continue
                level = depth.get((row, parent), -1) + 1
                depth[row, seen + column] = level
                if level == len(levels):
                    levels.append([])
                levels[level].append((row, column, parent))
                if level == 0 and (row, parent) not in self._nodes:
                    points += self._new_points([self._point(row, parent)])
        found = [self._level(level, seen) for level in levels]
        return TreeColumns(start, points, found, sum(map(len, levels)))

    def places(self, last: Sequence[int]) -> tuple[list[Point], Tensor]:
        """Look up the states after one column of every row.

        Args:
            last: the columns; CONTEXT for rows that keep none.

        Returns:
            The points that have no place yet and take the next ones, and the places [B].
        """
        missing = self._new_points([self._point(row, column) for row, column in enumerate(last) if (row, column) not in self._nodes])
        return missing, to_device([self._place(row, column) for row, column in enumerate(last)], self.device)

    def _level(self, nodes: Sequence[tuple[int, int, int]], seen: int) -> TreeLevel:
        first, self.size = self.size, self.size + len(nodes)
        rows, columns, above = zip(*nodes, strict=True)
        parents = [self._place(row, parent) for row, parent in zip(rows, above, strict=True)]
        for number, (row, column) in enumerate(zip(rows, columns, strict=True)):
            self._nodes[row, seen + column] = first + number
        at, into, behind = (to_device(part, self.device) for part in (rows, columns, parents))
        return TreeLevel(at, into, behind, first)

    def _new_points(self, points: Sequence[Point]) -> list[Point]:
        """Give the next places to those of `points` that have none, and return them."""
        missing = [point for point in dict.fromkeys(points) if point not in self._points]
        for point in missing:
            self._points[point], self.size = self.size, self.size + 1
        return missing

    def _point(self, row: int, column: int) -> Point:
        return row, max(0, self.counts[row][column]) if column != CONTEXT else 0

    def _place(self, row: int, column: int) -> int:
        return self._nodes[row, column] if (row, column) in self._nodes else self._points[self._point(row, column)]
