"""A linear model of what a head predicts, by which the steps of its chain are drafted.

The prediction of the clean token at the first step is affine in the conditioning, and later predictions move linearly with the state. Only
the draft depends on it: with any numbers the sampled distribution is the head's own, and good ones let more steps be kept.

L noise levels, T steps, d numbers of a state, D the width of the conditioning.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mmspec.core.distributions.noise_schedule import NoiseSchedule


@dataclass(frozen=True)
class LinearDraft:
    """A linear model of a head.

    Args:
        timesteps: float [L], increasing.
        jacobian: [L, d, d] mean derivative of the head's output with respect to the state, rows of the state first.
        unguided: the same without a class, for guidance [L, d, d].
        weight: [D, d] of the first prediction of the clean token.
        bias: [d].
    """

    timesteps: Tensor
    jacobian: Tensor
    unguided: Tensor
    weight: Tensor
    bias: Tensor

    def to(self, device: torch.device | str) -> "LinearDraft":
        """Move the tensors to a device.

        Args:
            device: a torch device.

        Returns:
            A new object.
        """
        return LinearDraft(*(getattr(self, part.name).to(device) for part in fields(self)))

    def response(self, noise_schedule: NoiseSchedule, guidance: float | None = None) -> Tensor:
        """Compute how far the prediction of the clean token moves with the noise of every step.

        Args:
            noise_schedule: the chain's transitions.
            guidance: scale of classifier-free guidance.

        Returns:
            [T, d, d], rows of the noise first. 0 for the last step, behind which nothing is predicted.
        """
        jacobian = self.jacobian if guidance is None else self.unguided + guidance * (self.jacobian - self.unguided)
        known, at = self.timesteps.double(), noise_schedule.timesteps.double()
        upper = torch.searchsorted(known, at).clamp(1, len(known) - 1)
        low, high = known[upper - 1], known[upper]
        share = ((at - low) / (high - low)).clamp(0, 1)[:, None, None]
        output = torch.lerp(jacobian.double()[upper - 1], jacobian.double()[upper], share)
        c, e = (table[:, None, None] for table in noise_schedule.prediction)
        moved = c * torch.eye(output.shape[-1], dtype=torch.float64, device=output.device) + e * output
        return torch.cat([noise_schedule.std[:-1, None, None] * moved[1:], torch.zeros_like(moved[:1])])

    def first(self, z: Tensor, guidance: float | None = None) -> Tensor:
        """Predict the clean token before the first step.

        Args:
            z: conditioning [R, D]; with guidance [R, 2 D], with and without the class.
            guidance: scale of classifier-free guidance.

        Returns:
            [R, d].
        """
        if guidance is None:
            return torch.addmm(self.bias, z, self.weight)
        cond, uncond = (self.first(part) for part in z.chunk(2, -1))
        return uncond + guidance * (cond - uncond)
