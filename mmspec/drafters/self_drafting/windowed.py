"""The target's own weights on a part of its cache: the first few values and the newest ones (MagicDec, Chen et al. 2024).

Attention sinks with a sliding window are StreamingLLM's (Xiao et al. 2023); TriForce's middle level (Sun et al. 2024) drafts likewise. A
draft then reads the weights but not the long cache, which dominates the cost of long texts and large batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.records import Draft
from mmspec.drafters.guided import ViewGuide
from mmspec.models.layout import Layout
from mmspec.models.partial_forward import PartialForward, run_uncaptured
from mmspec.models.slot_cache import Store
from mmspec.models.target import HFSession

_ROUND = 32  # the buffer grows by this many slots for a draft


@dataclass(frozen=True)
class Windowed:
    """Drafts with the target reading only the first and the newest committed values (MagicDec, Chen et al. 2024).

    Values keep their positions. Exact for any setting; a window as long as the text accepts every draft token. Useful where the text is
    much longer than `sinks + window`.

    Args:
        sinks: number of first values read.
        window: number of newest values read.

    Raises:
        ValueError: for values out of range.
    """

    sinks: int = 4
    window: int = 256

    def __post_init__(self):
        if self.sinks < 0 or self.window < 1:
            raise ValueError(f"sinks and window are {self.sinks} and {self.window}: see 0 or more first values and 1 or more last ones")

    def guide(self, session: HFSession) -> ViewGuide:
        """Return the guide of one generation on the target session `session`."""
        return ViewGuide(WindowView(session, self.sinks, self.window))


class WindowView(PartialForward):
    """Partial forward on a buffer: `sinks + window` slots copied from the target's cache when a draft begins, then the draft's."""

    def __init__(self, session: HFSession, sinks: int, window: int):
        super().__init__(session)
        self.sinks, self.kept = sinks, sinks + window
        self.capacity = 0
        self.stores: list[Store] = []  # one a layer, kept from draft to draft
        self.taken: Tensor | None = None  # [B, kept] the slot that each slot of the buffer was copied from

    def forward(self, draft: Draft, layout: Layout, fresh: int) -> Tensor:
        """Return logits of the newest `fresh` columns of the draft."""
        if self.taken is None or self.kept + draft.size >= self.capacity:
            self._copy(draft)
        small = self._layout(draft, layout, fresh)
        with self.session.cache.lent(self.stores, self.capacity):
            return run_uncaptured(self.session, small, fresh, self.draft_state())

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        super().close()
        self.taken = None

    def change_rows(self) -> None:
        """Forget the buffer; see `PartialForward.change_rows`."""
        self.stores, self.capacity = [], 0

    def _copy(self, draft: Draft) -> None:
        """Copy the window's slots; the draft's own slots stay. The target's cache is not changed."""
        cache, length = self.session.cache, self.session.lengths[:, None]
        if self.kept + draft.size >= self.capacity:
            self._grow(-(-(draft.size + 1) // _ROUND) * _ROUND)
        if self.taken is None:
            slot = torch.arange(self.kept, device=length.device)
            newest = (length - self.kept).clamp_min(0) + slot
            self.taken = torch.where(slot < self.sinks, slot, newest)
            source = self.taken.clamp(max=cache.capacity - 1)[:, None, :, None]
            for layer, (keys, values) in zip(cache.slot_layers, self.stores, strict=True):
                for copy, own in ((keys, layer.keys), (values, layer.values)):
                    assert own is not None
                    copy[:, :, : self.kept] = own.gather(2, source.expand(-1, own.shape[1], -1, own.shape[3]))

    def _grow(self, budget: int) -> None:
        old, self.capacity = self.stores, self.kept + budget
        self.stores = []
        for index, layer in enumerate(self.session.cache.slot_layers):
            new = [store.new_zeros(*store.shape[:2], self.capacity, store.shape[3]) for store in (layer.keys, layer.values)]
            if old:
                for store, before in zip(new, old[index], strict=True):
                    store[:, :, : before.shape[2] - 1] = before[:, :, :-1]  # the last slot is scratch
            self.stores.append((new[0], new[1]))

    def _layout(self, draft: Draft, layout: Layout, fresh: int) -> Layout:
        """The newest columns in the buffer: column i of the draft stands i slots behind what was copied."""
        assert self.taken is not None
        view, scratch, valid, length = self.capacity - 1, self.capacity - 1, draft.valid, self.session.lengths[:, None]
        ancestors = draft.ancestors()
        position = torch.where(valid, length + (ancestors & valid[:, None]).sum(-1) - 1, 0)
        own = torch.where(valid, self.kept + torch.arange(draft.size, device=valid.device), scratch)
        empty = view - self.kept - draft.size
        known = (self.taken < length)[:, None].expand(-1, fresh, -1)
        visible = torch.cat([known, ancestors[:, -fresh:] & valid[:, None], valid.new_zeros(len(valid), fresh, empty)], -1)
        nowhere = (slice(None), slice(None), 0)
        visible[nowhere] |= ~valid[:, -fresh:]  # a PAD row needs a visible slot, or its softmax is NaN
        positions = torch.cat([self.taken, position, position.new_zeros(len(valid), empty)], 1)
        return Layout(
            layout.ids, layout.positions, own[:, -fresh:], view, visible, positions, opening=layout.opening, parents=layout.parents
        )
