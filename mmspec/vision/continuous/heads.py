"""Diffusion heads as generation runs them: guided, and with their calls counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.prepared_head import PreparedHead
from mmspec.core.stats import Stats
from mmspec.models.module_copy import on_copy, refresh
from mmspec.models.prompt_proof import require_rows


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


def require_chain_head(model: Any, head: CountedHead, timesteps: Tensor, width: Callable[[], int]) -> None:
    """Test whether a head gives the states of a chain that are judged in one call the outputs of calls of their own.

    Args:
        model: the model of the head.
        head: the head; it is not called.
        timesteps: of the chain [T].
        width: returns the width D of the conditioning.

    Raises:
        ValueError: where it does not; in one line.
    """
    refresh(model)
    size, own = model.config.channels, on_copy(counted_head(head.head, head.guidance), model)

    def outputs(values: Tensor) -> Tensor:
        x, z = values.split([size, values.shape[-1] - size], -1)
        return own(x, timesteps[(x[:, 0].abs() * 997).long() % len(timesteps)], z)

    require_rows(model, outputs, lambda: size + width())
