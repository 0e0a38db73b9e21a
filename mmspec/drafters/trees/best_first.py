"""Best-first draft trees (SpecExec, Svirschevski et al. 2024; DySpec, Xiong et al. 2024): the likeliest paths of all, for large trees.

Where a forward of the target costs the same for one column as for a thousand, as with weights on disk, a round should score as many
likely continuations as fit. The candidates of a row stand in one list, sorted by path probability. A call of the drafter expands the best
ones that have not been expanded; their children are merged into the list, which keeps the best `nodes`.
"""

from dataclasses import dataclass, replace
from itertools import count
from math import log
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Budget, Draft
from mmspec.drafters.shapes import UNRUN, Score
from mmspec.drafters.trees.static import MOST_NODES


@dataclass(frozen=True)
class BestFirst:
    """The `nodes` likeliest paths under the drafter, found best first (SpecExec, Svirschevski et al. 2024; DySpec, Xiong et al. 2024).

    Every row gets its own tree. Its columns stand in the order of their path probabilities, so that the first n of them are the tree of
    size n. A search ends where every kept node has been expanded: with unlimited `width` and `children` the tree is then exactly the set
    of the most probable paths. Drafters that score a level a call (trained nets, heads) expand nodes of the newest level alone; models
    expand the best nodes of all levels together. Each call of the drafter costs one host synchronisation.

    A round's draft length is the number of nodes here, not the depth.

    Under the coupled rule the target's noise g is known while drafting. A value's probability is then taken to be its share of
    q(x) exp(g(x)) among the node's `children`: the chance that the target draws it if its log-probabilities are the drafter's plus
    independent Gumbel errors.

    Args:
        nodes: largest number of nodes kept, at most 4,096.
        width: largest number of nodes that a drafter call expands in a row; None for all kept nodes that have not been expanded, which
            takes the fewest calls.
        depth: largest number of draft tokens on a path.
        children: largest number of children of a node.
        threshold: nodes whose path probability is below it are neither kept nor expanded, the likeliest one excepted (DySpec's variant
            of few drafter calls).
        mixed: expand nodes of several depths in one call. Set by drafters that can score those.

    Raises:
        ValueError: if a number is out of range.
    """

    nodes: int = 1024
    width: int | None = 32
    depth: int = 64
    children: int = 32
    threshold: float = 0.0
    mixed: bool = False

    def __post_init__(self):
        if not 1 <= self.nodes <= MOST_NODES:
            raise ValueError(f"nodes is {self.nodes}: a tree has 1 to {MOST_NODES} nodes")
        if min(self.depth, self.children, 1 if self.width is None else self.width) < 1:
            raise ValueError(f"width, depth and children are {self.width}, {self.depth}, {self.children}: each must be at least 1")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}: a path probability lies between 0 and below 1, such as 0.001")

    def limited(self, most: int) -> "BestFirst":
        """Return this shape with at most `most` draft tokens on a path."""
        return replace(self, depth=min(self.depth, most))

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        floor = log(self.threshold) if self.threshold > 0 else -torch.inf
        nodes = min(self.nodes, budget.length)
        limit = torch.where(draft.valid[:, draft.roots - 1], (budget.left - 1).clamp(0, min(self.depth, nodes)), 0)[:, None]
        candidates, grown = _Candidates.none(draft), draft
        parents = _Parents.root(draft)
        for level in count(1):
            distribution = score(grown).p.last(parents.column.shape[1])
            fresh = self._children(distribution, parents, limit, nodes, self._noise(draft, parents, noise))
            candidates = candidates.merged(fresh, nodes)
            waiting = candidates.waiting(floor) & (candidates.depth < limit)
            if not self.mixed:
                waiting = waiting & (candidates.depth == level)
            most = int(waiting.sum(1).max())
            if most == 0:
                break
            chosen, real = _first(waiting, most if self.width is None else min(most, self.width))
            values, above = candidates.value.gather(1, chosen), torch.where(real, candidates.above.gather(1, chosen), PAD)
            candidates, parents = candidates.expanded(chosen, real, grown.size)
            grown = grown.extend(values, above, width=self.children, levels=min(level, self.depth))
        return candidates.finished(draft, grown.size, floor)

    @staticmethod
    def _noise(draft: Draft, parents: "_Parents", noise: Noise) -> Keys | None:
        """The target's noise at the positions after `parents`; None where it is not shared."""
        return noise.draft_token(draft.start[:, None] + parents.depth, draft.start) if noise.coupled else None

    def _children(self, distribution: Any, parents: "_Parents", limit: Tensor, nodes: int, keys: Keys | None) -> "_Candidates":
        """The likeliest children of the nodes that were expanded last."""
        many = min(self.children, nodes, distribution.size)
        if keys is None:
            log_q, token = distribution.log_probs().topk(many, -1)  # [B, w, many]
        else:
            token, scores = distribution.distinct(keys, many)
            log_q = (scores.float() + keys.gumbel_at(token).float()).log_softmax(-1)
        deeper = (parents.depth + 1)[..., None].expand_as(token).flatten(1)
        path = (parents.path[..., None] + log_q.clamp(max=0)).flatten(1)
        path = torch.where(deeper <= limit, path, -torch.inf)
        above = parents.column[..., None].expand_as(token).flatten(1)
        return _Candidates(token.flatten(1), path, above, torch.full_like(above, UNRUN), deeper)


