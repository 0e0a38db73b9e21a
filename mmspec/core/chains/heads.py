"""Heads whose work on timestep and conditioning is done once for all steps of a token."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class PreparedHead(Protocol):
    """A head of two parts, of which only the second reads the state.

    What the first part returns is kept for all T steps of all R tokens under way: R T F numbers.
    """

    def embed_times(self, timesteps: Tensor) -> Tensor:
        """Embed timesteps.

        Args:
            timesteps: [T].

        Returns:
            [T, W].
        """
        ...

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        """Combine timesteps and conditioning.

        Args:
            times: embedded timesteps [..., W].
            z: conditioning [..., D], of the same leading shape up to broadcasting.

        Returns:
            What `denoise` reads, [..., F].
        """
        ...

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        """Predict from states.

        Args:
            x: states [M, d].
            condition: [M, F].

        Returns:
            Outputs [M, d].
        """
        ...


@dataclass(frozen=True)
class Conditioned:
    """A head with the conditioning of some tokens.

    Args:
        net: the head.
        timesteps: those of the steps, [T].
        z: conditioning [R, D].
        prepared: what the head prepared for every step of every token [R * T, F]; None for heads that prepare nothing.
    """

    net: Any
    timesteps: Tensor
    z: Tensor
    prepared: Tensor | None

    @staticmethod
    def of(net: Any, timesteps: Tensor, z: Tensor) -> "Conditioned":
        """Prepare a head.

        Args:
            net: the head.
            timesteps: those of the steps, [T].
            z: conditioning [R, D].

        Returns:
            The head, conditioned.
        """
        if not isinstance(net, PreparedHead):
            return Conditioned(net, timesteps, z, None)
        return Conditioned(net, timesteps, z, net.condition(net.embed_times(timesteps), z[:, None]).flatten(0, 1))

    def run(self, x: Tensor, rows: Tensor, steps: Tensor) -> Tensor:
        """Run the head once.

        Args:
            x: states [A, K, d].
            rows: LongTensor [A], which token's.
            steps: LongTensor [A, K], which steps; those behind the last count as the last.

        Returns:
            Outputs [A, K, d].
        """
        steps, flat = steps.clamp(max=len(self.timesteps) - 1), x.flatten(0, 1)
        if self.prepared is None:
            return self.net(flat, self.timesteps[steps].flatten(), self.z[rows].repeat_interleave(x.shape[1], 0)).view(x.shape)
        at = torch.add(steps, rows[:, None], alpha=len(self.timesteps)).flatten()
        return self.net.denoise(flat, self.prepared.index_select(0, at)).view(x.shape)
