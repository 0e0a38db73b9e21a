"""Token Recycling (Luo et al. 2024): the target's runners-up after every token form the next round's tree."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.static import Level
from mmspec.utils.devices import to_device

_FALL = 0.4  # a token's candidate of rank r is taken to be right with chance (1 - _FALL) * _FALL ** r: shapes the tree only


@dataclass(frozen=True)
class Recycling:
    """Token Recycling (Luo et al. 2024): stores the target's most likely values after each token and drafts a tree by breadth-first search.

    The form of the tree is fixed: the most probable paths if the probability of candidates falls geometrically by rank. Each row has its
    own memory, empty at first, so a row's output does not depend on its batch.

    Args:
        width: candidates stored per token.
        nodes: draft tokens of a tree.

    Raises:
        ValueError: for sizes below 1.
    """

    width: int = 4
    nodes: int = 16

    def __post_init__(self):
        if min(self.width, self.nodes) < 1:
            raise ValueError(f"width and nodes are {self.width} and {self.nodes}: each must be at least 1")

    def begin(self, prompt: Any, session: TargetSession) -> "RecyclingSession":
        """Open the drafting session of one generation."""
        return RecyclingSession(self)


@lru_cache(maxsize=64)
def likeliest_tree(width: int, nodes: int, levels: int) -> tuple[Level, ...]:
    """Return the tree of the `nodes` most probable paths of at most `levels` tokens, level by level."""
    chances = [(1 - _FALL) * _FALL**rank for rank in range(width)]
    return sparse_tree([chances] * levels, nodes).levels


class RecyclingSession(RowState):
    """Memory of one generation: `links[b, v]` are the candidates after value v in row b, -1 where there are none."""

    by_row = ("links",)

    def __init__(self, plan: Recycling):
        self.plan = plan
        self.links: Tensor | None = None  # [B, V + 1, width]; the last entry is scratch
        self.shapes: dict[int, list[tuple[Tensor, Tensor]]] = {}  # templates on the device

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if self.links is None or budget.length == 0:
            return pending
        rows = torch.arange(len(pending.start), device=pending.start.device)[:, None]
        value, valid, first = pending.nodes[:, -1:], pending.valid[:, -1:], pending.roots - 1
        values: list[Tensor] = []
        parents: list[Tensor] = []
        levels = self._shape(budget.length, pending.start.device)
        for depth, (above, rank) in enumerate(levels):
            size = value.shape[1]
            value = self.links[rows, value[:, above], rank].long()  # [B, n]
            valid = valid[:, above] & (value >= 0) & (budget.draft_tokens > depth)[:, None]
            value = value.clamp(min=0)
            values.append(value)
            parents.append(torch.where(valid, above + first, PAD))
            first += size
        return pending.extend(torch.cat(values, 1), torch.cat(parents, 1), width=self.plan.width, levels=len(levels))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        size = scored.p.size
        if self.links is None:
            shape = (len(draft.start), size + 1, self.plan.width)
            self.links = torch.full(shape, -1, dtype=torch.int32, device=draft.start.device)
        scores, found = scored.p.top(min(self.plan.width, size))  # [B, N, k]
        found = torch.where(scores > -torch.inf, found, -1).int()
        rows = torch.arange(len(draft.start), device=draft.start.device)[:, None]
        self.links[rows, torch.where(_newest(draft, verdict), draft.nodes, size), : found.shape[-1]] = found

    def _shape(self, length: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        if length not in self.shapes:
            levels = likeliest_tree(self.plan.width, self.plan.nodes, length)
            self.shapes[length] = [(to_device(above, device), to_device(rank, device)) for above, rank in levels]
        return self.shapes[length]


def _newest(draft: Draft, verdict: Verdict) -> Tensor:
    """[B, N] bool: the node that each value's candidates are taken from: the last kept one, else the last. One per value, so writes never
    collide.
    """
    columns = torch.arange(draft.size, device=draft.start.device)
    kept = (verdict.keep[:, None, :] == columns[:, None]).any(-1)
    trust = columns + draft.size * kept
    same = (draft.nodes[:, :, None] == draft.nodes[:, None, :]) & draft.valid[:, None, :]
    return draft.valid & ~(same & (trust[:, None, :] > trust[:, :, None])).any(-1)
