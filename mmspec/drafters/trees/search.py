"""Dynamic draft trees: EAGLE-2's expand and rerank (Li et al. 2024), two rules for its depth, and beams with common prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, Draft
from mmspec.drafters.shapes import UNRUN, Score

# --- when to stop going deeper ----------------------------------------------------------------------------------------


class GrowthStop(Protocol):
    """Ends a row's search. Path log-probabilities are the drafter's, -inf for impossible paths."""

    def stops(self, levels: Sequence[Tensor], beam: Tensor, nodes: int) -> Tensor | None:
        """Return which rows [B] end at the levels found so far; None where nothing is checked.

        Args:
            levels: path log-probabilities [B, n] of the candidates, one tensor per level.
            beam: [B, w] path log-probabilities of the nodes that would be expanded next.
            nodes: number of candidates that will be kept.
        """
        ...


@dataclass(frozen=True)
class OptTree:
    """Stop when the last level raised the expected length by no more than `delta` (OPT-Tree, Wang et al. 2024).

    The expected length is the sum of the kept nodes' path probabilities. A level pays off while it gains more than a drafter step costs in
    units of target steps, so `delta` should be just above that ratio.

    Args:
        delta: smallest gain in expected length, 0 or more.

    Raises:
        ValueError: for a negative delta.
    """

    delta: float = 0.2

    def __post_init__(self):
        if not self.delta >= 0:
            raise ValueError(f"delta is {self.delta}: a gain in expected length is 0 or more, such as 0.2")

    def stops(self, levels: Sequence[Tensor], beam: Tensor, nodes: int) -> Tensor:
        """Return which rows [B] end their search; see `GrowthStop.stops`."""
        return expected(levels, nodes) - expected(levels[:-1], nodes) <= self.delta


def expected(levels: Sequence[Tensor], nodes: int) -> Tensor:
    """Return the sum [B] of the `nodes` largest path probabilities; 0 without levels."""
    if not levels:
        return torch.zeros(())
    scores = torch.cat(list(levels), 1)
    return scores.topk(min(nodes, scores.shape[1]), -1).values.exp().sum(-1)


@dataclass(frozen=True)
class DynamicDepth:
    """Stop at given depths where the beam holds too little probability (Dynamic Depth Decoding, Brown et al. 2024).

    Args:
        depths: levels after which the beam is checked, from 1.
        threshold: a row stops where the log of its beam's summed path probabilities is below this.

    Raises:
        ValueError: for depths or a threshold out of range.
    """

    depths: tuple[int, ...] = (2, 4, 6)
    threshold: float = -0.7

    def __post_init__(self):
        object.__setattr__(self, "depths", tuple(self.depths))
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths is {self.depths}: name at least one level to look at, counted from 1")
        if not self.threshold <= 0:
            raise ValueError(f"threshold is {self.threshold}: a log-probability is 0 or less, such as -0.7")

    def stops(self, levels: Sequence[Tensor], beam: Tensor, nodes: int) -> Tensor | None:
        """Return which rows [B] end their search; see `GrowthStop.stops`."""
        return beam.logsumexp(-1) < self.threshold if len(levels) in self.depths else None


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpandRerank:
    """EAGLE-2's tree (Li et al. 2024): expand the likeliest paths level by level, then keep the best nodes of all.

    Every row gets its own tree, for at most `depth` drafter calls. With a `stop`, rows end one by one and hold PAD below; each checked
    level costs one host synchronisation.

    Args:
        width: paths expanded per level.
        depth: largest number of levels.
        nodes: nodes kept.
        stop: rule that ends a row's search, `OptTree` or `DynamicDepth`.

    Raises:
        ValueError: if a size is below 1.
    """

    width: int = 4
    depth: int = 4
    nodes: int = 16
    stop: GrowthStop | None = None

    def __post_init__(self):
        if min(self.width, self.depth, self.nodes) < 1:
            raise ValueError(f"width, depth and nodes are {self.width}, {self.depth}, {self.nodes}: each must be at least 1")

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        rows, roots, device = len(draft.start), draft.roots, draft.start.device
        most = min(self.depth, budget.length)
        values: list[Tensor] = []  # per level, [B, n] candidates: their token, path log-probability, parent candidate and column
        scores: list[Tensor] = []
        above: list[Tensor] = []
        columns: list[Tensor] = []  # in the scored draft, UNRUN if never expanded
        scored_draft, total = draft, 0
        path = torch.zeros(rows, 1, device=device)
        candidate = torch.full((rows, 1), -1, dtype=torch.long, device=device)
        for level in range(most):
            distribution = score(scored_draft).p.last(path.shape[1])
            width = min(self.width, distribution.size)
            log_q, token = distribution.log_probs().topk(width, -1)
            log_q = torch.where((budget.draft_tokens > level)[:, None, None] & draft.valid[:, roots - 1, None, None], log_q, -torch.inf)
            value = (path[..., None] + log_q).flatten(1)
            values.append(token.flatten(1))
            scores.append(value)
            above.append(candidate[..., None].expand(-1, -1, width).flatten(1))
            columns.append(torch.full_like(values[-1], UNRUN))
            if level + 1 == most:
                break
            path, chosen = value.topk(min(self.width, value.shape[1]), -1)
            path, over = self._checked(path, scores)
            if over:
                break
            candidate = chosen + total
            total += value.shape[1]
            below = torch.arange(scored_draft.size, scored_draft.size + chosen.shape[1], device=device).expand(rows, -1)
            parent_columns, runs = _column_of(above[-1].gather(1, chosen), columns, roots), path > -torch.inf
            columns[-1] = _expanded(columns[-1], chosen, below, runs)
            parents = torch.where(runs, parent_columns, PAD)
            scored_draft = scored_draft.extend(values[-1].gather(1, chosen), parents, width=self.width, levels=level + 1)
        found = [torch.cat(parts, 1) for parts in (values, scores, above, columns)]
        return self._rerank(draft, *found, levels=len(values))

    def _checked(self, beam: Tensor, levels: list[Tensor]) -> tuple[Tensor, bool]:
        """The beam without the rows that stop, and whether all have stopped."""
        stopped = None if self.stop is None else self.stop.stops(levels, beam, self.nodes)
        if stopped is None:
            return beam, False
        return torch.where(stopped[:, None], -torch.inf, beam), bool(stopped.all())

    def _rerank(self, draft: Draft, values: Tensor, scores: Tensor, above: Tensor, columns: Tensor, *, levels: int) -> tuple[Draft, Tensor]:
        """Keep the best candidates."""
        return _reranked(draft, values, scores, above, columns, nodes=self.nodes, width=self.width, levels=levels)


@dataclass(frozen=True)
class BeamTree(ExpandRerank):
    """The likeliest paths of full length, as a tree in which common prefixes are drafted once (ReDrafter, Cheng et al. 2024).

    A beam search of `width` beams: the nodes are the final beams' alone, at most `width` a level. `nodes` is not read.
    """

    def _rerank(self, draft: Draft, values: Tensor, scores: Tensor, above: Tensor, columns: Tensor, *, levels: int) -> tuple[Draft, Tensor]:
        """Keep the ancestors of the best candidates of the row's deepest level."""
        parent, depth = above.clamp_min(0), torch.zeros_like(above)
        for _ in range(levels - 1):
            depth = torch.where(above >= 0, depth.gather(1, parent) + 1, 0)
        possible = scores > -torch.inf
        last = possible & (depth == torch.where(possible, depth, 0).amax(1, keepdim=True))
        best = scores.masked_fill(~last, -torch.inf).topk(min(self.width, scores.shape[1]), -1)
        kept = torch.zeros_like(depth).scatter(1, best.indices, (best.values > -torch.inf).long())
        for _ in range(levels - 1):
            kept = kept.scatter_reduce(1, parent, torch.where(above >= 0, kept, 0), "amax")
        scores, nodes = scores.masked_fill(kept == 0, -torch.inf), self.width * levels
        return _reranked(draft, values, scores, above, columns, nodes=nodes, width=self.width, levels=levels)


