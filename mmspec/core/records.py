"""The records that targets, drafters, rules and the decoding loop exchange. All are frozen.
Shapes: B rows, N draft nodes, G draft tokens (N - roots), K kept, L committed, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.utils.renamed import old_names

CONTEXT = -1
"""Parent of a node that directly follows the cached context."""
PAD = -2
"""Parent of a column that is not a node in this row."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of nodes in topological order: `roots` committed values that are not cached yet, then draft tokens.

    Node i is judged by the target's distribution after its parent, so no index is ever shifted. `linear`, `width`, `levels` and `trunk`
    are facts about the shape that are known without reading a tensor.

    Args:
        nodes: [B, N, *value] token ids, frames or vectors.
        parents: [B, N] column of each node's parent, CONTEXT or PAD.
        start: [B] output values committed before this round; the first draft token stands for output position `start`.
        roots: number of root columns.
        q: distribution over [B, G] that each draft token was drawn from; None for point masses on the draft tokens themselves.
        linear: every row is one chain in column order, PAD columns apart, which makes masks and commits cheaper.
        width: bound on the number of siblings.
        levels: bound on the draft tokens along any path; None for as many as there are.
        trunk: bound on the roots along any path; None for as many as there are.
        drift: [B] total variation spent so far by a lossy rule.
        score: [B, N] log-probability of the path to each node, for beams.
        aux: data that the drafter passes to the target.
        drafter_healthy: [B] bool, the drafter's logits held no NaN or +inf; None if they were not checked.
    """

    nodes: Tensor
    parents: Tensor
    start: Tensor
    roots: int = 1
    q: Any = None
    linear: bool = True
    width: int = 1
    levels: int | None = None
    trunk: int | None = None
    drift: Tensor | None = None
    score: Tensor | None = None
    aux: Any = None
    drafter_healthy: Tensor | None = None

    @staticmethod
    def root(values: Tensor, start: Tensor, alive: Tensor | None = None, drift: Tensor | None = None) -> "Draft":
        """Make a draft of one committed value a row.

        Args:
            values: [B, *value].
            start: [B] output values committed so far.
            alive: [B] bool; the other rows hold PAD. None for all rows.
            drift: [B] total variation spent so far.

        Returns:
            A draft with one root and no draft tokens.
        """
        parents = torch.full((values.shape[0], 1), CONTEXT, dtype=torch.long, device=values.device)
        if alive is not None:
            parents = torch.where(alive[:, None], parents, PAD)
        return Draft(values[:, None], parents, start, drift=drift)

    @property
    def size(self) -> int:
        """Number of columns N."""
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
        """Append draft tokens.

        Args:
            nodes: values [B, M, *value].
            parents: columns [B, M] of their parents, or PAD.
            q: distribution over [B, M] they were drawn from; None for point masses.
            linear: the new nodes continue one chain in column order.
            width: bound on the number of siblings among the new nodes.
            levels: bound on the draft tokens along any path of the whole draft.

        Returns:
            A new draft.

        Raises:
            ValueError: when only some of the draft tokens have a distribution.
        """
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
        """Append one chain of draft tokens to a linear draft.

        Args:
            nodes: values [B, M, *value].
            budget: [B] draft tokens a row may have in all; the others are PAD.
            q: distribution over [B, M] they were drawn from; None for point masses.

        Returns:
            A new draft.
        """
        columns = torch.arange(self.size, self.size + nodes.shape[1], device=nodes.device)
        fits = (columns - self.roots < budget[:, None]) & (self.parents[:, self.roots - 1 : self.roots] != PAD)
        return self.extend(nodes, torch.where(fits, columns - 1, PAD), q, linear=True)

    def ancestors(self) -> Tensor:
        """Compute which nodes are on the path to each node, itself included. PAD columns have only themselves.

        Returns:
            bool [B, N, N]; entry (i, j) is true where column j is on the path that ends in node i.
        """
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
        """Count the draft tokens on the path to each node.

        Returns:
            [B, N]; 0 for roots.
        """
        if self.size == self.roots:
            return torch.zeros_like(self.parents)
        if self.linear:
            return (self.valid.cumsum(1) - self.valid[:, : self.roots].sum(1, keepdim=True)).clamp_(min=0)
        return self.ancestors()[:, :, self.roots :].sum(-1) * self.valid

    def position(self) -> Tensor:
        """Compute the output position of the value that follows each node.

        Returns:
            [B, N].
        """
        if self.size == self.roots:
            return self.start[:, None] if self.size == 1 else self.start[:, None].expand(-1, self.size)
        return self.start[:, None] + self.depth()


@dataclass(frozen=True, slots=True)
class Context:
    """The prompt as the target ran it, without its last value, which is the first pending token."""

    ids: Tensor  # [B, P] packed to the left
    lengths: Tensor  # [B]
    hidden: Tensor  # [B, P, F]


@dataclass(frozen=True, slots=True)
class Scored:
    """The target's result for a draft. Hidden states are present if a drafter requested them, concatenated to width F."""

    p: Any  # Distribution over [B, N]: the target's distribution after every node
    hidden: Tensor | None = None  # [B, N, F] at every node
    context: Context | None = None  # at the prompt, in the round that ran it
    healthy: Tensor | None = None  # [B] bool: no NaN or +inf among this row's logits
    confidence: Tensor | None = None  # [B, N] of a drafter that estimates it: chance that the target accepts the next draft token
    reported: Any = None  # `ReportedScores` of the rows whose log-probabilities are asked for


