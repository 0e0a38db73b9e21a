"""diffusers' schedulers: which ones have Gaussian steps, and the coefficients of those steps, found by probing `step`."""

import copy
from typing import Any

import torch
from torch import Tensor

ANCESTRAL, IMPLICIT = ("DDPMParallelScheduler", "DDPMScheduler"), ("DDIMParallelScheduler", "DDIMScheduler")
FLOW, SOLVER = ("FlowMatchEulerDiscreteScheduler",), ("DPMSolverMultistepScheduler",)
_VARIANCES = ("fixed_small", "fixed_small_log", "fixed_large")


def check_scheduler(scheduler: Any) -> None:
    """Check that a scheduler's steps are Gaussians that are affine in state and output, with a standard deviation of their own.

    Args:
        scheduler: a diffusers scheduler.

    Raises:
        ValueError: naming the setting that prevents it.
    """
    name, config = class_name(scheduler), getattr(scheduler, "config", None)
    if not is_one_of(scheduler, ANCESTRAL + IMPLICIT + FLOW + SOLVER):
        raise ValueError(
            f"{name} has no known transition distribution: take {ANCESTRAL[0]}, {IMPLICIT[0]}, {FLOW[0]} or {SOLVER[0]} of order 1, "
            "or judge by aligned with any sampler"
        )
    for option in ("clip_sample", "thresholding"):
        if getattr(config, option, False):
            raise ValueError(f"{name} has {option}=True, so its steps are not affine in the network's output: set {option}=False")
    kind = getattr(config, "variance_type", "fixed_small") if is_one_of(scheduler, ANCESTRAL) else "fixed_small"
    if kind == "fixed_large_log":
        raise ValueError(f"{name} has variance_type fixed_large_log, whose log is taken for a variance: set variance_type='fixed_large'")
    if kind not in _VARIANCES:
        raise ValueError(
            f"{name} has variance_type {kind}, which differs from model to model, but target and draft must share their noise: "
            f"set one of {', '.join(_VARIANCES)}"
        )
    order = getattr(config, "solver_order", 1)
    if is_one_of(scheduler, SOLVER) and order != 1:
        raise ValueError(
            f"{name} has solver_order {order}: a step depends on earlier outputs and has no transition distribution: "
            "set solver_order=1 and algorithm_type='sde-dpmsolver++', or judge by aligned"
        )
    if getattr(config, "use_dynamic_shifting", False):
        raise ValueError(f"{name} has use_dynamic_shifting=True, which needs a picture's size: set it to False and give shift")


def class_name(scheduler: Any) -> str:
    """Name an object's class, for messages.

    Args:
        scheduler: any object.

    Returns:
        The name without its module.
    """
    return type(scheduler).__name__


def is_one_of(scheduler: Any, names: tuple[str, ...]) -> bool:
    """Compare class names, so that diffusers is not imported to refuse objects of other libraries.

    Args:
        scheduler: any object.
        names: class names; those of base classes count.

    Returns:
        True if the class has one of the names.
    """
    return any(kind.__name__ in names for kind in type(scheduler).__mro__)


def check_numbers(steps: int, sigma_out: float, temperature: float, most: int) -> None:
    """Check the numbers a schedule is made with.

    Args:
        steps: number of steps.
        sigma_out: standard deviation added to the last step.
        temperature: factor on the scheduler's noise.
        most: steps the scheduler was made for.

    Raises:
        ValueError: naming the number that is out of range.
    """
    if not 1 <= steps <= most:
        raise ValueError(f"steps is {steps}, but the scheduler was made for 1 to {most}: give a number in that range")
    if not sigma_out >= 0:
        raise ValueError(f"sigma_out is {sigma_out}, but it is a standard deviation: give 0 or more")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, but it multiplies the noise: give a positive number, or eta=0 for no noise")


def prepared(scheduler: Any, steps: int) -> Any:
    """Copy a scheduler and set its steps. The copy computes in float64 where it computes in its inputs' precision.

    Args:
        scheduler: a diffusers scheduler.
        steps: number of steps T.

    Returns:
        The copy.
    """
    ready = copy.deepcopy(scheduler)
    ready.set_timesteps(steps)
    if is_one_of(scheduler, ANCESTRAL + IMPLICIT):
        for table in ("alphas_cumprod", "final_alpha_cumprod", "one"):
            if hasattr(ready, table):
                setattr(ready, table, getattr(ready, table).double())
    if hasattr(ready, "set_begin_index"):
        ready.set_begin_index(0)
    return ready


def probed(scheduler: Any, eta: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the coefficients of every step, by applying `scheduler.step` to a unit state, a unit output and noise alone.

    Args:
        scheduler: what `prepared` returned.
        eta: DDIM's; other schedulers do not read it.

    Returns:
        Timesteps, keep, gain and std, each [T], float64 but for the timesteps.

    Raises:
        ValueError: when a coefficient is not finite.
    """
    state, out = torch.tensor([[1.0], [0.0], [0.0]]).double(), torch.tensor([[0.0], [1.0], [0.0]]).double()
    extra = {"eta": eta} if is_one_of(scheduler, IMPLICIT) else {}
    rows = []
    for t in scheduler.timesteps:
        keys = torch.Generator().manual_seed(0)
        found = scheduler.step(out, t, state, generator=keys, return_dict=False, **extra)[0].double()[:, 0]
        rows.append(found)
    noise = _noise_of(scheduler)
    keep, gain, std = torch.stack(rows, 1)
    std = std / noise[2]
    keep, gain, timesteps = keep - std * noise[0], gain - std * noise[1], scheduler.timesteps.cpu()
    good = keep.isfinite() & gain.isfinite() & std.isfinite()
    if not good.all():
        t = timesteps[int((~good).long().argmax())].item()
        raise ValueError(
            f"{class_name(scheduler)} divides by zero at timestep {t:g}: set prediction_type='v_prediction', or a last beta below 1"
        )
    return timesteps, keep, gain, std


def x0_tables(scheduler: Any) -> tuple[Tensor | None, Tensor | None]:
    """Read the clean state that a network predicts at every step, x0 = c state + e output.

    Args:
        scheduler: what `prepared` returned.

    Returns:
        c and e, each [T] float64; None for schedulers that do not tell, or where a prediction does not depend on the output.
    """
    if is_one_of(scheduler, FLOW):
        level = scheduler.sigmas.double().cpu()[:-1]
        state, output = torch.ones_like(level), -level
    elif is_one_of(scheduler, ANCESTRAL + IMPLICIT):
        unit, rows = torch.tensor([[1.0, 0.0]]).double(), []
        for t in scheduler.timesteps:
            keys = torch.Generator().manual_seed(0)
            rows.append(scheduler.step(1 - unit, t, unit, generator=keys, return_dict=False)[1].double()[0])
        state, output = torch.stack(rows, 1)
    else:
        return None, None
    good = state.isfinite().all() and output.isfinite().all() and bool((output != 0).all())
    return (state, output) if good else (None, None)


def _noise_of(scheduler: Any) -> Tensor:
    """[3] the noise a scheduler draws with a generator of seed 0, in the outputs' precision, or in single where it computes in that."""
    single = is_one_of(scheduler, FLOW + SOLVER)
    return torch.randn(3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float32 if single else torch.float64)[:, 0].double()
