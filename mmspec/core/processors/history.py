"""The paths of a draft's nodes, as processors read them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class History:
    """The ids before the value that follows each node: those on the node's own path, prompt included."""

    ids: Tensor  # [B, S] ids by cache slot
    visible: Tensor  # [B, N, S] bool: the slot is on the node's path
    position: Tensor  # [B, N] output position of the value the node calls for

    def rows(self, count: int) -> "History":
        """Select the first `count` rows. The ids and the mask may not have been made, see `Pathless`."""
        ids, visible = (None if part is None else part[:count] for part in (self.ids, self.visible))
        return History(ids, visible, self.position[:count])  # type: ignore[arg-type]

    def seen(self, size: int) -> Tensor:
        """[B, N, V] bool: the value occurs on the node's path."""
        return tally(self.ids[:, None, :].expand_as(self.visible), self.visible, size) > 0

    def last(self, count: int, outputs: bool = False) -> tuple[Tensor, Tensor]:
        """Select the last ids of every node's path.

        Args:
            count: how many.
            outputs: leave the prompt out; the last `position` ids of a path are its outputs.

        Returns:
            The ids in order [B, N, W], W <= `count`, and which of them are real, bool [B, N, W]; on shorter paths the first ones are not.
            Ids stand in the order of their slots, drafted ones included.
        """
        slots = torch.arange(self.ids.shape[1], device=self.ids.device)
        found = torch.where(self.visible, slots, -1).topk(min(count, len(slots)), -1).values.flip(-1)
        real = found >= 0
        if outputs:
            real = real & (torch.arange(found.shape[-1], 0, -1, device=found.device) <= self.position[..., None])
        return self.ids[:, None, :].expand_as(self.visible).gather(2, found.clamp_min(0)), real

    def paths(self) -> Iterator[tuple[int, int, Tensor]]:
        """Iterate over (row, node, ids on its path in order [L]). Synchronises: for processors that must be called one by one."""
        for row in range(self.visible.shape[0]):
            for node in range(self.visible.shape[1]):
                yield row, node, self.ids[row][self.visible[row, node]]


def tally(ids: Tensor, real: Tensor, size: int) -> Tensor:
    """Count how often each value occurs among the `real` ones of `ids` [B, N, W]: [B, N, V]."""
    real = real & (ids < size)  # a prompt may hold ids that have no logit
    return torch.zeros(*ids.shape[:2], size, device=ids.device).scatter_add_(2, ids.clamp(max=size - 1), real.float())