@dataclass(frozen=True, slots=True)
class Committed:
    """One round's outcome on the host as plain lists, fetched in a single synchronisation. Vectors stay on the device."""

    values: list[list[Any]]  # per row, the newly committed values; tensors, where values are vectors
    accepted: list[int]  # per row, draft tokens accepted
    judged: list[int]  # draft tokens judged: the accepted ones and the rejected one, if any
    drafted: list[int]  # draft tokens in the draft
    ended: list[bool]  # the row can generate no more
    healthy: list[bool]  # its logits held no NaN or +inf
    drift: list[float]  # total variation spent in this round
    expected: list[float]  # rejections expected of token-wise judging
    drafter_healthy: list[bool] | None = None  # the drafter's logits held no NaN or +inf, as far as the draft records it
    found: list[Any] | None = None  # per row that has ended, what it found beside its values, on the device; None for others
    places: list[list[int]] | None = None  # per row, which draft tokens were accepted, from 0; None for chains
    finish_reasons: list[str | None] | None = None  # per row, why it ended; None for rows that have not, and in rounds that end none


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is kept of a draft and committed. Finished rows keep and commit nothing."""

    keep: Tensor  # [B, K] columns whose cache entries stay, in path order, -1 padded
    values: Tensor  # [B, L, *value] newly committed output
    count: Tensor  # [B] how many of `values` are real
    pending: Draft  # committed values that are not cached; the next draft grows from here
    accepted: Tensor  # [B] draft tokens accepted
    judged: Tensor  # [B] draft tokens judged: the accepted ones and the rejected one, if any
    drift: Tensor | None = None  # [B] total variation spent in this round
    expected: Tensor | None = None  # [B] rejections expected of token-wise judging: the sum of TV(p, q) over the tokens judged
    drawn: Tensor | None = None  # [B, N] the target's own draw after every node, where the rule made them all


@dataclass(frozen=True, slots=True)
class Step:
    """One round, as the loop yields it for streams, statistics and progress bars."""

    draft: Draft  # the draft that was judged
    verdict: Verdict  # its outcome on the device
    committed: Committed  # its outcome on the host
    seconds: dict[str, float]  # by phase, as in `core.stats.PHASES`
    logprobs: list[list[Any]] | None = None  # by row, a `TokenLogprob` for each committed token; None if no row asks for them


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one round."""

    left: Tensor  # [B] output values each row may still commit; 0: finished
    length: int  # draft tokens requested for this round, the same for every row so that shapes stay fixed
    most: int | None = None  # the largest of `draft_tokens`, or a bound on it, where it is known on the host

    @property
    def draft_tokens(self) -> Tensor:
        """[B] draft tokens each row may take: one fewer than it may commit, since a round commits one value more than it accepts."""
        return (self.left - 1).clamp(0, self.length)


def validate(draft: Draft) -> None:
    """Check the invariants of a draft. For tests: it reads tensors and so synchronises.

    Args:
        draft: any draft.

    Raises:
        ValueError: naming the row and the node that break an invariant.
    """
    parents: Sequence[Sequence[int]] = draft.parents.tolist()
    for row, line in enumerate(parents):
        for node, parent in enumerate(line):
            if parent >= node or parent < PAD:
                raise ValueError(f"row {row}, node {node}: parent {parent} must be an earlier column, CONTEXT (-1) or PAD (-2)")
            if parent >= 0 and line[parent] == PAD:
                raise ValueError(f"row {row}, node {node}: parent {parent} is PAD, which cannot have children")
            if node >= draft.roots and parent == CONTEXT:
                raise ValueError(f"row {row}, node {node}: the parent of a draft token must be a root or a draft token, not the context")
        _check_bounds(draft, row, line)


def _check_bounds(draft: Draft, row: int, line: Sequence[int]) -> None:
    """Check that no path is longer than `trunk` and `levels` allow, since `ancestors` stops there."""
    most = draft.roots if draft.trunk is None else draft.trunk
    roots, tokens = [0] * draft.size, [0] * draft.size  # on the path to each node, itself included
    for node, parent in enumerate(line):
        if parent == PAD:
            continue
        roots[node] = (node < draft.roots) + (roots[parent] if parent >= 0 else 0)
        tokens[node] = (node >= draft.roots) + (tokens[parent] if parent >= 0 else 0)
        if roots[node] > most:
            raise ValueError(f"row {row}, node {node}: {roots[node]} roots on its path, but trunk says {most} at most")
        if tokens[node] > draft.height:
            raise ValueError(f"row {row}, node {node}: {tokens[node]} draft tokens on its path, but levels says {draft.height} at most")


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
