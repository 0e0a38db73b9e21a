"""The slots, positions and attention mask of one forward's columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.records import PAD, Draft


@dataclass(frozen=True)
class Layout:
    """M columns: the uncached prompt, if any, then the draft's new nodes. S slots are in view.

    What is as large as columns times slots, or as rows times slots, is made when it is first read.

    Args:
        ids: [B, M, *value].
        positions: [B, M] logical; 0 for PAD columns.
        slots: [B, M] where each column writes; the scratch slot for PAD columns.
        view: S, the slots attention reads: the first ones.
        mask: [B, M, S] bool, which slots each column may attend to; None for all up to its own, as in a chain.
        places: [B, S] logical position of the value in each slot; None where it is the slot's number.
        opening: columns of the prompt may be present.
        causal: the columns of all rows that are still generated are the last M slots in view, in order, and M is 1 or S. So attention
            needs no mask: its causal kernel does the same.
        floor: no column that is not PAD stands at a smaller position.
        parents: [B, N] of a branching draft's columns, the last ones, as the draft numbers them; None for a chain.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    view: int
    mask: Tensor | None = None
    places: Tensor | None = None
    opening: bool = True
    causal: bool = False
    floor: int = 0
    parents: Tensor | None = None

    @cached_property
    def visible(self) -> Tensor:
        """[B, M, S] bool: which slots each column may attend to."""
        return self._slot <= self.slots[:, :, None] if self.mask is None else self.mask

    def paths(self, count: int) -> Tensor:
        """[B, count, S] bool: the slots on the path to each of the last `count` columns. PAD columns have the row's first slot.

        Unlike what they may attend to, that does not depend on the other rows.
        """
        columns = slice(self.ids.shape[1] - count, None)
        return self._slot <= self.positions[:, columns, None] if self.mask is None else self.mask[:, columns]

    @cached_property
    def slot_positions(self) -> Tensor:
        """[B, S] logical position of the value in each slot."""
        return self._slot.expand(len(self.slots), -1) if self.places is None else self.places

    @cached_property
    def _slot(self) -> Tensor:
        return torch.arange(self.view, device=self.slots.device)

    def near(self, window: int, first: int = 0) -> Tensor:
        """[B, M, S - first] bool: which slots from `first` on each column attends to in a sliding window."""
        places = self.slot_positions[:, None, first:]
        return self.visible[..., first:] & (self.positions[:, :, None] - places < window)

    def seeing(self, visible: Tensor) -> "Layout":
        """The same columns with another mask, `visible` [B, M, S] bool."""
        return replace(self, mask=visible, view=visible.shape[-1], causal=False)

    def behind(self, prompt: "Layout", causal: bool = False) -> "Layout":
        """Both in one forward, the prompt's columns first. `causal`: together they are, see `Layout`."""
        explicit = self.mask is not None or prompt.mask is not None
        return Layout(
            torch.cat([prompt.ids, self.ids], 1),
            torch.cat([prompt.positions, self.positions], 1),
            torch.cat([prompt.slots, self.slots], 1),
            self.view,
            torch.cat([prompt.visible, self.visible], 1) if explicit else None,
            self.places,
            causal=causal,
            floor=min(prompt.floor, self.floor),
            parents=self.parents,
        )


def prompt_layout(ids: Tensor, lengths: Tensor, view: int, scratch: int, first: int = 0) -> Layout:
    """The layout of columns of a packed prompt, with `view` slots in view.

    Args:
        ids: [B, M, *value], the columns from `first` on.
        lengths: ids of each whole prompt [B].
        view: slots in view.
        scratch: number of the scratch slot.
        first: position of the first column.

    Returns:
        Their layout.
    """
    columns = torch.arange(first, first + ids.shape[1], device=ids.device)
    real = columns < lengths[:, None]
    slots = torch.where(real, columns, scratch)
    return Layout(ids, torch.where(real, columns, 0), slots, view, causal=first == 0 and view == ids.shape[1], floor=first)


def draft_layout(draft: Draft, first: int, lengths: Tensor, view: int, scratch: int) -> Layout:
    """The layout of the draft's columns from `first` on, in rows with `lengths` [B] committed slots."""
    if draft.size == 1:
        return _column(draft, lengths[:, None], view, scratch)
    slots = draft_slots(draft, lengths, scratch)
    return _chain(draft, first, slots, view, scratch) if draft.linear else _tree(draft, first, slots, lengths, view)


def draft_slots(draft: Draft, lengths: Tensor, scratch: int) -> Tensor:
    """[B, N] the slots of a draft's columns, in rows with `lengths` [B] committed slots; the scratch slot for PAD."""
    return torch.where(draft.valid, lengths[:, None] + draft.valid.cumsum(1) - 1, scratch)


def _column(draft: Draft, lengths: Tensor, view: int, scratch: int) -> Layout:
    """A single root: it sees the committed slots, `lengths` [B, 1] of them, and its own."""
    pad = draft.parents == PAD
    return Layout(draft.nodes, lengths.masked_fill(pad, 0), lengths.masked_fill(pad, scratch), view, opening=False)


def _chain(draft: Draft, first: int, slots: Tensor, view: int, scratch: int) -> Layout:
    """A chain's slots are its positions, and every column sees all slots up to its own. PAD columns see everything, without effect."""
    own = slots[:, first:]
    return Layout(draft.nodes[:, first:], torch.where(own < scratch, own, 0), own, view, opening=False)


def _tree(draft: Draft, first: int, slots: Tensor, lengths: Tensor, view: int) -> Layout:
    """A tree's columns see the committed slots and those of their own ancestors; positions count ancestors."""
    slot, rows, fresh = torch.arange(view, device=slots.device), len(slots), draft.size - first
    ancestors, valid = draft.ancestors(), draft.valid
    positions = torch.where(valid, lengths[:, None] + (ancestors & valid[:, None, :]).sum(-1) - 1, 0)
    trash = slots.clamp(max=view)  # PAD columns write to one column after the view
    places = torch.arange(view + 1, device=slots.device).repeat(rows, 1).scatter_(1, trash, positions)[:, :view]
    visible = torch.zeros(rows, fresh, view + 1, dtype=torch.bool, device=slots.device)
    visible.scatter_(2, trash[:, None, :].expand(-1, fresh, -1), ancestors[:, first:])
    visible = visible[..., :view] | (slot < lengths[:, None, None])
    visible[..., 0] |= ~valid[:, first:]  # the softmax of a PAD row that sees nothing would be NaN
    own = Layout(draft.nodes[:, first:], positions[:, first:], slots[:, first:], view, visible, places, opening=False)
    return replace(own, parents=draft.parents if first == 0 else draft.parents[:, first:])