def _reranked(
    draft: Draft, values: Tensor, scores: Tensor, above: Tensor, columns: Tensor, *, nodes: int, width: int, levels: int
) -> tuple[Draft, Tensor]:
    """`draft` with the best `nodes` candidates, and their columns. The sort is stable and prefers shallower ones, so parents are kept
    before their children."""
    count = min(nodes, values.shape[1])
    kept = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(-1).values
    new_column = torch.full_like(values, PAD).scatter_(
        1, kept, torch.arange(count, device=values.device).expand(len(kept), -1) + draft.roots
    )
    parent = above.gather(1, kept)
    parents = torch.where(parent >= 0, new_column.gather(1, parent.clamp_min(0)), draft.roots - 1)
    parents = torch.where(scores.gather(1, kept) > -torch.inf, parents, PAD)
    return draft.extend(values.gather(1, kept), parents, width=width, levels=levels), columns.gather(1, kept)


def _expanded(columns: Tensor, chosen: Tensor, below: Tensor, runs: Tensor) -> Tensor:
    """A level's scored columns [B, n] with those of the `chosen` candidates [B, w] filled in: `below` [B, w] where they are run.

    Rows that have stopped hold PAD in these columns. Their candidates stay UNRUN, or states of PAD nodes would be taken for theirs.
    """
    return columns.scatter(1, chosen, torch.where(runs, below, UNRUN))


def _column_of(candidates: Tensor, columns: list[Tensor], roots: int) -> Tensor:
    """Scored columns of candidates [B, n]; -1 stands for the last root."""
    known = torch.cat(columns, 1)
    return torch.where(candidates >= 0, known.gather(1, candidates.clamp_min(0)), roots - 1)
