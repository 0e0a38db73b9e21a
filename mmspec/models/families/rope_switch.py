"""Phi-3's longrope: `generate` recomputes a sequence with the long factors once it exceeds the length of the short ones.

A row's cache holds keys of one set of factors. In the round whose pending token is past the switch, the row's committed tokens are run
again with the long factors. A draft that reaches past the switch is scored twice: as it is, and with the long factors on a cache of its
own; every column then has the logits of plain decoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.models.families.rope_lengths import RopeLengths
from mmspec.models.layout import Layout, prompt_layout
from mmspec.models.slot_cache import SlotCache


@dataclass
class Switch:
    """State of a session: which rows' caches hold long keys, and the forwards of the current round."""

    long: Tensor  # [B] bool
    round: list[Layout] = field(default_factory=list)


@dataclass(frozen=True)
class RopeSwitch(RopeLengths):
    """Decoders with longrope whose `generate` recomputes a sequence at the switch."""

    cached_reference: ClassVar[bool] = False

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        _, mask = self.prompt(model, inputs)
        return SlotCache(self.layers, capacity), Switch(mask.sum(1) > self.original)

    def lengths(self, layout: Layout, state: Switch) -> Tensor:
        return torch.where(state.long, self.original + 1, self.original)[:, None].expand(layout.positions.shape)

    def scored(self, session: Any, layout: Layout, keep: int) -> Tensor:
        """Logits [B, keep, V] of the last `keep` columns of the forward that `session` is about to run."""
        state, draft = session.state, session.draft
        if session.scored == 0:
            state.round = []
        state.round.append(layout)
        if session.bound + draft.size <= self.original:  # no row can be past the switch
            return self.forward(session.target.model, layout, session.cache, state, keep)[0]
        if session.scored == 0 and not layout.opening:
            self._rerun(session, layout.positions[:, : draft.roots].amax(1) >= self.original)
        past = (layout.positions[:, -keep:] >= self.original) & ~state.long[:, None]
        beyond = self._beyond(session, keep, past.any(1)) if bool(past.any()) else None
        session.cache.point(layout.slots, layout.view)
        logits, _ = self.forward(session.target.model, layout, session.cache, state, keep)
        return logits if beyond is None else torch.where(past[..., None], beyond, logits)

    def _rerun(self, session: Any, past: Tensor) -> None:
        """Compute the committed tokens of rows that are `past` the switch [B] anew, with the long factors."""
        state = session.state
        rows = past & ~state.long
        if bool(rows.any()):
            state.long = state.long | rows
            layout = self._committed(session, rows, session.view(session.draft.size))
            session.cache.point(layout.slots, layout.view)
            self.forward(session.target.model, layout, session.cache, state, 1)

    def _beyond(self, session: Any, keep: int, rows: Tensor) -> Tensor:
        """Logits [B, keep, V] with the long factors throughout, in a temporary cache. Used for `rows` [B] only."""
        view = session.state.round[-1].view
        whole = self._committed(session, rows & (not session.state.round[0].opening), view)
        for part in session.state.round:
            visible = torch.nn.functional.pad(part.visible, (0, view - part.view))
            whole = replace(part.seeing(visible), places=session.state.round[-1].slot_positions).behind(whole)
        cache = SlotCache(self.layers, session.cache.capacity)
        cache.point(whole.slots, view)
        return self.forward(session.target.model, whole, cache, Switch(torch.ones_like(rows)), keep)[0]

    @staticmethod
    def _committed(session: Any, rows: Tensor, view: int) -> Layout:
        """The committed tokens of `rows` [B]; nothing of the others."""
        lengths = torch.where(rows, session.lengths, 0)
        return prompt_layout(session.ids[:, : max(int(lengths.max()), 1)], lengths, view, session.cache.capacity - 1)
