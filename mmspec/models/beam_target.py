"""A target searched over the paths of a trie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.core.beams.search import Forest
from mmspec.core.beams.tokens_and_rest import ProcessedLogProbs, TokensAndRest
from mmspec.core.beams.trie import Trie
from mmspec.core.records import Draft, Scored
from mmspec.models.changed import replaced
from mmspec.models.compat.catalogue_head import CatalogueHead
from mmspec.models.family import OwnScoring, StateCommit
from mmspec.models.layout import Layout, draft_slots
from mmspec.models.target import HFSession, HFTarget


@dataclass(frozen=True)
class BeamTarget:
    """A `target` searched over the paths of `trie`.

    Args:
        target: the model.
        trie: the paths.
        tokens: the tokens of the paths, ascending; where they are few of a large vocabulary, logits of others are summed up at once.
    """

    target: HFTarget
    trie: Trie
    tokens: Tensor | None = None

    def capture(self) -> "BeamTarget":
        """Return this target with its forwards captured; see `HFTarget.capture`."""
        return replace(self, target=self.target.capture(self.target.reserve))

    def begin(self, prompt: Mapping[str, Tensor]) -> tuple["BeamSession", Draft]:
        parts, root = self.target.opened(prompt)
        if isinstance(parts[2], StateCommit):
            raise ValueError(f"{type(self.target.model).__name__} keeps recurrent states, which a beam search does not follow")
        state = torch.zeros_like(root.nodes)
        root = replace(root, linear=False, trunk=1, score=state.float(), aux=Forest(state, 1, 0))
        session = BeamSession(*parts)
        if self.tokens is not None and self.target.captured is None and self.target.processors.idle and not session.own_scores:
            session.head = CatalogueHead.of(self.target.model, self.target.own()[1], self.tokens)
        return session, root


class BeamSession(HFSession):
    """A session whose draft under way is the whole search: a commit keeps a tree of it instead of moving values to the cache's past."""

    roots = 0  # of the draft under way
    head: CatalogueHead | None = None
    moves: tuple[Tensor, Tensor] | None = None  # slots to copy before the cache is read again; after a search's end it never is

    @property
    def own_scores(self) -> bool:
        """True for families that score drafts or make distributions themselves."""
        return self._own_distributions or isinstance(self.target.family, OwnScoring)

    def commit(self, keep: Tensor, most: int) -> None:
        """Keep columns `keep` [B, M] (-1: none) of the draft under way, all of its roots and some of its draft tokens."""
        assert self.slots is not None, "nothing has been scored"
        roots, scratch = self.roots, self.cache.capacity - 1
        draft_tokens, kept = self.slots[:, :roots], keep[:, roots:]
        if kept.shape[1] == 0:
            self.slots, self.scored = draft_tokens, roots
            return
        real = kept >= 0
        source = torch.where(real, self.slots.gather(1, kept.clamp_min(0)), scratch)
        behind = self.lengths + (draft_tokens != scratch).sum(1)
        target = torch.where(real, behind[:, None] + real.cumsum(1) - 1, scratch)
        self.moves = source, target
        self.ids.scatter_(1, target, self.ids.gather(1, source))
        self.slots, self.scored = torch.cat([draft_tokens, target], 1), keep.shape[1]

    def score(self, draft: Draft) -> Scored:
        self.settle()
        self.roots = draft.roots
        if self.slots is None and self.scored:  # rows have changed, which leaves the order of slots
            self.make_room(draft.size)
            self.slots = draft_slots(draft, self.lengths, self.cache.capacity - 1)[:, : self.scored]
        return super().score(draft)

    @property
    def joinable(self) -> bool:
        """True once the prompt is cached; see `SessionRows.joinable`. The draft under way joins."""
        self._refuse_fixed()
        return self.context is None and (self.state is None or self.state.joinable)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.settle()
        super().take_rows(rows)
        self.slots = None

    def join_rows(self, other: Self) -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`. Columns that were run in some rows only run again."""
        self.settle()
        other.settle()
        super().join_rows(other)
        self.slots, self.scored = None, min(self.scored, other.scored)

    def shift_roots(self, by: int) -> None:
        """Count columns before the roots; see `core.rows.changes.KeepsRoots`."""
        self.slots, self.scored = None, max(0, self.scored + by)

    def settle(self) -> None:
        """Copy the slots that the last commit keeps to their places."""
        if self.moves is not None:
            self.cache.gather(*self.moves)
            self.moves = None

    def distributions(self, logits: Tensor, draft: Draft, layout: Layout, first: int, deferred: bool = False) -> Any:
        idle = self.target.processors.idle
        if self._own_distributions or (idle and self.head is None):
            return super().distributions(logits, draft, layout, first, deferred)
        self.ids[self._rows, layout.slots] = layout.ids
        if self.head is None:
            return ProcessedLogProbs(self.target.processors(logits.float().log_softmax(-1), self._history(draft, layout, first)))
        return TokensAndRest(logits, self.head.tokens)

    def _forward(self, layout: Layout, fresh: int, captured: bool) -> tuple[Tensor, Tensor | None]:
        if self.head is None:
            return super()._forward(layout, fresh, captured)
        with replaced(*self.head.changes(self.target.own()[1])):
            return super()._forward(layout, fresh, captured)
