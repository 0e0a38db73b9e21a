"""Transitions as tables: what diffusers' own schedulers do, step by step, and what has no transition distribution."""

import copy
import inspect

import pytest
import torch
from diffusers import (
    DDIMParallelScheduler,
    DDIMScheduler,
    DDPMParallelScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
)

from mmspec.core.distributions import noise_schedule as kernel_module
from mmspec.core.distributions import scheduler_probe
from mmspec.core.distributions.noise_schedule import NoiseSchedule

OWN = {"num_train_timesteps": 1024, "beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction", "timestep_spacing": "trailing"}
CLEAR = {**OWN, "clip_sample": False}
STEPS = [8, 16, 32, 64]
CASES = {
    "ddpm": (DDPMParallelScheduler(**CLEAR), {}),
    "ddpm-plain": (DDPMScheduler(**CLEAR), {}),
    "ddpm-large": (DDPMParallelScheduler(**CLEAR, variance_type="fixed_large"), {}),
    "ddpm-small-log": (DDPMParallelScheduler(**CLEAR, variance_type="fixed_small_log"), {}),
    "ddpm-uneven": (DDPMScheduler(num_train_timesteps=1000, clip_sample=False, timestep_spacing="trailing"), {}),
    "ddpm-sample": (DDPMParallelScheduler(prediction_type="sample", clip_sample=False), {}),
    "ddim-0": (DDIMParallelScheduler(**CLEAR), {"eta": 0.0}),
    "ddim-half": (DDIMParallelScheduler(**CLEAR), {"eta": 0.5}),
    "ddim-1": (DDIMScheduler(**CLEAR), {"eta": 1.0}),
    "ddim-last-alpha": (DDIMParallelScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1), {"eta": 1.0}),
    "flow": (FlowMatchEulerDiscreteScheduler(stochastic_sampling=True), {}),
    "flow-shift": (FlowMatchEulerDiscreteScheduler(stochastic_sampling=True, shift=3.0), {}),
    "flow-ode": (FlowMatchEulerDiscreteScheduler(), {}),
    "dpm": (DPMSolverMultistepScheduler(**OWN, algorithm_type="sde-dpmsolver++", solver_order=1), {}),
    "dpm-ode": (DPMSolverMultistepScheduler(**OWN, algorithm_type="dpmsolver++", solver_order=1), {}),
    "dpm-karras": (DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", solver_order=1, use_karras_sigmas=True), {}),
}
SINGLE = {"flow", "flow-shift", "flow-ode", "dpm", "dpm-ode", "dpm-karras"}  # these compute in single precision


def ancestral(**options) -> DDPMParallelScheduler:
    return DDPMParallelScheduler(**{**CLEAR, **options})


# --- what the scheduler does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_schedulers_own(name, steps):
    scheduler, eta = copy.deepcopy(CASES[name][0]), CASES[name][1]
    noise_schedule = NoiseSchedule.of(scheduler, steps, 0.0, **eta)
    scheduler.set_timesteps(steps)
    assert torch.equal(noise_schedule.timesteps, scheduler.timesteps)
    assert noise_schedule.steps == steps
    assert _error(scheduler, noise_schedule, torch.float32, eta) < (1e-6 if name in SINGLE else 5e-5)
    if name not in SINGLE:  # these lose digits of 1 - alpha in single precision, but compute in that of their tables
        for table in {"alphas_cumprod", "final_alpha_cumprod", "one"} & set(vars(scheduler)):
            setattr(scheduler, table, getattr(scheduler, table).double())
        assert _error(scheduler, noise_schedule, torch.float64, eta) < 1e-9


