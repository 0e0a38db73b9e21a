"""Proactive drafting (SJD-PAC, arXiv 2603.18599): a window that branches right after the pending token, where most rounds end.

The branches come from the distributions of the window, so they cost nodes but no forward. A position's candidates are the coupled draft
token and draws without replacement from the rest of the same distribution: together a sample without replacement, as the rule of that name
assumes. Draws from the residual of the coupling would bias this rule.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.protocols import TargetSession
from mmspec.core.records import PAD, Budget, Draft, Verdict
from mmspec.drafters.jacobi.couplers import Coupler, maximal
from mmspec.drafters.jacobi.initialisers import Initialiser, uniform
from mmspec.drafters.jacobi.windows import Window, WindowSession

_SIBLINGS = 2  # the branch of the round's draft token noise that draws them


@dataclass(frozen=True)
class Proactive(Window):
    """A coupled window that begins as a tree (SJD-PAC, arXiv 2603.18599). For the without-replacement, match and coupled rules.

    All nodes of a level share the same candidates. A shorter draft length removes the end of the chain first.

    Args:
        raster: the grid of pictures, None for texts.
        couple: how draft tokens are drawn; see `mmspec.drafters.jacobi.couplers`.
        init: initialiser of positions without a distribution.
        window: nodes a forward, the pending token included.
        width: children of every node above the last level of the tree.
        depth: levels of the tree, the pending token's included; a chain follows its first path.

    Raises:
        ValueError: for sizes that do not fit the window.
    """

    raster: Raster | None = None
    couple: Coupler = maximal
    init: Initialiser = uniform
    window: int = 64
    width: int = 4
    depth: int = 3

    def __post_init__(self):
        Window.__post_init__(self)
        if self.width < 1 or self.depth < 1:
            raise ValueError(f"width and depth are {self.width} and {self.depth}: give at least 1 of each")
        if self.window < self.tree:
            raise ValueError(
                f"window is {self.window}: a tree of width {self.width} and depth {self.depth} has {self.tree} nodes; allow those"
            )

    @property
    def tree(self) -> int:
        """Number of nodes of the full tree, the pending token included."""
        return sum(self.width**level for level in range(self.depth))

    @property
    def levels(self) -> int:
        """Number of draft tokens on the longest path: the smallest draft length that uses the whole window."""
        return self.depth - 1 + self.window - self.tree

    def begin(self, prompt: Any, session: TargetSession) -> "ProactiveSession":
        """Open the drafting session of one generation."""
        return ProactiveSession(self)


class _Form(NamedTuple):
    """A round's tree of W levels, as indices on the device. Columns count from the last root, which is column 0; G draft tokens."""

    level: Tensor  # [G] which position's candidate each draft token is, from 0
    rank: Tensor  # [G] and which of its candidates
    parent: Tensor  # [G] column of its parent
    first: Tensor  # [W + 1] column of each level's first node, the root's included
    full: int  # levels below the root that branch


@lru_cache(maxsize=64)
def _form(width: int, depth: int, levels: int, device: torch.device) -> _Form:
    full = min(depth - 1, levels)
    level, rank, parent, first = [], [], [], [0]
    for step in range(levels):
        above = first[-1]
        first.append(len(level) + 1)
        for node in range(width ** (step + 1) if step < full else 1):
            level.append(step)
            rank.append(node % width)
            parent.append(above + (node // width if step < full else 0))
    tables = [torch.tensor(numbers, dtype=torch.long, device=device) for numbers in (level, rank, parent, first)]
    return _Form(tables[0], tables[1], tables[2], tables[3], full)


class ProactiveSession(WindowSession):
    """Drafting session of one generation."""

    branches = True

    def __init__(self, plan: Proactive):
        super().__init__(plan)
        self.width, self.depth, self._levels = plan.width, plan.depth, plan.levels

    @property
    def levels(self) -> int:
        """Largest number of positions a round looks ahead."""
        return self._levels

    def lay_out(self, pending: Draft, budget: Budget, noise: Noise, values: Tensor, distribution: Categorical, record: bool) -> Draft:
        """Return the draft as a tree with a chain; see `WindowSession.lay_out`."""
        form = _form(self.width, self.depth, values.shape[1], values.device)
        candidates, real = self._candidates(pending, noise, values, distribution, form.full)
        possible = real[:, form.level, form.rank] & (form.level < budget.draft_tokens[:, None])
        valid = pending.valid[:, -1:]
        for step in range(form.full):  # a node stands only where its parent does; below the tree there are first candidates only
            here = torch.arange(self.width ** (step + 1), device=values.device) + valid.shape[1]
            valid = torch.cat([valid, possible[:, here - 1] & valid[:, form.parent[here - 1]]], 1)
        below = possible[:, valid.shape[1] - 1 :] & valid[:, :1]
        parents = torch.where(torch.cat([valid[:, 1:], below], 1), form.parent + pending.size - 1, PAD)
        q = distribution.at(form.level.expand(len(values), -1)) if record else None
        nodes = candidates[:, form.level, form.rank]
        return pending.extend(nodes, parents, q, linear=self.width == 1, width=self.width, levels=values.shape[1])

    def _candidates(self, pending: Draft, noise: Noise, values: Tensor, distribution: Categorical, full: int) -> tuple[Tensor, Tensor]:
        """Every position's candidates and which are real, both [B, W, width]; after the first `full` positions there is one each."""
        more = min(self.width, distribution.size) - 1
        candidates = values[..., None].repeat(1, 1, self.width)
        real = torch.zeros_like(candidates, dtype=torch.bool)
        real[..., 0] = True
        if more and full:
            rest = distribution.scores[:, :full].scatter(-1, values[:, :full, None], -torch.inf)
            position = pending.start[:, None] + torch.arange(full, device=values.device)
            drawn = noise.draft_token(position, pending.start, _SIBLINGS).choose_distinct(rest, more)
            candidates[:, :full, 1 : 1 + more] = drawn
            real[:, :full, 1 : 1 + more] = rest.gather(-1, drawn) > -torch.inf
        return candidates, real

    def places(self, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
        """See `WindowSession.places`. The context is the deepest kept node, then first children as far as the tree goes, then the first
        path.
        """
        levels, last = draft.height, draft.roots - 1
        form = _form(self.width, self.depth, levels, draft.start.device)
        accepted = verdict.accepted[:, None]
        level = (accepted + 1 + torch.arange(max(1, levels), device=draft.start.device)).clamp(max=levels)
        kept = verdict.keep.gather(1, last + accepted).clamp_min(last) - last
        place = kept - form.first[accepted.clamp(max=levels)]  # among its level's nodes
        below = torch.where(level <= form.full, place * self.width ** (level - accepted).clamp(0, form.full), 0)
        column = (last + form.first[level] + below).clamp(0, draft.size - 1)
        draft_token = (form.first[(level + 1).clamp(max=levels)] - 1).clamp_min(0)
        return column, draft_token, draft.valid[:, last + form.first[1:]].sum(1)
