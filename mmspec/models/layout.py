"""The slots, positions and attention mask of one forward's columns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.records import Draft


@dataclass(frozen=True, slots=True)
class Layout:
    """M columns: the uncached prompt, if any, then the draft's new nodes. S slots are in view."""

    ids: Tensor  # [B, M]
    positions: Tensor  # [B, M] logical; 0 for PAD columns
    slots: Tensor  # [B, M] where each column writes; the scratch slot for PAD columns
    visible: Tensor  # [B, M, S] bool: which slots each column may attend to
    slot_positions: Tensor  # [B, S] logical position of the value in each slot
    opening: bool = True  # columns of the prompt may be present

    def behind(self, prompt: "Layout") -> "Layout":
        """Both in one forward, the prompt's columns first."""
        return Layout(
            torch.cat([prompt.ids, self.ids], 1),
            torch.cat([prompt.positions, self.positions], 1),
            torch.cat([prompt.slots, self.slots], 1),
            torch.cat([prompt.visible, self.visible], 1),
            self.slot_positions,
        )


def prompt_layout(ids: Tensor, lengths: Tensor, view: int, scratch: int) -> Layout:
    """The layout of a packed prompt `ids` [B, P], `lengths` [B] of each row real, with `view` slots in view."""
    columns, slot = torch.arange(ids.shape[1], device=ids.device), torch.arange(view, device=ids.device)
    real = columns < lengths[:, None]
    slots = torch.where(real, columns, scratch)
    return Layout(ids, torch.where(real, columns, 0), slots, slot <= slots[:, :, None], slot.expand(len(ids), -1))


def draft_layout(draft: Draft, first: int, lengths: Tensor, view: int, scratch: int) -> Layout:
    """The layout of the draft's columns from `first` on, in rows with `lengths` [B] committed slots."""
    slots = torch.where(draft.valid, lengths[:, None] + draft.valid.cumsum(1) - 1, scratch)
    return _chain(draft, first, slots, view, scratch) if draft.linear else _tree(draft, first, slots, lengths, view)


def _chain(draft: Draft, first: int, slots: Tensor, view: int, scratch: int) -> Layout:
    """A chain's slots are its positions, and every column sees all slots up to its own. PAD columns see everything, without effect."""
    slot, own = torch.arange(view, device=slots.device), slots[:, first:]
    positions = torch.where(own < scratch, own, 0)
    return Layout(draft.nodes[:, first:], positions, own, slot <= own[:, :, None], slot.expand(len(own), -1), opening=False)


def _tree(draft: Draft, first: int, slots: Tensor, lengths: Tensor, view: int) -> Layout:
    """A tree's columns see the committed slots and those of their own ancestors; positions count ancestors."""
    slot, rows, fresh = torch.arange(view, device=slots.device), len(slots), draft.size - first
    ancestors, valid = draft.ancestors(), draft.valid
    depth = (ancestors & valid[:, None, :]).sum(-1) - 1
    positions = torch.where(valid, lengths[:, None] + depth, 0)
    trash = slots.clamp(max=view)  # PAD columns write to one column after the view
    slot_positions = torch.arange(view + 1, device=slots.device).repeat(rows, 1).scatter_(1, trash, positions)[:, :view]
    visible = torch.zeros(rows, fresh, view + 1, dtype=torch.bool, device=slots.device)
    visible.scatter_(2, trash[:, None, :].expand(-1, fresh, -1), ancestors[:, first:])
    visible = visible[..., :view] | (slot < lengths[:, None, None])
    visible[..., 0] |= ~valid[:, first:]  # the softmax of a PAD row that sees nothing would be NaN
    return Layout(draft.nodes[:, first:], positions[:, first:], slots[:, first:], visible, slot_positions, opening=False)
