"""PARD (An et al. 2025, arXiv 2504.18583): an ordinary causal language model that drafts a block in one forward, by mask tokens.

Behind the pending token stand as many mask tokens as there are further draft tokens, all of one id, which is named by `pard_token` in the
model's config. The pending token's column gives the distribution of the first draft token, the masks' columns those of the others. Masks
are never committed: a round runs the values committed in the round before, and drops every mask's column.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.model.drafter import ModelDrafter, ModelSession
from mmspec.drafters.model.vocabulary import Translated
from mmspec.drafters.shapes import UNRUN
from mmspec.models.model_checks import model_name
from mmspec.models.session import HFSession
from mmspec.models.target import HFTarget

KEY = "pard_token"
"""The key of a model's config that names its mask token, as in published checkpoints."""


def mask_token_of(model: Any) -> int | None:
    """Return the mask token of a model that was trained to draft blocks, None for other models.

    Args:
        model: a transformers model.

    Raises:
        ValueError: for a mask token that is none of the model's ids.
    """
    config = model.config.get_text_config(decoder=True)
    found = getattr(config, KEY, None) if hasattr(config, KEY) else getattr(model.config, KEY, None)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < config.vocab_size:
        raise ValueError(f"{KEY} is {found!r} in the config of {model_name(model)}: give an id from 0 to {config.vocab_size - 1}")
    return found


@dataclass(frozen=True)
class MaskedTarget(HFTarget):
    """A drafter's model whose sessions give the distributions of a whole block by one forward.

    Args:
        mask_id: the id of its mask token.
    """

    mask_id: int = 0

    @staticmethod
    def of(target: HFTarget, mask_id: int) -> "MaskedTarget":
        """Return `target` with sessions that draft by the mask token `mask_id`."""
        parts = {name: getattr(target, name) for name in HFTarget.__dataclass_fields__}
        return MaskedTarget(**parts, mask_id=mask_id)

    def begin(self, prompt: Any) -> tuple["MaskedSession", Draft]:
        """Open a session; see `HFTarget.begin`."""
        parts, pending = self.opened(prompt)
        return MaskedSession(*parts), pending

    def capture(self, reserve: int, **options: Any) -> "MaskedTarget":
        """Return this object: the columns of a round differ in number, so that its forwards are not captured."""
        return self


class MaskedSession(HFSession):
    """Session that scores the levels of a draft by one forward over its roots and mask columns. See `HFSession` for the arguments."""

    target: MaskedTarget
    mixes_depths = False

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.masks: tuple[int, Tensor] | None = None  # their number, and how many of them each row has [B]
        self.block: tuple[Tensor, Tensor | None] | None = None  # logits [B, 1 + masks, V] and watched states of the round
        self.level = self.known = 0  # levels and columns of the draft whose distributions were given

    def fill(self, budget: Budget) -> None:
        """Say how many draft tokens the next draft may have: a path of L takes L - 1 masks."""
        self.masks = (max(0, budget.length - 1), (budget.draft_tokens - 1).clamp_min(0))

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Return the distributions after the last root, or after the next level of the draft.

        Args:
            draft: the draft, grown by one level since the last call.

        Returns:
            Distributions over the new columns, which depend on the committed values and on a node's level alone.

        Raises:
            ValueError: for more levels than there are masks.
        """
        healthy = None
        if self.block is None:
            healthy = self._fill(draft)
        assert self.block is not None
        logits, hidden = (None if part is None else part[:, self.level : self.level + 1] for part in self.block)
        if logits is None or not logits.shape[1]:
            raise ValueError(f"the draft has more than {self.block[0].shape[1]} levels: call fill() with its budget first")
        first, count = self.known, draft.size - self.known
        p = self.distribution(logits.expand(-1, count, -1), draft, first)
        self.level, self.known = self.level + 1, draft.size
        return Scored(p, None if hidden is None else hidden.expand(-1, count, -1), healthy=healthy)

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit roots, and drop the masks; see `TargetSession.commit`."""
        super().commit(keep, most)
        self.masks = self.block = None
        self.level = self.known = 0

    def _fill(self, draft: Draft) -> Tensor | None:
        """Run the roots of `draft` and the masks; returns which rows [B] have finite logits."""
        count, allowed = self.masks or (0, torch.zeros_like(draft.start))
        blank = draft.nodes.new_full((len(draft.nodes), count), self.target.mask_id)
        logits, hidden, layout = self.run(draft.extend_chain(blank, allowed))
        self.ids[self._rows, layout.slots] = layout.ids  # of the masks, too: no path leads over them before its own values stand there
        self.block = (logits[:, draft.roots - 1 :], None if hidden is None else hidden[:, -1 - count :])
        self.level, self.known = 0, draft.roots - 1
        return self.healthy(logits)


@dataclass(frozen=True)
class MaskedDrafter(ModelDrafter):
    """Drafts by PARD: `target` is a `MaskedTarget`, or a translation of one to another vocabulary. q of a path is the product of the
    distributions of its levels, which do not depend on one another, given the committed values.
    """

    def _session(self, own: Any, after: Any = None) -> "MaskedDraftSession":
        return MaskedDraftSession(own, self.shape, after)


class MaskedDraftSession(ModelSession):
    """Drafting session of PARD: no draft token is run while drafting, so all that are accepted are roots of the next draft."""

    def _grow(self, pending: Draft, own: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """The finished draft that grows from `own`, and its draft tokens' columns: none of them is run."""
        levels = min(budget.length, getattr(self.shape, "depth", budget.length))
        getattr(self.session, "session", self.session).fill(replace(budget, length=levels))
        grown, origin = super()._grow(pending, own, budget, noise)
        return grown, torch.full_like(origin, UNRUN)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        if draft.size == draft.roots:
            super().observe(draft, scored, verdict, committed)
            return
        self._record(committed)
        roots = torch.arange(self.lag + 1, device=verdict.keep.device).expand(len(verdict.keep), -1)
        self.session.commit(torch.where(verdict.keep[:, :1] >= 0, self._real_roots(roots), -1), self.lag + 1)
        kept = verdict.keep[:, 1 : 1 + max(committed.accepted)]
        rows = torch.arange(len(kept), device=kept.device)[:, None]
        self.waiting = (draft.nodes[rows, kept.clamp_min(0)], kept >= 0)


def by_masks(drafter: ModelDrafter, mask_id: int | None) -> ModelDrafter:
    """Return a model drafter that drafts blocks by a mask token, or `drafter` itself without one.

    Args:
        drafter: over an `HFTarget`, or a translation of one to another vocabulary.
        mask_id: what `mask_token_of` found.

    Raises:
        ValueError: for an ensemble of views, whose rows share their draft tokens.
    """
    if mask_id is None:
        return drafter
    outer: Any = drafter.target
    own = outer.target if isinstance(outer, Translated) else outer
    if not isinstance(own, HFTarget):
        raise ValueError(f"a drafter with a {KEY} drafts for one view of a prompt, and not for several: give one view")
    masked: Any = MaskedTarget.of(own, mask_id)
    return MaskedDrafter(masked if outer is own else replace(outer, target=masked), drafter.shape, drafter.view)