def _error(scheduler, noise_schedule: NoiseSchedule, dtype: torch.dtype, eta: dict) -> float:
    """How far a step of `scheduler`, by a generator of known noise, is from the kernel's, in units of its largest state."""
    if hasattr(scheduler, "set_begin_index"):
        scheduler._step_index = None
    numbers, worst = torch.Generator().manual_seed(5), 0.0
    for step, t in enumerate(scheduler.timesteps):
        x, out = torch.randn(2, 6, 3, generator=numbers, dtype=dtype)
        noise = torch.randn(6, 3, generator=torch.Generator().manual_seed(step), dtype=dtype)
        found = scheduler.step(out, t, x, generator=torch.Generator().manual_seed(step), return_dict=False, **eta)[0]
        mean = noise_schedule.mean(x, step, out)
        assert mean.dtype == torch.float64
        worst = max(worst, ((mean + noise_schedule.std[step] * noise - found).abs().max() / found.abs().max().clamp(min=1)).item())
    return worst


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ["ddpm", "ddpm-large", "ddpm-sample", "ddim-0"])
def test_rows_of_any_timestep_are_those_of_the_parallel_schedulers(name, steps):
    scheduler, eta = CASES[name]
    noise_schedule = NoiseSchedule.of(scheduler, steps, 0.0, **eta)
    scheduler.set_timesteps(steps)
    numbers = torch.Generator().manual_seed(0)
    x, out = torch.randn(2, 40, 4, generator=numbers, dtype=torch.float32)
    step = torch.randint(steps, (40,), generator=numbers)
    found = scheduler.batch_step_no_noise(out, noise_schedule.timesteps[step], x)
    assert torch.allclose(noise_schedule.mean(x, step, out), found.double(), atol=2e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_ancestral_steps_are_known_under_three_names(steps):
    """DDIM with eta 1 and the first-order stochastic solver are DDPM with its small variance."""
    tables = [NoiseSchedule.of(CASES[name][0], steps, 0.1) for name in ("ddpm", "ddpm-plain", "ddim-1", "dpm")]
    for other in tables[1:]:
        for table in ("keep", "gain", "std"):
            assert torch.allclose(getattr(tables[0], table), getattr(other, table), atol=2e-5, rtol=2e-5), table


def test_the_scheduler_is_left_as_it_was():
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    before = torch.as_tensor(scheduler.timesteps).clone(), scheduler.step_index
    NoiseSchedule.of(scheduler, 8, 0.1)
    NoiseSchedule.euler_maruyama(scheduler, 8, 0.1)
    assert torch.equal(torch.as_tensor(scheduler.timesteps), before[0])
    assert scheduler.step_index == before[1]


def test_the_last_step_has_the_noise_it_is_given_and_temperature_multiplies_the_rest():
    plain, warm = NoiseSchedule.of(ancestral(), 16, 0.1), NoiseSchedule.of(ancestral(), 16, 0.1, temperature=0.9)
    assert plain.sigma_out == pytest.approx(0.1, abs=1e-15)
    assert warm.sigma_out == pytest.approx(0.1, abs=1e-15)
    assert torch.allclose(warm.std[:-1], 0.9 * plain.std[:-1], rtol=1e-15)
    assert torch.equal(warm.keep, plain.keep)
    assert torch.equal(warm.gain, plain.gain)
    noisy = ancestral(variance_type="fixed_large")  # its last step has noise of its own, to which sigma_out is added
    own = NoiseSchedule.of(noisy, 16, 0.0).sigma_out
    assert own > 0
    assert NoiseSchedule.of(noisy, 16, 0.1).sigma_out == pytest.approx((own**2 + 0.01) ** 0.5, rel=1e-12)


# --- the path gap -----------------------------------------------------------------------------------------------------


def ratios(noise_schedule: NoiseSchedule) -> torch.Tensor:
    """SNR [T + 1] of the states that our own schedule passes through; that of a finished token is infinite."""
    level = ancestral().alphas_cumprod.double()[noise_schedule.timesteps]
    return torch.cat([level / (1 - level), torch.tensor([torch.inf])])


@pytest.mark.parametrize("steps", STEPS)
def test_the_gap_is_the_error_in_x0_weighed_by_the_steps_of_the_snr(steps):
    sigma_out = 0.1
    noise_schedule, plain = (
        NoiseSchedule.of(ancestral(), steps, sigma_out),
        NoiseSchedule.of(ancestral(prediction_type="sample"), steps, sigma_out),
    )
    snr = ratios(noise_schedule)
    weight = (snr[1:] - snr[:-1]).clamp(max=torch.inf)
    weight[-1] = sigma_out**-2
    assert torch.allclose(plain.weight, weight, rtol=2e-5)
    out = torch.randn(2, 5, steps, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dx0 = (1 - ancestral().alphas_cumprod.double()[noise_schedule.timesteps]).sqrt()[:, None] * (
        out[0] - out[1]
    )  # of velocities, at one state
    found = noise_schedule.gap(*out)
    assert found.shape == (5,)
    assert torch.allclose(found, (weight * dx0.square().sum(-1)).sum(-1), rtol=2e-5)


@pytest.mark.parametrize("name", ["ddpm", "ddim-half", "flow-shift", "dpm"])
def test_the_gap_is_that_of_the_means(name):
    scheduler, eta = CASES[name]
    noise_schedule = NoiseSchedule.of(scheduler, 8, 0.1, **eta)
    x, p, q = torch.randn(3, 7, 8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = torch.arange(8)
    means = noise_schedule.mean(x, steps, p) - noise_schedule.mean(x, steps, q)
    assert torch.allclose(noise_schedule.gap(p, q), (means / noise_schedule.std[:, None]).square().sum((-1, -2)), rtol=1e-12)


# --- flow matching in the manner of Euler and Maruyama ----------------------------------------------------------------


def test_the_stochastic_flow_has_the_drift_and_the_noise_of_its_equation():
    scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    noise_schedule, even = NoiseSchedule.euler_maruyama(scheduler, 16, 0.1), NoiseSchedule.of(scheduler, 16, 0.1)
    scheduler.set_timesteps(16)
    x, out = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s, steps = torch.as_tensor(scheduler.sigmas).double()[:, None], torch.arange(16)
    t, h = 1 - s[:-1], s[:-1] - s[1:]
    velocity = -out
    score = (t * velocity - x) / (1 - t)
    drift = velocity + (1 - t) * score
    drift[-1] = velocity[-1]
    assert torch.allclose(noise_schedule.mean(x, steps, out), x + h * drift, atol=1e-6)
    assert torch.allclose(noise_schedule.std[:-1], (2 * s[:-2] * h[:-1]).sqrt()[:, 0], rtol=1e-6)
    assert noise_schedule.sigma_out == pytest.approx(0.1)
    assert noise_schedule.stochastic
    assert not even.stochastic
    faint = NoiseSchedule.euler_maruyama(scheduler, 16, 0.1, churn=1e-6)
    assert torch.allclose(faint.mean(x, steps, out), even.mean(x, steps, out), atol=1e-4)


@pytest.mark.parametrize("churn", [0.5, 1.0, 2.0])
def test_the_stochastic_flow_ends_in_the_datas_distribution(churn):
    """Of normal data, whose best network is linear: mean and variance are carried through in closed form."""
    goal, spread = 0.7, 0.6
    noise_schedule = NoiseSchedule.euler_maruyama(FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000), 1000, 0.0, churn=churn)
    mean, var = torch.zeros(()).double(), torch.ones(()).double()
    for step in range(1000):
        s = noise_schedule.timesteps[step].double() / 1000
        total = (1 - s) ** 2 * spread**2 + s**2
        slope = (s - (1 - s) * spread**2) / total  # of E[noise - data | x] in x
        factor = noise_schedule.keep[step] + noise_schedule.gain[step] * slope
        shift = noise_schedule.gain[step] * (-goal - slope * (1 - s) * goal)
        mean, var = factor * mean + shift, factor**2 * var + noise_schedule.std[step] ** 2
    assert abs(mean - goal) < 5e-3
    assert abs(var.sqrt() - spread) < 5e-3


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "EulerAncestralDiscreteScheduler has no known transition distribution": EulerAncestralDiscreteScheduler(),
    "clip_sample=True": DDPMParallelScheduler(),
    "thresholding=True": ancestral(thresholding=True),
    "fixed_large_log": ancestral(variance_type="fixed_large_log"),
    "variance_type learned_range": ancestral(variance_type="learned_range"),
    "solver_order 2": DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
    "use_dynamic_shifting=True": FlowMatchEulerDiscreteScheduler(stochastic_sampling=True, use_dynamic_shifting=True),
    "divides by zero at timestep 1023": ancestral(prediction_type="epsilon", rescale_betas_zero_snr=True),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_has_no_transition_distribution_is_refused_in_one_line(said):
    with pytest.raises(ValueError, match=said) as caught:
        NoiseSchedule.of(REFUSED[said], 8, 0.1)
    message = str(caught.value)
    assert "\n" not in message
    assert "take " in message or "set " in message


def test_bad_numbers_are_refused():
    for options, said in (
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2000}, "steps is 2000"),
        ({"sigma_out": -0.1}, "sigma_out is -0.1"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"eta": 0.5}, "eta is 0.5, but DDPMParallelScheduler has none"),
    ):
        with pytest.raises(ValueError, match=said):
            NoiseSchedule.of(ancestral(), **{"steps": 8, "sigma_out": 0.1, **options})
    with pytest.raises(ValueError, match="DDPMParallelScheduler has no flow matching noise levels"):
        NoiseSchedule.euler_maruyama(ancestral(), 8, 0.1)
    with pytest.raises(ValueError, match="churn is 0"):
        NoiseSchedule.euler_maruyama(FlowMatchEulerDiscreteScheduler(), 8, 0.1, churn=0)


