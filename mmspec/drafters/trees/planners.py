"""Planners of static trees: from measured acceptance (and costs) to the `Template` with the largest expected length.

Acceptance is a table: `accuracy[d][r]` is the probability that the rank-r child at level d is kept, given that its parent was; a plain
list, one number a rank, holds at every level. Planners assume, as Medusa does, that this probability depends on level and rank alone: a
path's probability is a product, and a tree's expected length the sum over its paths. The assumption holds best where a sibling's
probability does not depend on the siblings after it: `top`, with and without replacement. `Calibration` measures the table,
`measure_costs` the costs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import prod

import numpy as np

from mmspec.drafters.trees.static import NodePath, Template

Accuracy = Sequence[Sequence[float]] | Sequence[float]


def expected_length(template: Template, accuracy: Accuracy) -> float:
    """Return the mean number of values a round commits: 1 plus the probability of every path. Levels and ranks beyond the table count as
    0.
    """
    table = _table(accuracy, template.depth)
    return 1.0 + sum(prod(_rate(table, depth, rank) for depth, rank in enumerate(path)) for path in template.paths)


def _rate(table: list[list[float]], depth: int, rank: int) -> float:
    return table[depth][rank] if depth < len(table) and rank < len(table[depth]) else 0.0


def _table(accuracy: Accuracy, depth: int) -> list[list[float]]:
    """One row of rates a level, at most `depth` rows. ValueError unless they are probabilities."""
    rows = list(accuracy)
    if rows and all(isinstance(rate, (int, float)) for rate in rows):
        rows = [rows] * depth  # by rank only: the same at every level
    table = [[float(rate) for rate in row] for row in rows[:depth]]  # type: ignore[union-attr]
    for level, row in enumerate(table):
        for rank, rate in enumerate(row):
            if not 0 <= rate <= 1:
                raise ValueError(f"accuracy[{level}][{rank}] is {rate}: a probability lies between 0 and 1")
    return table


def _check(nodes: int, depth: int = 1) -> None:
    if min(nodes, depth) < 1:
        raise ValueError(f"nodes and depth are {nodes} and {depth}: a tree has at least 1 of each")


_NOTHING = "accuracy is 0 for every draft token of the first level: calibrate on more prompts, or decode without a drafter"


def sparse_tree(accuracy: Accuracy, nodes: int) -> Template:
    """Medusa's sparse tree (Cai et al. 2024): repeatedly add the most probable path whose parent and earlier siblings are in the tree.

    Optimal for its size where a rank is never more probable than the one before it. Paths of probability 0 are left out.

    Args:
        accuracy: acceptance by level and rank; see the module's description.
        nodes: largest number of nodes.

    Returns:
        The template.

    Raises:
        ValueError: if every path has probability 0, or the table holds no probabilities.
    """
    _check(nodes)
    table = _table(accuracy, nodes)
    heap: list[tuple[float, int, NodePath, float]] = []  # the path's chance, negated; its depth; the path; its parent's chance
    paths: list[NodePath] = []

    def offer(path: NodePath, above: float) -> None:
        chance = above * _rate(table, len(path) - 1, path[-1])
        if chance > 0:
            heappush(heap, (-chance, len(path), path, above))

    offer((0,), 1.0)
    while heap and len(paths) < nodes:
        chance, _, path, above = heappop(heap)
        paths.append(path)
        offer((*path[:-1], path[-1] + 1), above)
        offer((*path, 0), -chance)
    if not paths:
        raise ValueError(_NOTHING)
    return Template(tuple(paths))


def sequoia(
    acceptance: Accuracy, nodes: int, depth: int, draft_seconds: float, verify_seconds: Callable[[int], float] | Mapping[int, float]
) -> tuple[Template, float]:
    """Sequoia's tree (Chen et al. 2024): the tree with the least seconds per committed value.

    For every size and depth the best tree is found exactly, by dynamic programming over siblings and levels.

    Args:
        acceptance: acceptance by rank (as in Sequoia) or by level and rank.
        nodes: largest number of nodes.
        depth: largest number of levels.
        draft_seconds: seconds of one level of drafting.
        verify_seconds: seconds to verify n nodes: a function, or a table that is interpolated linearly.

    Returns:
        The template and its expected length.

    Raises:
        ValueError: for negative costs, or as `sparse_tree`.
    """
    _check(nodes, depth)
    if not draft_seconds >= 0:
        raise ValueError(f"draft_seconds is {draft_seconds}: a drafter step takes 0 or more seconds")
    table = _table(acceptance, depth)
    if not any(rate > 0 for row in table[:1] for rate in row[:1]):
        raise ValueError(_NOTHING)
    cost, best = _cost(verify_seconds), None
    for levels in range(1, len(table) + 1):
        plan = _Plan(table[:levels], nodes)
        for size in range(1, nodes + 1):
            length = 1 + plan.gain(size)
            found = ((levels * draft_seconds + cost(size)) / length, levels, size)
            if best is None or found < best[0]:
                best = found, plan, length
    (_, _, size), plan, length = best  # pyright: ignore[reportGeneralTypeIssues]
    return Template(tuple(plan.paths(size))), float(length)


def _cost(verify_seconds: Callable[[int], float] | Mapping[int, float]) -> Callable[[int], float]:
    if callable(verify_seconds):
        return verify_seconds
    sizes = sorted(verify_seconds)
    return lambda size: float(np.interp(size, sizes, [verify_seconds[known] for known in sizes]))


class _Plan:
    """The best forests under a node of each level, for every number of nodes up to `nodes`.

    `below[d][n]` is what n nodes under a kept node of level d add to the expected length, at most. `take[d][r][n]` says how many
    of n nodes, left for the children from rank r on, go to child r and what is under it; 0: there is no such child.
    """

    def __init__(self, table: list[list[float]], nodes: int):
        self.below = [np.zeros(nodes + 1)]
        self.take: list[list[np.ndarray]] = []
        for row in reversed(table):
            gain, takes = np.zeros(nodes + 1), []
            for rate in reversed(row):
                gain, take = _share(rate * (1 + self.below[0]), gain)
                takes.insert(0, take)
            self.below.insert(0, gain)
            self.take.insert(0, takes)

    def gain(self, size: int) -> float:
        return self.below[0][size]

    def paths(self, size: int, path: NodePath = ()) -> Iterator[NodePath]:
        """The best `size` nodes under `path`, or fewer where more would add nothing."""
        for rank, take in enumerate(self.take[len(path)] if len(path) < len(self.take) else ()):
            own = int(take[size])
            if own == 0:
                return
            yield (*path, rank)
            yield from self.paths(own - 1, (*path, rank))
            size -= own


def _share(child: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every number of nodes n: the maximum of child[k - 1] + rest[n - k] over k, or 0 without the child; and that k."""
    gain, take = np.zeros_like(rest), np.zeros(len(rest), dtype=int)
    for size in range(1, len(rest)):
        options = child[:size] + rest[size - 1 :: -1]  # k = 1 .. size
        best = int(options.argmax())
        if options[best] > 0:
            gain[size], take[size] = options[best], best + 1
    return gain, take
