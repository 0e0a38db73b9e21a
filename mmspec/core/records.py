"""The records every part of the engine exchanges. All are frozen; shapes are in trailing comments.

B rows, N draft nodes, G draft tokens (N - roots), K kept, L committed, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

CONTEXT = -1
"""Parent of a node that hangs directly on the cached context."""
PAD = -2
"""Parent of a column that is not a node in this row."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of nodes in topological order: `roots` committed but not yet cached values, then draft tokens.

    The distribution that judges node i is the target's distribution after its parent, so no index is ever shifted. `linear` says that every
    row is one chain in column order (PAD columns apart), which makes masks and commits cheaper; `width` bounds the number
    of siblings and `levels` the depth. All three are facts about the shape, known without looking at a tensor.
    """

    nodes: Tensor  # [B, N, *value] token ids, frames or vectors
    parents: Tensor  # [B, N] column of the parent, CONTEXT or PAD
    start: Tensor  # [B] output values committed before this round; the first draft token stands for output position `start`
    roots: int = 1
    q: Any = None  # Distribution over [B, G]: what each draft token was drawn from; None = point mass on the draft token itself
    linear: bool = True
    width: int = 1
    levels: int | None = None  # bound on the draft tokens along any path; None: as many as there are draft tokens
    trunk: int | None = None  # bound on the roots along any path; None: as many as there are roots
    drift: Tensor | None = None  # [B] total variation spent so far by a lossy rule
    score: Tensor | None = None  # [B, N] path log-probability, for beams
    aux: Any = None  # luggage from drafter to target
    drafter_healthy: Tensor | None = None  # [B] bool: the drafter's logits held no NaN or +inf; None: nobody looked

    @staticmethod
    def root(values: Tensor, start: Tensor, alive: Tensor | None = None, drift: Tensor | None = None) -> "Draft":
        """A draft of one committed value a row, [B, *value]; rows that are not `alive` [B] hold PAD."""
        parents = torch.full((values.shape[0], 1), CONTEXT, dtype=torch.long, device=values.device)
        if alive is not None:
            parents = torch.where(alive[:, None], parents, PAD)
        return Draft(values[:, None], parents, start, drift=drift)

    @property
    def size(self) -> int:
        return self.nodes.shape[1]

    @property
    def draft_tokens(self) -> Tensor:
        """The drafted values, [B, G, *value]."""
        return self.nodes[:, self.roots :]

    @property
    def valid(self) -> Tensor:
        """Which columns are nodes, [B, N] bool."""
        return self.parents != PAD

    @property
    def height(self) -> int:
        """Bound on the draft tokens along any path."""
        return self.size - self.roots if self.levels is None else self.levels

    def extend(
        self, nodes: Tensor, parents: Tensor, q: Any = None, *, linear: bool = False, width: int = 1, levels: int | None = None
    ) -> "Draft":
        """This draft with draft tokens appended: `nodes` [B, M, *value] hanging on `parents` [B, M], drawn from `q` over [B, M]."""
        if self.size > self.roots and (self.q is None) != (q is None):
            raise ValueError(
                "a draft's draft tokens either all have a distribution q or are all point masses: give q for every draft token, or for none"
            )
        if self.q is not None and q is not None:
            q = self.q.cat(q)
        return replace(
            self,
            nodes=torch.cat([self.nodes, nodes], 1),
            parents=torch.cat([self.parents, parents], 1),
            q=q,
            linear=self.linear and linear,
            width=max(self.width, width),
            levels=levels,
        )

    def extend_chain(self, nodes: Tensor, budget: Tensor, q: Any = None) -> "Draft":
        """Append one chain of draft tokens `nodes` [B, M, *value] to a linear draft; a row takes at most `budget` [B] of all its draft
        tokens."""
        columns = torch.arange(self.size, self.size + nodes.shape[1], device=nodes.device)
        fits = (columns - self.roots < budget[:, None]) & (self.parents[:, self.roots - 1 : self.roots] != PAD)
        return self.extend(nodes, torch.where(fits, columns - 1, PAD), q, linear=True)

    def ancestors(self) -> Tensor:
        """[B, N, N] bool: is column j on the path that ends in node i (itself included)? PAD columns see only themselves."""
        n, rows = self.size, len(self.parents)
        nowhere = torch.where(self.parents >= 0, self.parents, n)
        above = torch.cat([nowhere, torch.full_like(self.parents[:, :1], n)], 1)  # column n is its own parent
        reach = torch.eye(n, n + 1, dtype=torch.bool, device=self.nodes.device).repeat(rows, 1, 1)
        step = above[:, :n]
        for _ in range((self.roots if self.trunk is None else self.trunk) + self.height - 1):
            reach.scatter_(2, step[..., None], True)
            step = above.gather(1, step)
        return reach[..., :n]

    def depth(self) -> Tensor:
        """[B, N] draft tokens on the path to each node: 0 for roots."""
        if self.linear:
            return (self.valid.cumsum(1) - self.valid[:, : self.roots].sum(1, keepdim=True)).clamp_(min=0)
        return self.ancestors()[:, :, self.roots :].sum(-1) * self.valid

    def position(self) -> Tensor:
        """[B, N] output position that a draw after each node stands for."""
        return self.start[:, None] + self.depth()


@dataclass(frozen=True, slots=True)
class Context:
    """The prompt as the target ran it: all but its last value, which is the first pending token."""

    ids: Tensor  # [B, P] packed to the left
    lengths: Tensor  # [B]
    hidden: Tensor  # [B, P, F]


@dataclass(frozen=True, slots=True)
class Scored:
    """What the target says of a draft. Hidden states are there when a drafter asked for them, `F` wide: several, side by side."""

    p: Any  # Distribution over [B, N]: the target's distribution after every node
    hidden: Tensor | None = None  # [B, N, F] at every node
    context: Context | None = None  # at the prompt, in the round that ran it
    healthy: Tensor | None = None  # [B] bool: no NaN or +inf among this row's logits


@dataclass(frozen=True, slots=True)
class Committed:
    """The round's outcome on the host: plain lists, fetched in the round's one synchronisation. Vectors are not fetched."""

    values: list[list[Any]]  # per row, the newly committed values; tensors, where values are vectors
    accepted: list[int]
    judged: list[int]
    drafted: list[int]
    ended: list[bool]  # the row has no room left
    healthy: list[bool]  # its logits held no NaN or +inf
    drift: list[float]
    expected: list[float]
    drafter_healthy: list[bool] | None = None  # the drafter's held none, as far as its draft says


@dataclass(frozen=True, slots=True)
class Verdict:
    """What survives of a draft. Rows that were already finished keep nothing and commit nothing."""

    keep: Tensor  # [B, K] columns whose cache entries stay, in path order, -1 padded
    values: Tensor  # [B, L, *value] newly committed output
    count: Tensor  # [B] how many of `values` are real
    pending: Draft  # committed, uncached values; the next draft grows from here
    accepted: Tensor  # [B] draft tokens accepted
    judged: Tensor  # [B] draft tokens looked at: the accepted ones and the one that failed, if any
    drift: Tensor | None = None  # [B] total variation spent in this round
    expected: Tensor | None = None  # [B] what judging draft token by draft token rejects in the mean: TV(p, q) for each draft token judged


@dataclass(frozen=True, slots=True)
class Step:
    """One round, as the loop yields it to streams, statistics and progress bars."""

    draft: Draft
    verdict: Verdict
    committed: Committed
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Budget:
    """How far a round may go."""

    left: Tensor  # [B] output values each row may still commit; 0 = finished
    length: int  # draft tokens asked for this round, the same for every row so that shapes stay fixed

    @property
    def draft_tokens(self) -> Tensor:
        """[B] draft tokens each row may take: one fewer than it may commit, as every round commits one value more than it accepts."""
        return (self.left - 1).clamp(0, self.length)


def validate(draft: Draft) -> None:
    """Raise ValueError unless `draft` obeys its invariants. For tests: it looks at tensors and so synchronises."""
    parents: Sequence[Sequence[int]] = draft.parents.tolist()
    for row, line in enumerate(parents):
        for node, parent in enumerate(line):
            if parent >= node or parent < PAD:
                raise ValueError(f"row {row}, node {node}: parent {parent} must be an earlier column, CONTEXT (-1) or PAD (-2)")
            if parent >= 0 and line[parent] == PAD:
                raise ValueError(f"row {row}, node {node}: parent {parent} is PAD, which cannot have children")
            if node >= draft.roots and parent == CONTEXT:
                raise ValueError(f"row {row}, node {node}: a draft token must hang on a root or a draft token, not on the context")
        _check_bounds(draft, row, line)


def _check_bounds(draft: Draft, row: int, line: Sequence[int]) -> None:
    """`ancestors` goes up as far as `trunk` and `levels` say: no path may be longer."""
    most = draft.roots if draft.trunk is None else draft.trunk
    roots, draft_tokens = [0] * draft.size, [0] * draft.size  # on the path to each node, itself included
    for node, parent in enumerate(line):
        if parent == PAD:
            continue
        roots[node] = (node < draft.roots) + (roots[parent] if parent >= 0 else 0)
        draft_tokens[node] = (node >= draft.roots) + (draft_tokens[parent] if parent >= 0 else 0)
        if roots[node] > most:
            raise ValueError(f"row {row}, node {node}: {roots[node]} roots on its path, but trunk says {most} at most")
        if draft_tokens[node] > draft.height:
            raise ValueError(
                f"row {row}, node {node}: {draft_tokens[node]} draft tokens on its path, but levels says {draft.height} at most"
            )