def test_rules_ask_for_the_noise_they_need():
    good = NoiseSchedule.of(ancestral(), 8, 0.1)
    good.check_path("path")
    good.check_token("aligned")
    good.check_shared(good, "path")
    good.check_shared(NoiseSchedule.of(ancestral(prediction_type="sample"), 8, 0.1), "path")
    bare = NoiseSchedule.of(DDIMParallelScheduler(**CLEAR), 8, 0.1, eta=0.0)
    assert not bare.stochastic
    assert good.stochastic
    bare.check_token("aligned")
    with pytest.raises(ValueError, match=r"path needs noise in every step, but 7 of 8 have none.*judge by aligned"):
        bare.check_path("path")
    for silent in (NoiseSchedule.of(DDIMParallelScheduler(**CLEAR), 8, 0.0, eta=0.0), NoiseSchedule.of(ancestral(), 8, 0.0)):
        with pytest.raises(ValueError, match="aligned needs noise in the last step, but sigma_out is 0: give sigma_out > 0"):
            silent.check_token("aligned")
    with pytest.raises(ValueError, match="sigma_out is 0"):
        NoiseSchedule.of(ancestral(), 8, 0.0).check_path("path")
    with pytest.raises(ValueError, match="they take 8 and 16 steps"):
        good.check_shared(NoiseSchedule.of(ancestral(), 16, 0.1), "block")
    with pytest.raises(ValueError, match=r"at step 7 of 8 their noise is 0\.1 and 0\.2"):
        good.check_shared(NoiseSchedule.of(ancestral(), 8, 0.2), "stepwise")


def test_diffusers_is_not_imported():
    """Schedulers are known by their names."""
    for module in (kernel_module, scheduler_probe):
        lines = inspect.getsource(module).splitlines()
        named = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert named <= {"copy", "dataclasses", "functools", "typing", "torch", "mmspec"}