@dataclass(frozen=True, slots=True)
class _Parents:
    """The nodes that a drafter call expands."""

    column: Tensor  # [B, w] in the scored draft
    path: Tensor  # [B, w] path log-probability, -inf where a row expands fewer
    depth: Tensor  # [B, w]

    @staticmethod
    def root(draft: Draft) -> "_Parents":
        last = torch.full_like(draft.parents[:, :1], draft.roots - 1)
        return _Parents(last, torch.zeros_like(last, dtype=torch.float32), torch.zeros_like(last))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates of every row, the likeliest first. Parents stand before their children."""

    value: Tensor  # [B, K]
    path: Tensor  # [B, K] path log-probability, -inf for impossible ones
    above: Tensor  # [B, K] the parent's column in the scored draft
    column: Tensor  # [B, K] own column there; UNRUN until expanded
    depth: Tensor  # [B, K] draft tokens on the path

    @staticmethod
    def none(draft: Draft) -> "_Candidates":
        empty = draft.parents[:, :0]
        return _Candidates(empty, empty.float(), empty, empty, empty)

    def merged(self, other: "_Candidates", most: int) -> "_Candidates":
        """The best `most` of both. The sort is stable, so that a child as likely as its parent stays behind it."""
        path = torch.cat([self.path, other.path.to(self.path.dtype)], 1)
        order = path.sort(dim=-1, descending=True, stable=True).indices[:, :most]
        mine, theirs = ((of.value, of.above, of.column, of.depth) for of in (self, other))
        value, above, column, depth = (torch.cat(pair, 1).gather(1, order) for pair in zip(mine, theirs, strict=True))
        return _Candidates(value, path.gather(1, order), above, column, depth)

    def kept(self, floor: float) -> Tensor:
        """[B, K] which candidates are drafted: the likeliest, and those that are no less likely than `floor`."""
        first = torch.arange(self.path.shape[1], device=self.path.device) == 0
        return (self.path > -torch.inf) & ((self.path >= floor) | first)

    def waiting(self, floor: float) -> Tensor:
        """[B, K] which candidates can be expanded."""
        return (self.column == UNRUN) & (self.path >= floor) & (self.path > -torch.inf)

    def expanded(self, chosen: Tensor, real: Tensor, first: int) -> tuple["_Candidates", _Parents]:
        """The same with the columns of those that are expanded from column `first` on, and these as parents."""
        columns = torch.arange(first, first + chosen.shape[1], device=chosen.device).expand_as(chosen)
        own = torch.cat([self.column, self.column[:, :1]], 1)  # one more for those that are not real
        own = own.scatter(1, torch.where(real, chosen, own.shape[1] - 1), columns)[:, :-1]
        path = torch.where(real, self.path.gather(1, chosen), -torch.inf)
        return replace(self, column=own), _Parents(columns, path, self.depth.gather(1, chosen))

    def finished(self, draft: Draft, scored: int, floor: float) -> tuple[Draft, Tensor]:
        """`draft` with the candidates, and their columns in the draft of `scored` columns that the drafter scored."""
        kept, roots = self.kept(floor), draft.roots
        place = torch.full_like(self.column[:, :1], roots - 1).expand(-1, scored + 1)  # of scored columns in the finished draft
        own = torch.arange(roots, roots + kept.shape[1], device=kept.device).expand_as(self.column)
        place = place.scatter(1, self.column.clamp(max=scored), own)
        parents = torch.where(kept, place.gather(1, self.above), PAD)
        siblings = torch.zeros_like(place[:, :1]).expand(-1, roots + kept.shape[1]).scatter_add(1, parents.clamp_min(0), kept.long())
        sizes = torch.stack([kept.sum(1).max(), siblings.max(), torch.where(kept, self.depth, 0).max()])
        size, width, levels = sizes.clamp_min(1).tolist()  # where no row has room, one column of PAD
        return draft.extend(self.value[:, :size], parents[:, :size], width=width, levels=levels), self.column[:, :size]


def _first(waiting: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The places of the first `most` true entries of each row [B, K], and which of them are real: [B, most]."""
    size = waiting.shape[1]
    place = torch.where(waiting, torch.arange(size, device=waiting.device), size).topk(most, largest=False, sorted=True).values
    return place.clamp(max=size - 1), place < size
