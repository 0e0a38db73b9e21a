"""Tables for drafting the steps of a denoising chain in closed form.

A step x' = keep x + gain out + std Z is written with the head's prediction of the clean token, x0 = c x + e out, as x' = a x + b x0 + std Z
with b = gain / e and a = keep - c b. While the prediction moves by a linear response V = R Z to the noise of each step, K steps in a row
are one linear map of the state, the prediction, and their Z and V.

T steps, K drafted states, d numbers of a state.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.distributions.noise_schedule import NoiseSchedule


@dataclass(frozen=True)
class WindowTables:
    """Tables of windows of K drafted states, for every step they may start at, float64.

    Args:
        draft: [T, 2 K, 2 K + 2] maps (state, prediction, Z and V of K steps) to the drafted states, then to the predictions they were
            drafted with.
        columns: [T, K, 4] of every step: b / std, which turns a difference of predictions into one of means in standard deviations (0
            behind the last step); c; e; std. A last step without noise has b and 1 in place of b / std and std.
    """

    draft: Tensor
    columns: Tensor


@dataclass(frozen=True)
class StepTables:
    """A chain's steps in terms of its predictions of the clean token.

    Args:
        noise_schedule: the chain's transitions; every step but the last must have noise.
        response: [T, d, d] change of the prediction with a step's noise, rows of the noise first; None for a prediction that is held
            unchanged.

    Raises:
        ValueError: when a step before the last has no noise, by which it could be judged.
    """

    noise_schedule: NoiseSchedule
    response: Tensor | None = None

    def __post_init__(self):
        self.noise_schedule.check_inner("speculation inside a chain")

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return self.noise_schedule.steps

    @cached_property
    def ends_bare(self) -> bool:
        """True if the last step has no noise. It is then the head's own mean, which no draft is judged against."""
        return self.noise_schedule.sigma_out <= 0

    @cached_property
    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a and b of the steps, c and e of the predictions, [T] float64."""
        schedule = self.noise_schedule
        c, e = schedule.prediction
        b = schedule.gain / e
        return schedule.keep - c * b, b, c, e

    def window(self, length: int) -> WindowTables:
        """Make the tables of windows.

        Args:
            length: K, at least 1.

        Returns:
            The tables, on the schedule's device. States behind the last step repeat it.
        """
        (a, b, c, e), std = self.coefficients, self.noise_schedule.std
        at = torch.arange(self.steps, device=std.device)[:, None] + torch.arange(length, device=std.device)
        inside, at = at < self.steps, at.clamp(max=self.steps - 1)
        unit = torch.eye(2 * length + 2, dtype=std.dtype, device=std.device)
        state, held = unit[0].expand(self.steps, -1), unit[1].expand(self.steps, -1)
        states, predictions = [], []
        for k in range(length):
            step, real = at[:, k, None], inside[:, k, None]
            predictions.append(held)
            state = torch.where(real, a[step] * state + b[step] * held + std[step] * unit[2 + k], state)
            held = torch.where(real, held + unit[2 + length + k], held)
            states.append(state)
        scale = torch.where(std > 0, std, 1.0)
        columns = torch.stack([torch.where(inside, b[at] / scale[at], 0), c[at], e[at], scale[at]], -1)
        return WindowTables(torch.stack([*states, *predictions], 1), columns)
