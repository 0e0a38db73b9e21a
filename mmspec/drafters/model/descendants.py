"""Look-ahead in a catalogue's trie: where the beams have few descendants left, all of them are drafted, and no model is asked.

A search knows which paths there are. Draft tokens that are all the children of the beams are right whatever the target says, so a level
drafted whole costs no forward, only columns; where a beam has one child, the code is forced and costs hardly a column.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.search import path_scores
from mmspec.core.beams.trie import Children, Trie
from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowRecord, RowState
from mmspec.drafters.model.beams import with_level

_LEAST = 32  # as measured: with 16 a row, lists of 50 took 1.08 times the seconds of plain search on a model of 48 layers


@dataclass(frozen=True)
class Descendants(RowRecord):
    """Drafts all descendants of the beams, level by level, while there are few.

    Args:
        trie: the paths.
        k: beams that the target keeps on every level.
        spare: draft tokens that a level of the whole batch may have beyond the beams, which would be scored in a round of their own; see
            `columns_of_a_row`.
    """

    by_row = ("trie",)

    trie: Trie
    k: int
    spare: int

    def begin(self, prompt: Any, session: TargetSession) -> "DescendantSession":
        """Open the drafting session of one generation."""
        return DescendantSession(self)


class DescendantSession(RowState):
    """Drafting session of one beam search.

    Args:
        drafter: the drafter, with the trie of the rows.
    """

    by_row = ("drafter",)

    def __init__(self, drafter: Descendants):
        self.drafter = drafter

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        draft, trie, level = pending, self.drafter.trie, pending.aux.level
        most = self.drafter.k + columns_of_a_row(self.drafter.spare, len(pending.start))
        for depth in range(min(budget.length, trie.levels - level - 1)):  # a round commits one level without a draft
            parents = draft.aux.layers[-1] if depth else draft.aux.beams
            state = draft.aux.state[:, draft.size - parents :]
            if state.is_cpu and trie.unrestricted and int(trie.count_children(state).sum(1).max()) > most:
                break  # most levels end here, at a look-up for each beam and not for each child
            children = trie.children(state, level + depth)
            index = _every_child(children, depth < budget.draft_tokens, most)
            if index is None:
                break
            above = path_scores(draft)[:, draft.size - parents :]
            draft = with_level(draft, children, index, above.repeat_interleave(children.state.shape[-1], 1))
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        pass


def columns_of_a_row(spare: int, rows: int) -> int:
    """Return how many draft tokens a row's level may have beyond its beams.

    Few of them rarely hold a level, and a batch waits for the row whose level is widest: with less than `_LEAST`, codes that are forced are
    all that is drafted.

    Args:
        spare: draft tokens of the whole batch.
        rows: rows of the batch.
    """
    share = spare // max(rows, 1)
    return share if share >= _LEAST else 0


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
