"""The clean picture that a diffusion network predicts at each step, x0 = state x + output out, and the effect of clipping on the step's
mean.
Tables are obtained as in `core.distributions.noise_schedule`: from diffusers' own schedulers, number by number.

T steps, D numbers of a state.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class X0Prediction:
    """Tables in float64. Clipping adds weight (clamp(x0, +-most) - x0) to a mean; the weights are 0 without clipping."""

    state: Tensor  # [T]
    output: Tensor  # [T]
    weight: Tensor  # [T]
    most: float

    @staticmethod
    def of(scheduler: Any, plain: Any, steps: int, extra: dict[str, float]) -> "X0Prediction | None":
        """Return the tables of `scheduler` for a chain of `steps` steps; None for schedulers that return no x0 or are stateful.

        `plain` is the same scheduler without clipping, or itself. Both are set to `steps`. `extra` is passed to their `step`.
        """
        if hasattr(plain, "set_begin_index"):
            return None
        for one in (scheduler, plain):
            one.set_timesteps(steps)
        most, rows = getattr(scheduler.config, "clip_sample_range", 1.0), []
        for t in plain.timesteps:
            (_, state), (_, output) = _step(plain, t, 1.0, 0.0, extra), _step(plain, t, 0.0, 1.0, extra)
            weight = 0.0
            if plain is not scheduler:
                far = 4 * most / (state**2 + output**2)
                (free, x0), (cut, clipped) = (_step(one, t, far * state, far * output, extra) for one in (plain, scheduler))
                weight = (cut - free) / (clipped - x0)
            rows.append((state, output, weight))
        state, output, weight = torch.tensor(rows, dtype=torch.float64).unbind(1)
        return X0Prediction(state, output, weight, most)

    def picture(self, x: Tensor, step: Tensor, out: Tensor) -> Tensor:
        """Return x0 [..., D] of states `x` [..., D] at `step` [...] with outputs `out` [..., D], not clipped."""
        return self.state[step][..., None] * x + self.output[step][..., None] * out

    def said(self, x: Tensor, step: Tensor, x0: Tensor) -> Tensor:
        """Return the outputs that predict `x0`."""
        return (x0 - self.state[step][..., None] * x) / self.output[step][..., None]

    def shift(self, x: Tensor, step: Tensor, out: Tensor) -> Tensor:
        """Return the change of the means by clipping, [..., D]."""
        x0 = self.picture(x, step, out)
        return self.weight[step][..., None] * (x0.clamp(-self.most, self.most) - x0)

    def to(self, device: torch.device | str) -> "X0Prediction":
        """Return this object with its tensors on `device`."""
        return X0Prediction(self.state.to(device), self.output.to(device), self.weight.to(device), self.most)


def _step(scheduler: Any, t: Tensor, x: float, out: float, extra: dict[str, float]) -> tuple[float, float]:
    """Return the next state and the predicted x0 for a state and an output of one number each, with fixed noise."""
    keys = torch.Generator().manual_seed(0)
    x_, out_ = (torch.tensor([[number]], dtype=torch.float64) for number in (x, out))
    state, picture = scheduler.step(out_, t, x_, generator=keys, return_dict=False, **extra)
    return state.item(), picture.item()
