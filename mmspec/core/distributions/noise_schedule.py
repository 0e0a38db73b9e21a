"""The transitions of a diffusion sampler as plain tables: what one step of a scheduler does to a state and to what the network says of it.

Every step of a sampler served here is x' = keep x + gain out + std noise, with numbers that hang on the step alone. They are found by
asking diffusers' own scheduler objects: unit states, unit outputs and known noise are put through `step`, and no scheduler is written
anew. The one exception is the stochastic step of flow matching in the manner of Euler and Maruyama, which diffusers does not have: it is
made from the noise levels of its flow scheduler. A sampler's last step has no noise, so no two models could ever agree on a token:
`sigma_out` is the noise given to that step, and so a part of what the target is.

T steps, d channels of a token.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_NO_NOISE = 1e-9
"""A standard deviation at or below this is none: diffusers' smallest variance is 1e-20."""
_ANCESTRAL, _IMPLICIT = ("DDPMParallelScheduler", "DDPMScheduler"), ("DDIMParallelScheduler", "DDIMScheduler")
_FLOW, _SOLVER = ("FlowMatchEulerDiscreteScheduler",), ("DPMSolverMultistepScheduler",)
_VARIANCES = ("fixed_small", "fixed_small_log", "fixed_large")


@dataclass(frozen=True)
class NoiseSchedule:
    """Gaussian transitions of T steps: the state after step i is drawn from N(keep_i x + gain_i out, std_i^2 I).

    Tables are float64. Two models' chains can be judged against each other by `path`, `block` and `stepwise` where they share a kernel
    whose every std is positive; where a std between is 0 (`stochastic` is False) only `aligned` is left, which asks for the last one.
    """

    timesteps: Tensor  # [T] what the network is told at each step, as the scheduler says it
    keep: Tensor  # [T]
    gain: Tensor  # [T] of the network's output, of whatever kind the scheduler takes it to be
    std: Tensor  # [T]

    @staticmethod
    def of(scheduler: Any, steps: int, sigma_out: float, *, eta: float = 1.0, temperature: float = 1.0) -> "NoiseSchedule":
        """The chain of `steps` steps that `scheduler` runs, as its `step` does it; `scheduler` itself is left as it is.

        `sigma_out` is added to the noise of the last step, which most schedulers leave without any: 0 is for whole images, whose last state
        nobody has to agree on. `eta` is DDIM's: 1 is ancestral, 0 deterministic. `temperature` multiplies the scheduler's own noise, not
        `sigma_out`. Served: DDPM and DDIM (parallel or not), FlowMatchEulerDiscrete, DPMSolverMultistep of order 1. ValueError for
        samplers whose steps are no such Gaussians. A flow's noise levels end at 1 / num_train_timesteps, which is the std of the last
        step but one: made for 1000, models hardly ever agree there; made for `steps`, levels are even down to 1 / `steps`.
        """
        refuse(scheduler)
        if eta != 1.0 and not _is(scheduler, _IMPLICIT):
            raise ValueError(f"eta is {eta}, but {_name(scheduler)} has none: leave it out, or take DDIMParallelScheduler")
        _check(steps, sigma_out, temperature, scheduler.config.num_train_timesteps)
        noise_schedule = _probe(_ready(scheduler, steps), eta)
        return noise_schedule._with_noise(sigma_out, temperature)

    @staticmethod
    def euler_maruyama(scheduler: Any, steps: int, sigma_out: float, *, churn: float = 1.0, temperature: float = 1.0) -> "NoiseSchedule":
        """Flow matching made stochastic (NextStep-1's head; spec of the SDE: Song et al. 2021) at the noise levels of `scheduler`.

        Where x = (1 - s) data + s noise and out = noise - data, the score is -(x + (1 - s) out) / s. Steps of size h in s that go by
        h (churn s score - out) plus noise of variance 2 churn s h keep the flow's marginals for any `churn`, as h falls. The last step is
        the flow's own, with no noise but `sigma_out`. ValueError unless `scheduler` is a FlowMatchEulerDiscreteScheduler.
        """
        if not _is(scheduler, _FLOW):
            raise ValueError(f"{_name(scheduler)} has no flow matching noise levels: take FlowMatchEulerDiscreteScheduler, or Kernel.of")
        _check(steps, sigma_out, temperature, scheduler.config.num_train_timesteps)
        if not churn > 0:
            raise ValueError(f"churn is {churn}, but a step needs noise: give a positive number, or Kernel.of for the flow as it is")
        ready = _ready(scheduler, steps)
        level = ready.sigmas.double().cpu()
        s, h = level[:-1], level[:-1] - level[1:]
        c = torch.full_like(s, churn)
        c[-1] = 0
        noise_schedule = NoiseSchedule(ready.timesteps.cpu(), 1 - c * h, -h * (1 + c * (1 - s)), (2 * c * s * h).sqrt())
        return noise_schedule._with_noise(sigma_out, temperature)

    def _with_noise(self, sigma_out: float, temperature: float) -> "NoiseSchedule":
        std = torch.where(self.std > _NO_NOISE, self.std, 0) * temperature
        std[-1] = (std[-1] ** 2 + sigma_out**2).sqrt()
        return replace(self, std=std)

    @property
    def steps(self) -> int:
        return len(self.std)

    @property
    def sigma_out(self) -> float:
        """The noise of the last step."""
        return self.std[-1].item()

    @property
    def stochastic(self) -> bool:
        """Has every step but the last noise of its own?"""
        return bool((self.std[:-1] > 0).all())

    @property
    def weight(self) -> Tensor:
        """(gain / std)^2 [T]: what a squared difference of two outputs counts at each step. Infinite where there is no noise."""
        return (self.gain / self.std) ** 2

    def mean(self, x: Tensor, step: Tensor | int, out: Tensor) -> Tensor:
        """The mean of the state after step `step` [...] (0 .. T - 1) from states `x` [..., d] and outputs `out` [..., d]; in float64."""
        return self.keep[step][..., None] * x + self.gain[step][..., None] * out

    def gap(self, out_p: Tensor, out_q: Tensor) -> Tensor:
        """K = sum_t |mean_p - mean_q|^2 / std_t^2 of outputs [..., T, d] at the same states, [...]: twice the divergence of the paths.

        A token judged by its path is accepted with about 2 Phi(-sqrt(K) / 2). Can be differentiated: it is what a draft is distilled by.
        """
        self.check_path("the path gap")
        return (self.weight * (out_p - out_q).double().square().sum(-1)).sum(-1)

    def to(self, device: torch.device | str) -> "NoiseSchedule":
        return NoiseSchedule(*(table.to(device) for table in (self.timesteps, self.keep, self.gain, self.std)))

    def check_path(self, rule: str) -> None:
        """Raise ValueError unless every state of a chain has a density: what `rule` needs of a kernel that judges states."""
        if not self.stochastic:
            bare = int((self.std[:-1] <= 0).sum())
            raise ValueError(
                f"{rule} needs noise in every step, but {bare} of {self.steps} have none (a deterministic sampler): "
                "take eta=1 or stochastic_sampling=True, or judge by aligned"
            )
        self.check_token(rule)

    def check_token(self, rule: str) -> None:
        """Raise ValueError unless the last step has noise: without it tokens of two models are never equal, and none is accepted."""
        if self.sigma_out <= 0:
            raise ValueError(
                f"{rule} needs noise in the last step, but sigma_out is {self.sigma_out:g}: give sigma_out > 0, such as 0.05, "
                "which then is a part of the target's distribution"
            )

    def check_shared(self, other: "NoiseSchedule", rule: str) -> None:
        """Raise ValueError unless the draft's kernel `other` has this one's steps and noise; outputs may be of another kind."""
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


