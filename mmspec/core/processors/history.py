"""What a processor is given: scores and the history of every node, the ids on its path."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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

    def of_rows(self, rows: Tensor) -> "History":
        """Select `rows` [R]."""
        ids, visible = (None if part is None else part[rows] for part in (self.ids, self.visible))
        return History(ids, visible, self.position[rows])  # type: ignore[arg-type]

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


class Pathless:
    """Base of processors that read no more of a history than positions: with no others in a pipeline, paths are not made."""

    reads_paths = False


class Processor(Protocol):
    """A step of a pipeline."""

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        """Process scores.

        Args:
            scores: [B, N, V].
            history: the paths of the B x N nodes.

        Returns:
            Scores [B, N, V].
        """
        ...


def per_row(value: float | Sequence[float], like: Tensor, name: str) -> float | Tensor:
    """Return a number as it is, or one per row, shaped to broadcast over [B, N, V]. ValueError, with `name`, for another count."""
    if isinstance(value, (int, float)):
        return value
    if len(value) != like.shape[0]:
        raise ValueError(f"{name} has {len(value)} numbers for {like.shape[0]} rows: give one number, or one per row")
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)[:, None, None]


def ban(scores: Tensor, banned: Tensor) -> Tensor:
    """Set the scores of `banned` values (bool, broadcast to the scores) to -inf."""
    return scores.masked_fill(banned, -torch.inf)
