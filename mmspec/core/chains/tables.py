"""Tables for drafting the steps of a denoising chain in closed form.

A step x' = keep x + gain out + std Z is written with the head's prediction of the clean token, x0 = c x + e out, as x' = a x + b x0 + std Z
with b = gain / e and a = keep - c b. While the prediction moves by a linear response V = R Z to the noise of each step, K steps in a row
are one linear map of the state, the prediction, and their Z and V. So is the part of the gap between the means of draft and target that
does not depend on the head's output.

T steps, K drafted states, d numbers of a state.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.distributions.noise_schedule import NoiseSchedule


@dataclass(frozen=True)
class WindowTables:
    """Tables of windows of K drafted states, for every step that a window may start at.

    The maps have 2 K + 1 rows: the state and the K states drafted behind it, then of every drafted step w (c x - p), with w = b / std (0
    behind the last step of the chain), x the state it starts from and p the prediction it was drafted with.

    Args:
        held: [T, 2 K + 1, 2] maps of state and prediction.
        noise: [T, 2 K + 1, K] maps of Z.
        response: [T, 2 K + 1, K] maps of V.
        weight: [T, K] w e of every step: w (c x - p) + w e out is the mean of the target minus that of the draft, in standard deviations.
        ends: bool [T, K], at the last step of the window or of the chain.
    """

    held: Tensor
    noise: Tensor
    response: Tensor
    weight: Tensor
    ends: Tensor

    @property
    def length(self) -> int:
        """Number of drafted states K."""
        return self.weight.shape[1]

    @cached_property
    def by_step(self) -> Tensor:
        """`held` and `weight` side by side [T, 5 K + 2], for one look-up a round."""
        return torch.cat([self.held.flatten(1), self.weight], 1)

    @cached_property
    def by_noise(self) -> Tensor:
        """`noise` and `response` side by side [T, 2 K + 1, 2 K]."""
        return torch.cat([self.noise, self.response], -1)

    def by_token(self, noise: Tensor, response: Tensor | None, level: Tensor) -> Tensor:
        """Evaluate all that does not depend on states and outputs, for every step of R tokens.

        Args:
            noise: standard normal Z of every step [R, T, d].
            response: V of every step [R, T, d]; None for 0.
            level: log of every step's uniform number [R, T].

        Returns:
            [R * T, (2 K + 1) d + K (d + 1) + K]: the part of the maps that is due to noise; Z and level of the steps of the window; their
            level once more, infinite where a window ends.
        """
        steps = [noise, level[..., None]] if response is None else [noise, level[..., None], response]
        found = _windows(torch.cat(steps, -1), self.length)  # [R, T, K, d + 1], or 2 d + 1
        numbers, drawn = found[..., : noise.shape[-1] + 1], found[..., : noise.shape[-1]]
        if response is None:
            moved = torch.matmul(self.noise, drawn)
        else:
            moves = torch.cat([drawn, found[..., noise.shape[-1] + 1 :]], 2)
            moved = torch.matmul(self.by_noise, moves)  # [R, T, 2 K + 1, d]
        limit = numbers[..., -1].masked_fill(self.ends, float("inf"))
        return torch.cat([moved.flatten(2), numbers.flatten(2), limit], -1).flatten(0, 1)


def _windows(table: Tensor, length: int) -> Tensor:
    """Return `length` rows of [R, T, d] from every row on: [R, T, K, d], 0 behind the last."""
    return torch.nn.functional.pad(table, (0, 0, 0, length - 1)).unfold(1, length, 1).transpose(2, 3)


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
    def scale(self) -> Tensor:
        """Units [T] in which the gap between the means of draft and target is measured: std, and 1 where there is no noise."""
        return torch.where(self.noise_schedule.std > 0, self.noise_schedule.std, 1.0)

    @cached_property
    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a and b of the steps, c and e of the predictions, [T] float64."""
        schedule = self.noise_schedule
        c, e = schedule.prediction
        b = schedule.gain / e
        return schedule.keep - c * b, b, c, e

    def ends(self, width: int, dtype: torch.dtype) -> Tensor:
        """Make the maps by which rounds end.

        For the last committed step of a round, with x its parent state, out the head's output there, y the drafted state, g the gap of the
        means in standard deviations, Z the step's noise and r the part of g by which a refused step is reflected (0 for a kept one), the
        next state is y - 2 `scale` r, and the next prediction c x + e out + (Z - g - 2 r) R.

        Args:
            width: numbers of a state, d.
            dtype: of the result.

        Returns:
            Maps of (x, out, y, g, Z, r) to (state, prediction) for every step [T, 6 d, 2 d].
        """
        _, _, c, e = self.coefficients
        unit = torch.eye(width, dtype=torch.float64, device=c.device)
        none = torch.zeros(self.steps, width, width, dtype=torch.float64, device=c.device)
        response = none if self.response is None else self.response.double()
        state = [none, none, unit + none, none, none, -2 * self.scale[:, None, None] * unit]
        held = [c[:, None, None] * unit, e[:, None, None] * unit, none, -response, response, -2 * response]
        return torch.cat([torch.cat(state, 1), torch.cat(held, 1)], 2).to(dtype)

    def window(self, length: int, dtype: torch.dtype = torch.float64) -> WindowTables:
        """Make the tables of windows.

        Args:
            length: K, at least 1.
            dtype: of the tables.

        Returns:
            The tables, on the schedule's device. States behind the last step repeat it.
        """
        (a, b, c, e), std = self.coefficients, self.noise_schedule.std
        at = torch.arange(self.steps, device=std.device)[:, None] + torch.arange(length, device=std.device)
        inside, ends = at < self.steps, at >= self.steps - 1
        ends[:, -1] = True
        at = at.clamp(max=self.steps - 1)
        unit = torch.eye(2 * length + 2, dtype=std.dtype, device=std.device)
        state, held = unit[0].expand(self.steps, -1), unit[1].expand(self.steps, -1)
        weight = torch.where(inside, b[at] / self.scale[at], 0)
        states, gaps = [state], []
        for k in range(length):
            step, real = at[:, k, None], inside[:, k, None]
            gaps.append(weight[:, k, None] * (c[step] * state - held))
            state = torch.where(real, a[step] * state + b[step] * held + std[step] * unit[2 + k], state)
            held = torch.where(real, held + unit[2 + length + k], held)
            states.append(state)
        first, noise, response = torch.stack([*states, *gaps], 1).to(dtype).split([2, length, length], -1)
        return WindowTables(first, noise, response, (weight * e[at]).to(dtype), ends)
