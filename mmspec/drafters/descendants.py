"""Look-ahead in a catalogue's trie: where the beams have few descendants left, all of them are drafted, and no model is asked.

A search knows which paths there are. Draft tokens that are all the children of the beams are right whatever the target says, so a level
drafted whole costs no forward, only columns; where a beam has one child, the code is forced and costs hardly a column.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.search import path_scores
from mmspec.core.beams.trie import Children, Trie
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter, TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowRecord
from mmspec.drafters.model.beams import with_level
from mmspec.drafters.none import NoDraft


@dataclass(frozen=True)
class Descendants(RowRecord):
    """Drafts all descendants of the beams, level by level, while there are few.

    Args:
        trie: the paths.
        k: beams that the target keeps on every level.
        spare: draft tokens that a level of the whole batch may have beyond the beams, which would be scored in a round of their own.
        otherwise: what drafts in rounds that cannot end the search so; by default nothing, and the levels that fit are drafted.
    """

    by_row = ("trie", "otherwise")

    trie: Trie
    k: int
    spare: int
    otherwise: Drafter = field(default_factory=NoDraft)

    def begin(self, prompt: Any, session: TargetSession) -> "DescendantSession":
        """Open the drafting session of one generation."""
        return DescendantSession(self, self.otherwise.begin(prompt, session))


class DescendantSession:
    """Drafting session of one beam search.

    Args:
        drafter: the drafter, with the trie of the rows.
        inner: the session of what drafts otherwise.
    """

    def __init__(self, drafter: Descendants, inner: Any):
        self.drafter, self.inner = drafter, inner
        self.alone = isinstance(drafter.otherwise, NoDraft)
        self.asked = False  # whether `inner` made this round's draft

    @property
    def joinable(self) -> bool:
        """True once what drafts otherwise lets rows join."""
        return self.inner.joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.inner.take_rows(rows)
        self.drafter = replace(self.drafter, trie=self.drafter.trie.take_rows(rows))

    def join_rows(self, other: "DescendantSession") -> None:
        """Append the rows of another one; see `core.rows.changes.ChangesRows`."""
        self.inner.join_rows(other.inner)
        self.drafter = replace(self.drafter, trie=self.drafter.trie.join_rows(other.drafter.trie))

    def shift_roots(self, by: int) -> None:
        """Count columns before the roots; see `core.rows.changes.KeepsRoots`."""
        if hasattr(self.inner, "shift_roots"):
            self.inner.shift_roots(by)

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        draft, whole = self._with_descendants(pending, budget)
        self.asked = not (whole or self.alone)
        return self.inner.propose(pending, budget, noise) if self.asked else draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        if not self.asked:  # to what drafts otherwise, a round without draft tokens
            draft = replace(draft, aux=replace(draft.aux, layers=()))
        self.inner.observe(draft, scored, verdict, committed)

    def _with_descendants(self, pending: Draft, budget: Budget) -> tuple[Draft, bool]:
        """The draft with the levels that fit, and whether they are all that are left."""
        draft, trie, level = pending, self.drafter.trie, pending.aux.level
        most = self.drafter.k + self.drafter.spare // len(pending.start)
        for depth in range(trie.levels - level - 1):  # a round commits one level without a draft
            if depth >= budget.length:
                return draft, False
            parents = draft.aux.layers[-1] if depth else draft.aux.beams
            children = trie.children(draft.aux.state[:, draft.size - parents :], level + depth)
            index = _every_child(children, depth < budget.draft_tokens, most)
            if index is None:
                return draft, False
            above = path_scores(draft)[:, draft.size - parents :]
            draft = with_level(draft, children, index, above.repeat_interleave(children.state.shape[-1], 1))
        return draft, True


def _every_child(children: Children, rows: Tensor, most: int) -> Tensor | None:
    """[B, D] the numbers of all children, -1 where a row has fewer; none of the other rows than `rows` [B]. None for more than `most`.

    To count them, the host would wait for a GPU: there the columns that children may have are counted.
    """
    valid = children.valid.flatten(1) & rows[:, None]
    columns = torch.arange(valid.shape[1], device=valid.device).expand(len(valid), -1)
    if valid.is_cpu:
        size = int(valid.sum(1).max())
        columns = valid.long().argsort(dim=1, descending=True, stable=True)[:, :size] if size <= most else columns
        valid = valid.gather(1, columns)
    return torch.where(valid, columns, -1) if columns.shape[1] <= most else None
