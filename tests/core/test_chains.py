"""Speculation inside a chain: its states have the chain's own distribution whatever is held, in ragged rows and from any step on."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.chains.control import FixedSteps, MeasuredSteps, usual_draft_steps
from mmspec.core.chains.denoiser import SpeculativeDenoiser, chain_control
from mmspec.core.chains.linear import LinearDraft
from mmspec.core.chains.sampler import SpeculativeSampler
from mmspec.core.chains.tables import StepTables
from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.vision.continuous.ar import scheduler
from tests.oracles.paths import FAIL, PASS, TanhNet, chain_kernel

SIZE, STEPS, ROWS = 2, 6, 6000
NET, SCHEDULE = TanhNet(SIZE, 0), chain_kernel(STEPS, noise=0.35)
RESPONSE = 0.3 * torch.randn(STEPS, SIZE, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def numbers(rows: int, steps: int = STEPS, seed: int = 0, size: int = SIZE) -> tuple[Tensor, Tensor, Tensor]:
    """Conditioning, noise and uniform numbers."""
    generator = torch.Generator().manual_seed(seed)
    z, normal = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((rows, size), (rows, steps + 1, size)))
    return z, normal, torch.rand(rows, steps, generator=generator, dtype=torch.float64)


def sampler(
    draft_steps: int, response: Tensor | None = None, net=NET, schedule: NoiseSchedule = SCHEDULE, first=None
) -> SpeculativeSampler:
    return SpeculativeSampler(net, StepTables(schedule, response), FixedSteps(draft_steps), first)


def seen(path: Tensor, z: Tensor, schedule: NoiseSchedule = SCHEDULE) -> Tensor:
    """Residuals of every state [R, T], along the change of the prediction since the state before: where a held prediction errs."""
    outs = [NET(path[:, step], schedule.timesteps[step].expand(len(path)), z) for step in range(schedule.steps)]
    found = []
    for step in range(1, schedule.steps):
        mean = schedule.mean(path[:, step], torch.tensor(step), outs[step])
        e = (outs[step] - outs[step - 1]) / (outs[step] - outs[step - 1]).norm(dim=-1, keepdim=True)
        found.append(((path[:, step + 1] - mean) / schedule.std[step] * e).sum(-1))
    return torch.stack(found, 1)


def p_value(path: Tensor, z: Tensor) -> float:
    """p-value that all residuals are standard normal, and independent of the one before."""
    values = seen(path, z)
    pairs = (values[:, 1:] * values[:, :-1]).flatten()
    together = pairs.sum() / len(pairs) ** 0.5
    return float(min(1.0, 2 * min(stats.kstest(values.flatten().numpy(), "norm").pvalue, 2 * stats.norm.sf(abs(together)))))


@pytest.mark.parametrize("draft_steps", [1, 3, 8])
@pytest.mark.parametrize("response", [None, RESPONSE], ids=["held", "moved"])
def test_states_have_the_chains_distribution(draft_steps, response):
    z, normal, uniform = numbers(ROWS, seed=draft_steps)
    found = sampler(draft_steps, response, first=lambda z: 0.5 * z).sample(z, normal, uniform)
    assert p_value(found.path, z) > PASS
    assert torch.equal(found.path[:, 0], normal[:, 0])


BARE = replace(SCHEDULE, std=torch.cat([SCHEDULE.std[:-1], torch.zeros(1, dtype=torch.float64)]))


def test_a_last_step_without_noise_is_the_heads_own_mean(monkeypatch):
    """And the states before it have the chain's distribution; a last step that keeps its draft is caught."""
    z, normal, uniform = numbers(ROWS, seed=4)
    found = sampler(3, schedule=BARE).sample(z, normal, uniform)
    means = Denoiser(NET, BARE).means(z, found.path)
    assert torch.allclose(found.path[:, -1], means[:, -1], atol=1e-9)
    assert torch.allclose(found.means, means, atol=1e-9)
    values = ((found.path[:, 2:-1] - means[:, 1:-1]) / BARE.std[1:-1, None]).flatten()
    assert stats.kstest(values.numpy(), "norm").pvalue > PASS
    monkeypatch.setattr(StepTables, "ends_bare", False)
    wrong = sampler(3, schedule=BARE).sample(z, normal, uniform)
    assert not torch.allclose(wrong.path[:, -1], Denoiser(NET, BARE).means(z, wrong.path)[:, -1], atol=1e-3)