def refuse(scheduler: Any) -> None:
    """Raise ValueError, in one line, for schedulers whose steps are not Gaussians affine in state and output with a std of their own."""
    name, config = _name(scheduler), getattr(scheduler, "config", None)
    if not _is(scheduler, _ANCESTRAL + _IMPLICIT + _FLOW + _SOLVER):
        raise ValueError(
            f"{name} has no known transition distribution: take {_ANCESTRAL[0]}, {_IMPLICIT[0]}, {_FLOW[0]} or {_SOLVER[0]} of order 1, "
            "or judge by aligned with any sampler"
        )
    for option in ("clip_sample", "thresholding"):
        if getattr(config, option, False):
            raise ValueError(f"{name} has {option}=True, so its steps are not affine in the network's output: set {option}=False")
    kind = getattr(config, "variance_type", "fixed_small") if _is(scheduler, _ANCESTRAL) else "fixed_small"
    if kind == "fixed_large_log":
        raise ValueError(f"{name} has variance_type fixed_large_log, whose log is taken for a variance: set variance_type='fixed_large'")
    if kind not in _VARIANCES:
        raise ValueError(
            f"{name} has variance_type {kind}, which differs from model to model, but target and draft must share their noise: "
            f"set one of {', '.join(_VARIANCES)}"
        )
    order = getattr(config, "solver_order", 1)
    if _is(scheduler, _SOLVER) and order != 1:
        raise ValueError(
            f"{name} has solver_order {order}: a step hangs on earlier outputs and has no transition distribution: "
            "set solver_order=1 and algorithm_type='sde-dpmsolver++', or judge by aligned"
        )
    if getattr(config, "use_dynamic_shifting", False):
        raise ValueError(f"{name} has use_dynamic_shifting=True, which needs a picture's size: set it to False and give shift")


