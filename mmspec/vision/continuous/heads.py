"""Diffusion heads as generation runs them: guided, and with their calls counted."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.prepared_head import PreparedHead
from mmspec.core.stats import Stats


@dataclass
class HeadStats(Stats):
    """Counts of a generation by a model with a diffusion head.

    Attributes:
        head_calls: sequential calls of the target's head. Calls for the rows of a batch count once.
        head_states: states that these calls held.
        draft_head_calls: sequential calls of the drafter's head, or of the target's by the drafter.
    """

    head_calls: int = 0
    head_states: int = 0
    draft_head_calls: int = 0


class CountedHead:
    """A diffusion head that counts its calls, with or without classifier-free guidance. Lives for one generation.

    With guidance, conditioning is that with and without the class side by side.

    Args:
        head: a `DiffusionHead`, or another callable of (x, timesteps, z).
        guidance: scale of classifier-free guidance, or None.
    """

    def __init__(self, head: Any, guidance: float | None = None):
        self.head, self.guidance = head, guidance
        self.calls, self.states = 0, 0

    def __call__(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        """Return the output [M, d].

        Args:
            x: [M, d] noisy tokens.
            timesteps: [M] noise levels.
            z: [M, D] states; with guidance [M, 2 D].
        """
        self._count(x)
        if self.guidance is None:
            return self.head(x, timesteps, z)
        return self._mixed(self.head(torch.cat([x, x]), torch.cat([timesteps, timesteps]), torch.cat(z.chunk(2, -1))))

    def _count(self, x: Tensor) -> None:
        self.calls, self.states = self.calls + 1, self.states + len(x)

    def _mixed(self, out: Tensor) -> Tensor:
        assert self.guidance is not None
        cond, uncond = out.chunk(2)
        return uncond + self.guidance * (cond - uncond)


class CountedPreparedHead(CountedHead):
    """A `CountedHead` that is prepared once for all steps of a token; see `PreparedHead`."""

    def embed_times(self, timesteps: Tensor) -> Tensor:
        """Embed timesteps."""
        return self.head.embed_times(timesteps)

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        """Combine timesteps and conditioning. With guidance, the two parts stand side by side."""
        if self.guidance is None:
            return self.head.condition(times, z)
        return torch.cat([self.head.condition(times, part) for part in z.chunk(2, -1)], -1)

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the output [M, d]."""
        self._count(x)
        if self.guidance is None:
            return self.head.denoise(x, condition)
        return self._mixed(self.head.denoise(torch.cat([x, x]), torch.cat(condition.chunk(2, -1))))


def counted_head(head: Any, guidance: float | None = None) -> CountedHead:
    """Return a head that counts its calls, prepared once a token where `head` is.

    Args:
        head: a `DiffusionHead`, or another callable of (x, timesteps, z).
        guidance: scale of classifier-free guidance, or None.

    Returns:
        The head.
    """
    return (CountedPreparedHead if isinstance(head, PreparedHead) else CountedHead)(head, guidance)
