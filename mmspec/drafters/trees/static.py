"""Static draft trees (Medusa, Cai et al. 2024): a template fixes the tree in advance and the drafter fills in the values."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Budget, Draft
from mmspec.drafters.shapes import UNRUN, Pick, Score, at_most, concatenate_distributions, draw_without_replacement
from mmspec.utils.devices import to_device
from mmspec.utils.names import shown

MOST_NODES = 4096
"""The most nodes of a tree: all are scored in one forward of the target."""
NodePath = tuple[int, ...]
"""A node, named by the ranks on the way to it: (0, 2) is the third child of the root's first child."""


class Level(NamedTuple):
    """The nodes of one level: the index of each node's parent in the level above, and its rank among that parent's children."""

    above: tuple[int, ...]
    rank: tuple[int, ...]


# --- templates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A fixed tree, given by the paths of its nodes.

    Args:
        paths: one path of ranks per node; (0, 2) is the third child of the root's first child. Every node needs its parent and its earlier
            siblings. Stored in level order; in JSON a list of lists, such as [[0], [1], [0, 0]].

    Raises:
        ValueError: naming the path that does not fit.
    """

    paths: tuple[NodePath, ...]

    def __post_init__(self):
        object.__setattr__(self, "paths", _checked(self.paths))

    @staticmethod
    def branching(counts: Sequence[int]) -> "Template":
        """Return the tree with `counts[d]` children under every node of level d: (4, 2, 1) has 4 + 8 + 8 nodes."""
        counts = tuple(counts) if isinstance(counts, Iterable) and not isinstance(counts, str | bytes) else (counts,)  # pyright: ignore
        if not counts or not all(_whole(count) and count >= 1 for count in counts):
            raise ValueError(f"branching of the tree is {shown(counts)}: give at least one level, each with 1 or more children")
        nodes = size = 0
        for count in counts:
            size = count * max(size, 1)
            nodes += size
            if nodes > MOST_NODES:
                raise ValueError(f"tree {','.join(map(str, counts[:12]))} has more than {MOST_NODES} nodes: give fewer levels or children")
        levels = range(1, len(counts) + 1)
        return Template(tuple(path for depth in levels for path in product(*(range(count) for count in counts[:depth]))))

    @staticmethod
    def read(path: str | Path) -> "Template":
        """Read a template from a JSON file. ValueError if it is missing or invalid."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"template {path} does not exist: write one with mmspec recipe text/plan_tree.py -- --out FILE.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"template {path} cannot be read as JSON: {' '.join(str(error).split())}") from None
        return Template(found)

    def to_json(self) -> list[list[int]]:
        """Return plain data that `json.dump` can write."""
        return [list(path) for path in self.paths]

    @property
    def size(self) -> int:
        """Number of nodes, without the root."""
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Number of levels."""
        return len(self.paths[-1])

    @cached_property
    def width(self) -> int:
        """Largest number of children of a node."""
        return 1 + max(path[-1] for path in self.paths)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The tree level by level."""
        found: list[Level] = []
        place: dict[NodePath, int] = {(): 0}
        for _, level in groupby(self.paths, len):
            paths = list(level)
            found.append(Level(tuple(place[path[:-1]] for path in paths), tuple(path[-1] for path in paths)))
            place = {path: index for index, path in enumerate(paths)}
        return tuple(found)

    def cut(self, depth: int) -> "Template":
        """Return the levels down to `depth`, at least 1."""
        return Template(tuple(path for path in self.paths if len(path) <= depth))


def _checked(paths: Any) -> tuple[NodePath, ...]:
    """`paths` in level order. ValueError unless they are a tree."""
    if not isinstance(paths, Sequence) or isinstance(paths, str) or not paths:
        raise ValueError(f"template is {paths!r}: give a list of paths of ranks, such as [[0], [1], [0, 0]]")
    for path in paths:
        if not isinstance(path, Sequence) or isinstance(path, str) or not path or not all(_whole(rank) and rank >= 0 for rank in path):
            raise ValueError(f"template holds {path!r}: a path is a list of ranks from 0, such as [0, 2]")
    if len(paths) > MOST_NODES:
        raise ValueError(f"template has {len(paths)} nodes: give at most {MOST_NODES}")
    found: set[NodePath] = {tuple(path) for path in paths}
    if len(found) < len(paths):
        twice = next(path for index, path in enumerate(paths) if path in paths[:index])
        raise ValueError(f"template holds {list(twice)} twice: name every node once")
    for path in found:
        above, rank = path[:-1], path[-1]
        if above and above not in found:
            raise ValueError(f"template holds {list(path)} without its parent {list(above)}: add the parent or leave the path out")
        before = (*above, rank - 1)
        if rank > 0 and before not in found:
            raise ValueError(f"template holds {list(path)} without {list(before)}: siblings are drawn in order, so ranks have no gaps")
    return tuple(sorted(found, key=lambda path: (len(path), path)))


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