@pytest.mark.parametrize("response", [None, RESPONSE], ids=["held", "moved"])
def test_recorded_means_are_the_heads(response):
    """And a state is its mean and noise of the step's deviation: kept as drafted, or reflected, of the same length."""
    z, normal, uniform = numbers(50)
    found = sampler(3, response).sample(z, normal, uniform)
    assert torch.allclose(found.means, Denoiser(NET, SCHEDULE).means(z, found.path), atol=1e-9)


@pytest.mark.parametrize("response", [None, RESPONSE], ids=["held", "moved"])
def test_tables_write_the_chain_of_a_prediction(response):
    """Against a loop of single steps, from every step, with a response and behind the last step."""
    tables, (z, normal, uniform) = StepTables(SCHEDULE, response), numbers(1)
    (a, b, c, e), std, noise = tables.coefficients, SCHEDULE.std, normal[0, 1:]
    window, moves = tables.window(4), torch.zeros_like(noise) if response is None else torch.einsum("ki,kij->kj", noise, response)
    given = None if response is None else moves[None]
    moved, drawn, limit = window.by_token(noise[None], given, uniform.log()).split([9 * SIZE, 4 * (SIZE + 1), 4], 1)
    for start in range(STEPS):
        state, held = z[0], normal[0, 0]
        found = (window.held[start] @ torch.stack([state, held]) + moved[start].view(9, SIZE)).split([5, 4])
        for k in range(4):
            assert torch.allclose(found[0][k], state, atol=1e-12)
            if (step := start + k) < STEPS:
                assert torch.allclose(found[1][k], b[step] / std[step] * (c[step] * state - held), atol=1e-12)
                assert torch.allclose(window.weight[start, k], b[step] / std[step] * e[step])
                assert torch.equal(drawn[start].view(4, -1)[k], torch.cat([noise[step], uniform[0, step : step + 1].log()]))
                assert limit[start, k] == (float("inf") if k == 3 or step == STEPS - 1 else uniform[0, step].log())
                state, held = a[step] * state + b[step] * held + std[step] * noise[step], held + moves[step]
            else:
                assert window.weight[start, k] == 0
        assert torch.allclose(found[0][4], state, atol=1e-12)


