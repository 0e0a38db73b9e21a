"""A target searched over the paths of a trie."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.beams.search import Forest
from mmspec.core.beams.trie import Trie
from mmspec.core.records import Draft, Scored
from mmspec.models.family import StateCommit
from mmspec.models.target import HFSession, HFTarget


@dataclass(frozen=True)
class BeamTarget:
    """A `target` searched over the paths of `trie`."""

    target: HFTarget
    trie: Trie

    def capture(self) -> "BeamTarget":
        """Return this target with its forwards captured; see `HFTarget.capture`."""
        return replace(self, target=self.target.capture(self.target.reserve))

    def begin(self, prompt: Mapping[str, Tensor]) -> tuple["BeamSession", Draft]:
        parts, root = self.target.opened(prompt)
        if isinstance(parts[2], StateCommit):
            raise ValueError(f"{type(self.target.model).__name__} keeps recurrent states, which a beam search does not follow")
        state = torch.zeros_like(root.nodes)
        root = replace(root, linear=False, trunk=self.trie.levels, score=state.float(), aux=Forest(state, 1, 0))
        return BeamSession(*parts), root


class BeamSession(HFSession):
    """A session whose draft under way is the whole search: a commit keeps a tree of it instead of moving values to the cache's past."""

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

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
        self.cache.gather(source, target)
        self.ids.scatter_(1, target, self.ids.gather(1, source))
        self.slots, self.scored = torch.cat([draft_tokens, target], 1), keep.shape[1]

    def score(self, draft: Draft) -> Scored:
        self.roots = draft.roots
        return super().score(draft)