# --- the shape --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaticTree:
    """Draft tree of a fixed template (Medusa, Cai et al. 2024).

    The rank-r child of a node is the r-th sibling that `pick` returns there: the value of rank r for `top`, the r-th draw for sampled
    siblings. The form never depends on drawn values, so every sibling rule stays exact for the pick it assumes. The drafter runs only
    nodes with children, one call a level; the draft length of a round cuts the levels. Draws are keyed by the node's place in the
    template, so a row drafts the same alone and in a batch.

    Args:
        template: the tree.
        pick: how siblings are picked: `draw_without_replacement`, `draw_with_replacement`, `top` or `top_and_one`.
    """

    template: Template
    pick: Pick = draw_without_replacement

    @property
    def depth(self) -> int:
        """Number of levels."""
        return self.template.depth

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        start, last, width = draft.start, draft.roots - 1, self.template.width
        stages = _stages(self.template, budget.length, start.device)
        if not stages:
            return draft, draft.parents[:, draft.roots :]
        inner, valid = draft, draft.valid[:, last:]  # `inner` holds the nodes that have children: what the drafter runs
        values, parents, distributions, recorded = [], [], [], False
        for depth, stage in enumerate(stages):
            distribution = score(inner).p.last(len(stage.keys))
            keys = noise.draft_token((start + depth)[:, None].expand(-1, len(stage.keys)), start, stage.keys)
            value, real, recorded = self._siblings(distribution, keys, stage)
            valid = real & valid[:, stage.above] & (budget.draft_tokens > depth)[:, None]
            values.append(value)
            parents.append(torch.where(valid, stage.parents + last, PAD))
            distributions.append(distribution)
            if depth + 1 < len(stages):
                above = torch.where(valid[:, stage.inside], stage.inner_parents + last, PAD)
                inner = inner.extend(value[:, stage.inside], above, linear=width == 1, width=width, levels=depth + 1)
        q = (
            concatenate_distributions(distributions).at(torch.cat([stage.distributions for stage in stages]).expand(len(start), -1))
            if recorded
            else None
        )
        final = draft.extend(torch.cat(values, 1), torch.cat(parents, 1), q, linear=width == 1, width=width, levels=len(stages))
        origin = torch.cat([stage.origin for stage in stages]) + last
        return final, origin.expand(len(start), -1)

    def _siblings(self, distribution: Any, keys: Keys, stage: "_Stage") -> tuple[Tensor, Tensor, bool]:
        """The values of a level [B, n, *value], which of them are real [B, n], and whether q is to be recorded.

        Parents that have equally many children are served together: what is drawn may depend on their number.
        """
        values, real, recorded = [], [], False
        for which, count in stage.groups:
            value, possible, recorded = self.pick(
                distribution.at(which.expand(len(keys.words), -1)), keys[:, which], at_most(distribution, count)
            )
            missing = (0, count - possible.shape[-1])  # a distribution over fewer values than siblings
            values.append((torch.nn.functional.pad(value, missing) if missing[1] else value).flatten(1, 2))
            real.append(torch.nn.functional.pad(possible, missing).flatten(1))
        return torch.cat(values, 1)[:, stage.order], torch.cat(real, 1)[:, stage.order], recorded


class _Stage(NamedTuple):
    """One level of a template as indices on the device. Columns count from the last root, which is 0; n nodes, k parents."""

    keys: Tensor  # [k] columns of the parents in the finished draft
    groups: tuple[tuple[Tensor, int], ...]  # parents with equally many children, and how many those have
    order: Tensor  # [n] where each node stands among the groups' children
    above: Tensor  # [n] each node's parent in the level above
    parents: Tensor  # [n] the parent's column in the finished draft
    distributions: Tensor  # [n] the parent among all nodes that have children
    inside: Tensor  # the nodes of this level that have children themselves
    inner_parents: Tensor  # and the column of each one's parent in the draft that is scored
    origin: Tensor  # [n] each node's own column there, UNRUN if it has none


@lru_cache(maxsize=64)
def _stages(template: Template, length: int, device: torch.device) -> tuple[_Stage, ...]:
    """The levels of `template` down to `length`; nodes that have children only below that count as leaves."""
    if length < 1:
        return ()
    paths = template.cut(length).paths
    parents = {path[:-1] for path in paths}
    column = {path: index for index, path in enumerate([(), *paths])}
    inner = {path: index for index, path in enumerate(path for path in [(), *paths] if path in parents)}

    def tensor(numbers: Any) -> Tensor:
        return to_device(list(numbers), device, torch.long)

    stages: list[_Stage] = []
    above: list[NodePath] = [()]
    for _, level in groupby(paths, len):
        nodes, places = list(level), {path: index for index, path in enumerate(above)}
        speaking, children = [path for path in above if path in parents], Counter(node[:-1] for node in nodes)
        counts = [children[path] for path in speaking]
        groups = [([i for i, own in enumerate(counts) if own == count], count) for count in sorted(set(counts))]
        grouped: list[NodePath] = [(*speaking[i], rank) for which, count in groups for i in which for rank in range(count)]
        inside = [node for node in nodes if node in parents]
        stages.append(
            _Stage(
                keys=tensor(column[path] for path in speaking),
                groups=tuple((tensor(which), count) for which, count in groups),
                order=tensor(grouped.index(node) for node in nodes),
                above=tensor(places[node[:-1]] for node in nodes),
                parents=tensor(column[node[:-1]] for node in nodes),
                distributions=tensor(inner[node[:-1]] for node in nodes),
                inside=tensor(nodes.index(node) for node in inside),
                inner_parents=tensor(inner[node[:-1]] for node in inside),
                origin=tensor(inner.get(node, UNRUN) for node in nodes),
            )
        )
        above = nodes
    return tuple(stages)