def test_steps_in_terms_of_the_prediction_are_the_schedulers():
    """The clean token that diffusers' scheduler predicts is what is held, and both forms of a step are one."""
    for schedule in (NoiseSchedule.of(scheduler(), 16, 0.1), replace(SCHEDULE)):
        a, b, c, e = StepTables(schedule).coefficients
        x, out = torch.randn(2, schedule.steps, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.allclose(a * x + b * (c * x + e * out), schedule.keep * x + schedule.gain * out, atol=1e-12)
    own, t = NoiseSchedule.of(scheduler(), 16, 0.1), scheduler().config["num_train_timesteps"] - 1
    c, e = own.prediction
    share = scheduler().alphas_cumprod[t].double()
    assert own.timesteps[0] == t
    assert abs(c[0] - share.sqrt()) < 1e-6
    assert abs(e[0] + (1 - share).sqrt()) < 1e-6


@pytest.mark.parametrize("draft_steps", [0, 2, 5])
def test_a_row_is_the_same_alone_and_in_a_batch(draft_steps):
    """Rows are at steps of their own: some end rounds before others, and begin behind states that stay."""
    z, normal, uniform = numbers(12)
    path = torch.randn(12, STEPS + 1, SIZE, dtype=torch.float64)
    first = torch.arange(12) % (STEPS + 2)
    model = sampler(draft_steps, RESPONSE)
    together = model.sample(z, normal, uniform, path, first)
    for row in range(12):
        one = slice(row, row + 1)
        alone = model.sample(z[one], normal[one], uniform[one], path[one], first[one])
        assert torch.allclose(alone.path[0], together.path[row], atol=1e-10)
        assert torch.equal(together.path[row, : first[row]], path[row, : first[row]])


def test_states_behind_kept_ones_have_the_chains_distribution():
    z, normal, uniform = numbers(ROWS, seed=9)
    begun = Denoiser(NET, SCHEDULE).walk(z, numbers(ROWS, seed=10)[1])[0]
    first = torch.arange(ROWS) % (STEPS + 2)
    found = sampler(4, RESPONSE).sample(z, normal, uniform, begun, first)
    assert p_value(found.path, z) > PASS


def test_a_perfect_prediction_is_never_refused():
    """A head whose prediction of the clean token is constant: one call writes as many states as a window holds."""
    calls = []

    def net(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        calls.append(len(x))
        return z

    z, normal, uniform = numbers(5)
    found = sampler(STEPS - 1, net=net, first=lambda z: z).sample(z, normal, uniform)
    plain = Denoiser(net, SCHEDULE).walk(z, normal)[0]
    assert calls[0] == 5 * STEPS
    assert len(calls) == 1 + STEPS
    assert torch.allclose(found.path, plain, atol=1e-10)


def test_paths_are_drawn_and_finished_by_it():
    """`DenoisingPath` over such a head: its draws record the means, and redraws leave the first states."""
    z = torch.randn(4, 2, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    paths = DenoisingPath(z, SpeculativeDenoiser.of(NET, SCHEDULE, 3), SIZE)
    keys = Noise.from_seed(0, 4).value(torch.arange(2).expand(4, -1))
    path, record = paths.drawn(keys)
    assert path.shape == (4, 2, STEPS + 1, SIZE)
    assert torch.allclose(record.log_prob(path), paths.log_prob(path), atol=1e-9)
    again = paths.redrawn(path, torch.full((4, 2), 3), Noise.from_seed(7, 4).value(torch.arange(2).expand(4, -1)))
    assert torch.equal(again[..., :3, :], path[..., :3, :])
    assert not torch.equal(again[..., 3, :], path[..., 3, :])


class TwoParts:
    """A head whose second part alone reads the state; it counts calls of the first."""

    def __init__(self):
        self.conditioned = 0

    def embed_times(self, timesteps: Tensor) -> Tensor:
        return torch.stack([timesteps.double().cos(), timesteps.double().sin()], -1)

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        self.conditioned += 1
        return 0.3 * times + z

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        assert x.shape == condition.shape
        return torch.tanh(x + condition)

    def __call__(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(x + 0.3 * self.embed_times(timesteps) + z)


@pytest.mark.parametrize("most", [4096, 7, 1])
def test_a_prepared_head_is_the_head(most, monkeypatch):
    """In plain sampling, from any step on, in one run over a path, and in speculation; prepared at once or in parts."""
    monkeypatch.setattr("mmspec.core.prepared_head.PREPARED", most)
    monkeypatch.setattr("mmspec.core.chains.sampler.KEPT", most * SIZE * 2)
    z, normal, uniform = numbers(3)
    head, first = TwoParts(), torch.tensor([0, 2, 5])
    plain, ready = (Denoiser(net, SCHEDULE) for net in (lambda x, timesteps, z: head(x, timesteps, z), head))
    path, means = plain.walk(z, normal)
    found = ready.walk(z, normal)
    assert torch.allclose(found[0], path, atol=1e-12)
    assert torch.allclose(found[1], means, atol=1e-12)
    assert head.conditioned == -(-STEPS // max(1, most // 3))
    assert torch.allclose(ready.means(z, path), means, atol=1e-12)
    again = [each.walk(z, numbers(3, seed=1)[1], path, first)[0] for each in (plain, ready)]
    assert torch.allclose(again[1], again[0], atol=1e-12)
    drawn = [sampler(3, RESPONSE, net).sample(z, normal, uniform, path, first).path for net in (plain.net, head)]
    assert torch.allclose(drawn[1], drawn[0], atol=1e-10)


# --- planted bugs -----------------------------------------------------------------------------------------------------


class PlainRedraw(SpeculativeSampler):
    """A refused step is drawn anew from the target, not from what is left of it."""

    def _ended(self, judged, maps):
        held, gap, noise = super()._ended(judged, maps).clone(), judged[:, 3 * SIZE : 4 * SIZE], judged[:, 4 * SIZE : 5 * SIZE]
        fresh = torch.randn(gap.shape, generator=torch.Generator().manual_seed(len(gap)), dtype=gap.dtype)
        drawn = judged[:, 2 * SIZE : 3 * SIZE] - maps[:, 5 * SIZE, :1] / 2 * (gap - noise + fresh)  # around the target's mean
        held[:, 0] = torch.where(judged[:, -1:] < judged[:, -2:-1], drawn, held[:, 0])
        return held


class KeepsTooMuch(SpeculativeSampler):
    """Steps are judged by a smaller uniform number."""

    def sample(self, z, normal, uniform, path=None, first=None):
        return super().sample(z, normal, uniform**2, path, first)


@pytest.mark.parametrize("mutant", [PlainRedraw, KeepsTooMuch])
def test_planted_bugs_show(mutant):
    z, normal, uniform = numbers(4 * ROWS)
    found = mutant(NET, StepTables(SCHEDULE), FixedSteps(3)).sample(z, normal, uniform)
    assert p_value(found.path, z) < FAIL


# --- controllers ------------------------------------------------------------------------------------------------------


def test_the_usual_number_grows_with_the_chain():
    assert [usual_draft_steps(steps) for steps in (1, 4, 16, 64, 128, 1000)] == [1, 2, 6, 14, 20, 30]


@pytest.mark.parametrize(
    ("fixed", "each", "share", "rows", "expected"), [(1, 0.001, 0.95, 1, 24), (1, 0.2, 0.9, 1, 8), (1, 0.3, 0.8, 8, 2)]
)
def test_measured_steps_follow_cost_and_acceptance(fixed, each, share, rows, expected):
    """Calls that cost the same for many states hold many; where a state costs what a call does, nothing is drafted."""
    control, generator = MeasuredSteps(), torch.Generator().manual_seed(0)
    for _ in range(400):
        length = control.length(rows, 200)
        run = [1 + int((torch.rand(length - 1, generator=generator) < share).long().cumprod(0).sum()) for _ in range(rows)]
        control.observe(length, [200] * rows, run, fixed + each * rows * length)
    assert abs(control.length(rows, 200) - expected) <= max(1, expected // 3)
    assert control.cost() == pytest.approx((fixed, each), rel=0.05)


def test_another_length_every_round_is_exact_too():
    z, normal, uniform = numbers(ROWS, seed=4)
    found = SpeculativeSampler(NET, StepTables(SCHEDULE), MeasuredSteps()).sample(z, normal, uniform)
    assert p_value(found.path, z) > PASS


@pytest.mark.parametrize("draft_steps", [-1, 32, True, 1.5, "many"])
def test_bad_numbers_are_refused(draft_steps):
    with pytest.raises(ValueError, match="give 0 to 31 states, or 'auto'"):
        chain_control(draft_steps, 16)


def test_a_step_without_noise_is_refused():
    with pytest.raises(ValueError, match="speculation inside a chain needs noise in every step"):
        StepTables(replace(SCHEDULE, std=SCHEDULE.std * torch.tensor([1, 0, 1, 1, 1, 1])))


# --- the linear model -------------------------------------------------------------------------------------------------


def test_a_linear_head_is_foretold():
    """For a head that is linear the linear model is the head: every step behind the first call is kept."""
    generator = torch.Generator().manual_seed(2)
    schedule = NoiseSchedule.of(scheduler(), 8, 0.1)
    inward, given = (0.3 * torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    c, e = schedule.prediction

    def net(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        calls.append(len(x))
        return x @ inward + z @ given

    calls: list[int] = []
    levels = torch.tensor([0.0, 1023.0], dtype=torch.float64)
    linear = LinearDraft(levels, *([inward.expand(2, -1, -1)] * 2), e[0] * given, torch.zeros(SIZE, dtype=torch.float64))
    response = linear.response(schedule)
    assert response.shape == (8, SIZE, SIZE)
    assert (response[-1] == 0).all()
    x, noise = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
    predicted = [c[3] * y + e[3] * (y @ inward) for y in (x, x + schedule.std[2] * noise)]
    assert torch.allclose(noise @ response[2], predicted[1] - predicted[0], atol=1e-12)
    assert torch.allclose(linear.first(x[None]), e[0] * x[None] @ given)
    both = linear.first(torch.cat([x, noise])[None], 3.0)
    assert torch.allclose(both, linear.first(noise[None]) + 3 * (linear.first(x[None]) - linear.first(noise[None])))
