"""The transitions of a diffusion sampler as tables.

Every supported step is x' = keep x + gain out + std noise, with coefficients that depend on the step alone. They are found by probing
diffusers' own scheduler objects with unit states, unit outputs and known noise, so no scheduler is reimplemented. The one exception is the
Euler-Maruyama step of flow matching, which diffusers does not have: it is computed from the noise levels of its flow scheduler. A sampler's
last step has no noise, so tokens of two models would never be equal: `sigma_out` is the noise added to that step, and a part of the target.

T steps, d channels of a token.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.scheduler_probe import (
    FLOW,
    IMPLICIT,
    check_numbers,
    check_scheduler,
    class_name,
    is_one_of,
    prepared,
    probed,
    x0_tables,
)

_NO_NOISE = 1e-9
"""A standard deviation at or below this is none: diffusers' smallest variance is 1e-20."""


@dataclass(frozen=True)
class NoiseSchedule:
    """Gaussian transitions of T steps: the state after step i is drawn from N(keep_i x + gain_i out, std_i^2 I).

    Tables are float64. Chains of two models can be judged by `path`, `block` and `stepwise` if they share a schedule whose every std is
    positive; where an inner std is 0 (`stochastic` is False) only `aligned` is possible, which needs the last one only.
    """

    timesteps: Tensor  # [T] the scheduler's timesteps, an input of the network
    keep: Tensor  # [T] coefficient of the state
    gain: Tensor  # [T] coefficient of the network's output, of the scheduler's prediction type
    std: Tensor  # [T] standard deviation of the noise
    x0_state: Tensor | None = None  # [T] coefficient of the state in the network's prediction of the clean token, where it is known
    x0_output: Tensor | None = None  # [T] coefficient of the output in it

    @staticmethod
    def of(scheduler: Any, steps: int, sigma_out: float, *, eta: float = 1.0, temperature: float = 1.0) -> "NoiseSchedule":
        """Read the transitions of a diffusers scheduler, which is not changed.

        Supported: DDPM and DDIM (parallel or not), FlowMatchEulerDiscrete, DPMSolverMultistep of order 1. A flow's noise levels end at
        1 / num_train_timesteps, which is the std of the last step but one: with 1000 training steps models rarely agree there; with `steps`
        training steps the levels are even down to 1 / `steps`.

        Args:
            scheduler: a diffusers scheduler.
            steps: number of steps T.
            sigma_out: noise added to the last step, which most schedulers leave without any. 0 is for whole images, whose last state is not
                judged.
            eta: DDIM's; 1 is ancestral, 0 deterministic.
            temperature: factor on the scheduler's own noise, not on `sigma_out`.

        Returns:
            The schedule, on the CPU.

        Raises:
            ValueError: for samplers whose steps are not such Gaussians, or numbers out of range.
        """
        check_scheduler(scheduler)
        if eta != 1.0 and not is_one_of(scheduler, IMPLICIT):
            raise ValueError(f"eta is {eta}, but {class_name(scheduler)} has none: leave it out, or take DDIMParallelScheduler")
        check_numbers(steps, sigma_out, temperature, scheduler.config.num_train_timesteps)
        noise_schedule = NoiseSchedule(*probed(prepared(scheduler, steps), eta), *x0_tables(prepared(scheduler, steps)))
        return noise_schedule._with_noise(sigma_out, temperature)

    @staticmethod
    def euler_maruyama(scheduler: Any, steps: int, sigma_out: float, *, churn: float = 1.0, temperature: float = 1.0) -> "NoiseSchedule":
        """Make stochastic flow matching (NextStep-1's head; the SDE: Song et al. 2021) at the noise levels of `scheduler`.

        With x = (1 - s) data + s noise and out = noise - data, the score is -(x + (1 - s) out) / s. Steps of size h in s that move by
        h (churn s score - out) and add noise of variance 2 churn s h keep the flow's marginals for any `churn`, as h goes to 0. The last
        step is the flow's own, with no noise but `sigma_out`.

        Args:
            scheduler: a FlowMatchEulerDiscreteScheduler.
            steps: number of steps T.
            sigma_out: noise added to the last step.
            churn: amount of noise in the other steps, above 0.
            temperature: factor on that noise, not on `sigma_out`.

        Returns:
            The schedule, on the CPU.

        Raises:
            ValueError: for another scheduler, or numbers out of range.
        """
        if not is_one_of(scheduler, FLOW):
            raise ValueError(
                f"{class_name(scheduler)} has no flow matching noise levels: take FlowMatchEulerDiscreteScheduler, or NoiseSchedule.of"
            )
        check_numbers(steps, sigma_out, temperature, scheduler.config.num_train_timesteps)
        if not churn > 0:
            raise ValueError(f"churn is {churn}, but a step needs noise: give a positive number, or NoiseSchedule.of for the flow as it is")
        ready = prepared(scheduler, steps)
        level = ready.sigmas.double().cpu()
        s, h = level[:-1], level[:-1] - level[1:]
        c = torch.full_like(s, churn)
        c[-1] = 0
        noise_schedule = NoiseSchedule(
            ready.timesteps.cpu(), 1 - c * h, -h * (1 + c * (1 - s)), (2 * c * s * h).sqrt(), torch.ones_like(s), -s
        )
        return noise_schedule._with_noise(sigma_out, temperature)

    def _with_noise(self, sigma_out: float, temperature: float) -> "NoiseSchedule":
        std = torch.where(self.std > _NO_NOISE, self.std, 0) * temperature
        std[-1] = (std[-1] ** 2 + sigma_out**2).sqrt()
        return replace(self, std=std)

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return len(self.std)

    @cached_property
    def sigma_out(self) -> float:
        """The noise of the last step."""
        return self.std[-1].item()

    @property
    def stochastic(self) -> bool:
        """True if every step but the last has noise of its own."""
        return bool((self.std[:-1] > 0).all())

    @property
    def prediction(self) -> tuple[Tensor, Tensor]:
        """Coefficients of state and output [T] in a prediction that changes little from step to step: the clean token, or the output
        itself where the scheduler does not tell.
        """
        if self.x0_state is None or self.x0_output is None:
            return torch.zeros_like(self.std), torch.ones_like(self.std)
        return self.x0_state, self.x0_output

    @property
    def weight(self) -> Tensor:
        """(gain / std)^2 [T], the weight of a squared difference of two outputs at each step. Infinite where there is no noise."""
        return (self.gain / self.std) ** 2

    def mean(self, x: Tensor, step: Tensor | int, out: Tensor) -> Tensor:
        """Compute the mean of the state after a step, in float64.

        Args:
            x: states [..., d].
            step: number of the step [...], 0 .. T - 1.
            out: outputs of the network [..., d].

        Returns:
            Means [..., d].
        """
        return self.keep[step][..., None] * x + self.gain[step][..., None] * out

    def gap(self, out_p: Tensor, out_q: Tensor) -> Tensor:
        """Compute K = sum_t |mean_p - mean_q|^2 / std_t^2, twice the divergence of the paths. Differentiable, for distillation.

        A token judged by its path is accepted with about 2 Phi(-sqrt(K) / 2).

        Args:
            out_p: the target's outputs [..., T, d].
            out_q: the draft's outputs [..., T, d], at the same states.

        Returns:
            K [...], float64.
        """
        self.check_path("the path gap")
        return (self.weight * (out_p - out_q).double().square().sum(-1)).sum(-1)

    def to(self, device: torch.device | str) -> "NoiseSchedule":
        """Move the tables to a device.

        Args:
            device: a torch device.

        Returns:
            A new schedule.
        """
        tables = (self.timesteps, self.keep, self.gain, self.std, self.x0_state, self.x0_output)
        return NoiseSchedule(*(None if table is None else table.to(device) for table in tables))  # pyright: ignore[reportArgumentType]

    def check_path(self, rule: str) -> None:
        """Check that every state of a chain has a density, as rules that judge states need.

        Args:
            rule: name of the rule, for the message.

        Raises:
            ValueError: when a step has no noise.
        """
        self.check_inner(rule)
        self.check_token(rule)

    def check_inner(self, rule: str) -> None:
        """Check that every step but the last has noise.

        Args:
            rule: name of the rule, for the message.

        Raises:
            ValueError: when one has none.
        """
        if not self.stochastic:
            bare = int((self.std[:-1] <= 0).sum())
            raise ValueError(
                f"{rule} needs noise in every step, but {bare} of {self.steps} have none (a deterministic sampler): "
                "take eta=1 or stochastic_sampling=True, or judge by aligned"
            )

    def check_token(self, rule: str) -> None:
        """Check that the last step has noise. Without it tokens of two models are never equal, and none is accepted.

        Args:
            rule: name of the rule, for the message.

        Raises:
            ValueError: when it has none.
        """
        if self.sigma_out <= 0:
            raise ValueError(
                f"{rule} needs noise in the last step, but sigma_out is {self.sigma_out:g}: give sigma_out > 0, such as 0.05, "
                "which then is a part of the target's distribution"
            )

    def check_shared(self, other: "NoiseSchedule", rule: str) -> None:
        """Check that a draft's schedule has the steps and noise of this one; prediction types may differ.

        Args:
            other: the draft's schedule.
            rule: name of the rule, for the message.

        Raises:
            ValueError: naming the step that differs.
        """
        if self.steps != other.steps:
            raise ValueError(
                f"{rule} needs one schedule for target and draft, but they take {self.steps} and {other.steps} steps: "
                "give both the same number of steps, or judge by aligned"
            )
        unequal = (self.std - other.std.to(self.std.device)).abs() > 1e-6 * self.std
        if unequal.any():
            step = int(unequal.long().argmax())
            raise ValueError(
                f"{rule} needs one schedule for target and draft, but at step {step} of {self.steps} their noise is "
                f"{self.std[step].item():.4g} and {other.std[step].item():.4g}: give both the same scheduler, sigma_out and temperature"
            )
