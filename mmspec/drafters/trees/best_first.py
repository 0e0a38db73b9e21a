"""Best-first draft trees (SpecExec, Svirschevski et al. 2024; DySpec, Xiong et al. 2024): the likeliest paths of all, for large trees.

Where a forward of the target costs the same for one column as for a thousand, as with weights on disk, a round should score as many
likely continuations as fit. The candidates of a row stand in one list, sorted by path probability. A call of the drafter expands the best
ones that have not been expanded; their children are merged into the list, which keeps the best `nodes`.

Siblings that are drawn are sorted by what was known before their draw, as in DySpec: the estimated probability that their parent is
accepted and their earlier siblings are rejected. A token may then move those behind it in the list, never itself, so it is drafted or not
whatever its value, and q is the distribution of every drafted token given those before it. Of equal ones the one found first stands first.
"""

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from mmspec.core.hashing import stream_bits
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, Draft, Verdict
from mmspec.drafters.fallback import AdaptiveFallback, FallbackSession, refuse_unbegun
from mmspec.drafters.shapes import UNRUN, Score, concatenate_distributions
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
        drawn: draw siblings without replacement and record q, for rules that read it. They are sorted, and compared with `threshold`, by
            the estimated probability that they are judged (DySpec).
        agreement: estimated probability that the target accepts a drawn token whatever q gives it, 0 to below 1. The estimate for a token
            is agreement + (1 - agreement) r, where r is its probability under what its earlier siblings leave of q. 0 is DySpec's estimate.
        stop: a threshold that follows the verdicts, beside the fixed one. For drafters that are models.

    Raises:
        ValueError: if a number is out of range.
    """

    nodes: int = 1024
    width: int | None = 32
    depth: int = 64
    children: int = 32
    threshold: float = 0.0
    mixed: bool = False
    drawn: bool = False
    agreement: float = 0.5
    stop: AdaptiveFallback | FallbackSession | None = None

    def __post_init__(self):
        if not 1 <= self.nodes <= MOST_NODES:
            raise ValueError(f"nodes is {self.nodes}: a tree has 1 to {MOST_NODES} nodes")
        if min(self.depth, self.children, 1 if self.width is None else self.width) < 1:
            raise ValueError(f"width, depth and children are {self.width}, {self.depth}, {self.children}: each must be at least 1")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}: a path probability lies between 0 and below 1, such as 0.001")
        if not 0 <= self.agreement < 1:
            raise ValueError(f"agreement is {self.agreement}: a probability lies between 0 and below 1, such as 0.5")

    def limited(self, most: int) -> "BestFirst":
        """Return this shape with at most `most` draft tokens on a path."""
        return replace(self, depth=min(self.depth, most))

    def begun(self) -> "BestFirst":
        """Return this shape for one generation, where its threshold follows the verdicts."""
        return replace(self, stop=self.stop.begin()) if isinstance(self.stop, AdaptiveFallback) else self

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Let a threshold that follows the verdicts adapt to a round.

        The drafted path is the accepted one and, from its end, the first child of every node: the likeliest, or the first one drawn.
        """
        if isinstance(self.stop, FallbackSession):
            last = verdict.keep.amax(1).clamp_min(draft.roots - 1)
            drafted = verdict.accepted
            for _ in range(draft.height):
                children = draft.parents == last[:, None]
                deeper = children.any(1)
                last, drafted = torch.where(deeper, children.long().argmax(1), last), drafted + deeper
            self.stop.learn(drafted, verdict.accepted, last - draft.roots)

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        refuse_unbegun(self.stop)
        floor = self._floor(draft)
        nodes = min(self.nodes, budget.length)
        limit = torch.where(draft.valid[:, draft.roots - 1], (budget.left - 1).clamp(0, min(self.depth, nodes)), 0)[:, None]
        candidates, grown = _Candidates.none(draft), draft
        parents, recorded = _Parents.root(draft), []
        for level in count(1):
            distribution = score(grown).p.last(parents.column.shape[1])
            if self.drawn:
                recorded.append(distribution)
            candidates = candidates.merged(self._children(distribution, parents, limit, nodes, draft, noise), nodes)
            waiting = candidates.waiting(floor, nodes) & (candidates.depth < limit)
            if not self.mixed:
                waiting = waiting & (candidates.depth == level)
            most = int(waiting.sum(1).max())
            if most == 0:
                break
            chosen, real = candidates.likeliest(waiting, most if self.width is None else min(most, self.width))
            values, above = candidates.value.gather(1, chosen), torch.where(real, candidates.above.gather(1, chosen), PAD)
            candidates, parents = candidates.expanded(chosen, real, grown.size)
            grown = grown.extend(values, above, width=self.children, levels=min(level, self.depth))
        q = concatenate_distributions(recorded) if recorded else None
        final, column = candidates.finished(draft, grown.size, floor, q)
        if isinstance(self.stop, FallbackSession):
            self.stop.record(candidates.path[:, : column.shape[1]].exp())
        return final, column

    def _floor(self, draft: Draft) -> Tensor:
        """[B, 1] log-probability below which nothing is drafted."""
        floor = torch.full((len(draft.start), 1), self.threshold, device=draft.start.device)
        if isinstance(self.stop, FallbackSession):
            floor = floor.maximum(self.stop.thresholds(floor[:, 0])[:, None])
        return floor.log()

    def _children(self, distribution: Any, parents: "_Parents", limit: Tensor, nodes: int, draft: Draft, noise: Noise) -> "_Candidates":
        """Children of the nodes that were expanded last: the likeliest, or drawn ones."""
        token, *chances = self._siblings(distribution, parents, min(self.children, nodes, distribution.size), draft, noise)
        possible = (parents.depth < limit)[..., None]
        path, order = (torch.where(possible, parents.path[..., None] + of, -torch.inf) for of in chances)
        order = order.minimum(parents.order[..., None])  # it is larger by rounding alone, and so is the path
        path = path.minimum(order)
        above, depth = (of[..., None].expand_as(token).flatten(1) for of in (parents.column, parents.depth + 1))
        code = stream_bits(parents.code[..., None], torch.arange(token.shape[-1], device=token.device))
        found = token.flatten(1), path.flatten(1), order.flatten(1), above, torch.full_like(above, UNRUN), depth, code.flatten(1)
        return _Candidates(*found)

    def _siblings(self, distribution: Any, parents: "_Parents", many: int, draft: Draft, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """`many` siblings [B, w, many]; and, given their parents, their log-probabilities, and what they are sorted by."""
        if not (self.drawn or noise.coupled):
            log_q, token = distribution.log_probs().topk(many, -1)
            log_q = log_q.clamp(max=0)
            return token, log_q, log_q
        keys = noise.draft_token(draft.start[:, None] + parents.depth, draft.start, parents.code)
        token, scores = distribution.distinct(keys, many)
        if not self.drawn:
            log_q = (scores.float() + keys.gumbel_at(token).float()).log_softmax(-1)
            return token, log_q, log_q
        real = scores > -torch.inf
        chance = torch.where(real, distribution.probs_at(token), 0)
        left = 1 - torch.nn.functional.pad(chance.cumsum(-1)[..., :-1], (1, 0))  # of q's mass, by those drawn before
        left = left.clamp(min=0).cummin(-1).values
        falling = (1 - self.agreement) ** torch.arange(token.shape[-1], device=token.device)
        accepted = falling * (self.agreement * left + (1 - self.agreement) * chance)
        judged, accepted = (torch.where(real, chances, 0).log() for chances in (falling * left, accepted))
        return token, accepted, judged


@dataclass(frozen=True, slots=True)
class _Parents:
    """The nodes that a drafter call expands."""

    column: Tensor  # [B, w] in the scored draft
    path: Tensor  # [B, w] path log-probability, -inf where a row expands fewer
    order: Tensor  # [B, w] what candidates are sorted by
    depth: Tensor  # [B, w]
    code: Tensor  # [B, w] names the node by the ranks on the way to it

    @staticmethod
    def root(draft: Draft) -> "_Parents":
        last = torch.full_like(draft.parents[:, :1], draft.roots - 1)
        certain = torch.zeros_like(last, dtype=torch.float32)
        return _Parents(last, certain, certain, torch.zeros_like(last), torch.zeros_like(last))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates of every row, the best first. Parents stand before their children."""

    value: Tensor  # [B, K]
    path: Tensor  # [B, K] path log-probability, or for drawn ones that of being accepted; -inf for impossible ones
    order: Tensor  # [B, K] what they are sorted by: `path`, or for drawn ones the log-probability of being judged, which is no less
    above: Tensor  # [B, K] the parent's column in the scored draft
    column: Tensor  # [B, K] own column there; UNRUN until expanded
    depth: Tensor  # [B, K] draft tokens on the path
    code: Tensor  # [B, K] names the node by the ranks on the way to it

    @staticmethod
    def none(draft: Draft) -> "_Candidates":
        empty = draft.parents[:, :0]
        return _Candidates(empty, empty.float(), empty.float(), empty, empty, empty, empty)

    def merged(self, other: "_Candidates", most: int) -> "_Candidates":
        """The best `most` of both. The sort is stable, so that a child as likely as its parent stays behind it."""
        joined = _Candidates(*(torch.cat([mine, theirs.to(mine.dtype)], 1) for mine, theirs in zip(self.parts, other.parts, strict=True)))
        best = joined.order.sort(dim=-1, descending=True, stable=True).indices[:, :most]
        return _Candidates(*(part.gather(1, best) for part in joined.parts))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.value, self.path, self.order, self.above, self.column, self.depth, self.code

    def kept(self, floor: Tensor) -> Tensor:
        """[B, K] which candidates are drafted: the best, and those that are no less likely than `floor` [B, 1]."""
        first = torch.arange(self.order.shape[1], device=self.order.device) == 0
        return (self.order > -torch.inf) & ((self.order >= floor) | first)

    def waiting(self, floor: Tensor, nodes: int) -> Tensor:
        """[B, K] which candidates can be expanded, with children that may be among the best `nodes`."""
        enough = self.path >= floor
        if self.order.shape[1] == nodes:
            enough = enough & (self.path >= self.order[:, -1:])
        return (self.column == UNRUN) & enough & (self.path > -torch.inf)

    def likeliest(self, waiting: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """The places of the likeliest `most` of those `waiting` [B, K], and which of them are real: [B, most]."""
        path, place = torch.where(waiting, self.path, -torch.inf).sort(dim=-1, descending=True, stable=True)
        return place[:, :most], path[:, :most] > -torch.inf

    def expanded(self, chosen: Tensor, real: Tensor, first: int) -> tuple["_Candidates", _Parents]:
        """The same with the columns of those that are expanded from column `first` on, and these as parents."""
        columns = torch.arange(first, first + chosen.shape[1], device=chosen.device).expand_as(chosen)
        own = torch.cat([self.column, self.column[:, :1]], 1)  # one more for those that are not real
        own = own.scatter(1, torch.where(real, chosen, own.shape[1] - 1), columns)[:, :-1]
        path, order, depth, code = (of.gather(1, chosen) for of in (self.path, self.order, self.depth, self.code))
        return replace(self, column=own), _Parents(columns, torch.where(real, path, -torch.inf), order, depth, code)

    def finished(self, draft: Draft, scored: int, floor: Tensor, distributions: Any) -> tuple[Draft, Tensor]:
        """`draft` with the candidates, and their columns in the draft of `scored` columns that the drafter scored.

        `distributions` follow that draft's columns from the last root on; None for point masses.
        """
        kept, roots = self.kept(floor), draft.roots
        place = torch.full_like(self.column[:, :1], roots - 1).expand(-1, scored + 1)  # of scored columns in the finished draft
        own = torch.arange(roots, roots + kept.shape[1], device=kept.device).expand_as(self.column)
        place = place.scatter(1, self.column.clamp(max=scored), own)
        parents = torch.where(kept, place.gather(1, self.above), PAD)
        siblings = torch.zeros_like(place[:, :1]).expand(-1, roots + kept.shape[1]).scatter_add(1, parents.clamp_min(0), kept.long())
        sizes = torch.stack([kept.sum(1).max(), siblings.max(), torch.where(kept, self.depth, 0).max()])
        size, width, levels = sizes.clamp_min(1).tolist()  # where no row has room, one column of PAD
        q = None if distributions is None else distributions.at(self.above[:, :size] - (roots - 1))
        return draft.extend(self.value[:, :size], parents[:, :size], q, width=width, levels=levels), self.column[:, :size]
