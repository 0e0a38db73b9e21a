"""The stochastic sampler of NextStep-1's flow-matching head (arXiv 2508.10711), as transitions.

Time t runs from 0, noise, to 1, the token: x_t = t token + (1 - t) noise, and the head predicts v = token - noise. The score is then
(t v - x) / (1 - t), and the Euler-Maruyama step of the SDE with diffusion 2 (1 - t), of size h,

    x' = x + h (v + (1 - t) score) + sqrt(2 (1 - t) h) e = (1 - h) x + h (1 + t) v + sqrt(2 (1 - t) h) e.

The last step, of a size of its own, is x' = x + last_step v, without noise.
"""

from dataclasses import dataclass, replace

import torch

from mmspec.core.distributions.noise_schedule import NoiseSchedule


@dataclass(frozen=True)
class FlowSchedule:
    """Times of a flow-matching head's chain.

    Args:
        shift: above 1 for more steps near the noise; times are u / (shift - (shift - 1) u) for even u.
        last_step: size of the last step.

    Raises:
        ValueError: for numbers out of range.
    """

    shift: float = 1.0
    last_step: float = 0.04

    def __post_init__(self):
        if not self.shift > 0:
            raise ValueError(f"shift is {self.shift}: give a positive number, 1 for even times")
        if not 0 < self.last_step < 1:
            raise ValueError(f"last_step is {self.last_step}: give a number between 0 and 1")

    def noise_schedule(self, steps: int, sigma_out: float, temperature: float = 1.0) -> NoiseSchedule:
        """Compute the transitions.

        Args:
            steps: steps of the chain, the last one included, at least 2.
            sigma_out: noise of the last step; 0 is the published sampler.
            temperature: factor on the other steps' noise.

        Returns:
            The schedule, on the CPU. Its timesteps are the times t.

        Raises:
            ValueError: for numbers out of range.
        """
        if steps < 2:
            raise ValueError(f"steps is {steps}: a chain of this head has 2 steps or more")
        if not sigma_out >= 0 or not temperature > 0:
            raise ValueError(f"sigma_out is {sigma_out} and temperature {temperature}: give 0 or more, and a positive number")
        even = torch.linspace(0, 1 - self.last_step, steps, dtype=torch.float64)
        t = even / (self.shift - (self.shift - 1) * even)
        h, last = t.diff(), torch.tensor([self.last_step], dtype=torch.float64)
        keep = torch.cat([1 - h, torch.ones(1, dtype=torch.float64)])
        gain = torch.cat([h * (1 + t[:-1]), last])
        std = torch.cat([(2 * (1 - t[:-1]) * h).sqrt() * temperature, torch.full_like(last, sigma_out)])
        return replace(NoiseSchedule(t, keep, gain, std), x0_state=torch.ones_like(t), x0_output=1 - t)