def _name(scheduler: Any) -> str:
    return type(scheduler).__name__


def _is(scheduler: Any, names: tuple[str, ...]) -> bool:
    """By name, so that diffusers is not imported to refuse what is none of its own."""
    return any(kind.__name__ in names for kind in type(scheduler).__mro__)


def _check(steps: int, sigma_out: float, temperature: float, most: int) -> None:
    if not 1 <= steps <= most:
        raise ValueError(f"steps is {steps}, but the scheduler was made for 1 to {most}: give a number in that range")
    if not sigma_out >= 0:
        raise ValueError(f"sigma_out is {sigma_out}, but it is a standard deviation: give 0 or more")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, but it multiplies the noise: give a positive number, or eta=0 for no noise")


def _ready(scheduler: Any, steps: int) -> Any:
    """A copy of `scheduler`, set to `steps` steps, that computes in float64 where it computes in its inputs' precision."""
    ready = copy.deepcopy(scheduler)
    ready.set_timesteps(steps)
    if _is(scheduler, _ANCESTRAL + _IMPLICIT):
        for table in ("alphas_cumprod", "final_alpha_cumprod", "one"):
            if hasattr(ready, table):
                setattr(ready, table, getattr(ready, table).double())
    if hasattr(ready, "set_begin_index"):
        ready.set_begin_index(0)
    return ready


def _probe(scheduler: Any, eta: float) -> NoiseSchedule:
    """What `scheduler.step` makes of a unit state, a unit output and no more than noise, one timestep after the other."""
    state, out = torch.tensor([[1.0], [0.0], [0.0]]).double(), torch.tensor([[0.0], [1.0], [0.0]]).double()
    extra = {"eta": eta} if _is(scheduler, _IMPLICIT) else {}
    rows = []
    for t in scheduler.timesteps:
        keys = torch.Generator().manual_seed(0)
        found = scheduler.step(out, t, state, generator=keys, return_dict=False, **extra)[0].double()[:, 0]
        rows.append(found)
    noise = _noise_of(scheduler)
    keep, gain, std = torch.stack(rows, 1)
    std = std / noise[2]
    noise_schedule = NoiseSchedule(scheduler.timesteps.cpu(), keep - std * noise[0], gain - std * noise[1], std)
    good = noise_schedule.keep.isfinite() & noise_schedule.gain.isfinite() & noise_schedule.std.isfinite()
    if not good.all():
        t = noise_schedule.timesteps[int((~good).long().argmax())].item()
        raise ValueError(
            f"{_name(scheduler)} divides by zero at timestep {t:g}: set prediction_type='v_prediction', or a last beta below 1"
        )
    return noise_schedule


def _noise_of(scheduler: Any) -> Tensor:
    """[3] the noise a scheduler draws by a generator of seed 0: of the outputs' precision, or single where it computes in that."""
    single = _is(scheduler, _FLOW + _SOLVER)
    return torch.randn(3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float32 if single else torch.float64)[:, 0].double()
