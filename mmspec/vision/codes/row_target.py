"""An image model whose engine rows are lanes: all active lines run in one forward, each column at the slot of its raster position.

A column sees committed values that are earlier in raster order, wherever they were decoded, and the earlier columns of its own lane. So it
never sees draft tokens of another line, nor slots that have not been written, whose zeros would attract attention.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.history import History
from mmspec.core.records import Draft, Scored
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.layout import Layout, prompt_layout
from mmspec.models.target import HFSession, HFTarget


@dataclass(frozen=True)
class RowTarget:
    """`target` runs the model, with room for a whole picture; with `Guided` processors its prompts come in pairs.

    `opening` is the first pending token, over all lanes of all pictures.
    """

    target: HFTarget
    opening: Draft

    def begin(self, prompt: Any) -> tuple["RowSession", Draft]:
        """Open a session on `prompt`; see `Target.begin`. ValueError where cells that are scored together influence each other."""
        whole = Pairs(self.target) if isinstance(self.target.processors, Guided) else self.target
        whole.require_columns(prompt)
        session, _ = self.target.begin(prompt)
        return RowSession(session), self.opening


class RowSession:
    """One generation: which slots hold committed values, for R rows of the cache, one or two a picture. A draft is scored once, whole."""

    def __init__(self, session: HFSession):
        assert session.context is not None
        self.target, self.cache, self.state = session.target, session.cache, session.state
        self.context: tuple[Tensor, Tensor] | None = session.context
        self.first = session.context[1] + 1  # [R] the slot of output position 0
        self.scratch = self.cache.capacity - 1
        self.written = torch.arange(self.scratch + 1, device=self.first.device) < self.first[:, None] - 1  # [R, S + 1]
        self.ids = torch.zeros_like(self.written, dtype=torch.long)
        self.pictures = len(self.first) // (2 if isinstance(self.target.processors, Guided) else 1)
        self.scored = 0
        self.slots: Tensor | None = None  # [R, L / B, N] of the draft under way

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Distributions [L, N] after every node."""
        lanes, size = len(draft.start) // self.pictures, draft.size
        layout = self._layout(draft)
        fresh = lanes * size
        self.cache.point(layout.slots, layout.view)
        logits, _ = self.target.family.forward(self.target.model, layout, self.cache, self.state, fresh)
        logits = logits.float()
        self.ids.scatter_(1, layout.slots, layout.ids)
        self.scored = size
        healthy = (logits < torch.inf).all(-1).view(-1, self.pictures, lanes, size).all(-1).all(0).flatten()
        return Scored(self._distribution(logits, draft, layout, fresh), healthy=healthy)

    def _distribution(self, logits: Tensor, draft: Draft, layout: Layout, fresh: int) -> Categorical:
        visible = layout.visible[:, -fresh:]
        history = History(self.ids[:, : visible.shape[-1]], visible, self._each(draft.position()).flatten(1))
        return Categorical(self.target.processors(logits, history).view(*draft.nodes.shape, -1))

    def _each(self, table: Tensor) -> Tensor:
        """`table` [L, N] for every row of the cache, [R, L / B, N]."""
        return table.unflatten(0, (self.pictures, -1)).repeat(len(self.first) // self.pictures, 1, 1)

    def _layout(self, draft: Draft) -> Layout:
        """Where all lanes' columns stand, [R, L / B * N], and what they see."""
        slots, view = self._place(draft), self.scratch
        now = self.now(slots, draft.roots)[:, :view]
        own, slot = slots.flatten(1)[..., None], torch.arange(view, device=slots.device)
        chain = slot >= slots[:, :, :1].expand_as(slots).flatten(1)[..., None]  # a lane's columns stand side by side
        visible = self.sees(now[:, None], chain, slot <= own)
        ids, flat, self.slots = self._each(draft.nodes).flatten(1), slots.flatten(1), slots
        layout = Layout(ids, torch.where(flat < view, flat, 0), flat, view, visible)
        if self.context is None:
            return layout
        (context, lengths), self.context = self.context, None
        return layout.behind(prompt_layout(context, lengths, view, self.scratch))

    def _place(self, draft: Draft) -> Tensor:
        """[R, L / B, N] the slot of every column: a node stands one position before the value it calls for."""
        slots = self.first[:, None, None] + self._each(draft.position()) - 1
        return torch.where(self._each(draft.valid), slots, self.scratch)

    def now(self, slots: Tensor, roots: int) -> Tensor:
        """[R, S + 1] which slots hold committed values once this forward has written: those that did, and the pending tokens."""
        return self.written.scatter(1, slots[:, :, :roots].flatten(1), True)

    @staticmethod
    def sees(committed: Tensor, chain: Tensor, earlier: Tensor) -> Tensor:
        """[R, M, S] from which slots hold committed values, which stand behind a lane's first column, and which are earlier."""
        return (committed | chain) & earlier

    @torch.no_grad()
    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        assert self.slots is not None
        kept = self._each(keep)
        slots = torch.where(kept >= 0, self.slots.gather(2, kept.clamp_min(0)), self.scratch)
        self.written = self.written.scatter(1, slots.flatten(1), True)
        self.slots, self.scored = None, 0

    def watch(self, states: Any) -> None:
        """Hand out hidden states `states` with every score; see `HFSession.watch`."""
        raise ValueError("drafters that read hidden states do not work by rows: use the none or a window drafter")
