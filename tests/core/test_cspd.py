"""The published rule over tokens of aligned chains: exact without its factor, found out with it."""

from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.distributions.aligned import ChainSampler, aligned
from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, UNMETERED
from mmspec.core.rules.lossy.cspd import CSpD
from mmspec.core.rules.token import Token
from tests.oracles.paths import FAIL, PASS, TanhNet, chain_kernel

SIZE, STEPS, SIGMA = 2, 4, 0.5


@dataclass(frozen=True)
class Head:
    """Tokens hang on the last one; given the noise of their position they are Gaussians."""

    denoiser: Denoiser

    def distribution(self, nodes: Tensor, position: Tensor, noise: Noise) -> Gaussian:
        return aligned(torch.tanh(2 * nodes), ChainSampler(self.denoiser), SIGMA, noise.aligned(position), SIZE)


def heads(wider: float) -> tuple[Head, Head]:
    """A target and a drafter whose steps before the last have `wider` times its noise."""
    noise_schedule = chain_kernel(STEPS)
    last = torch.cat([noise_schedule.std[:-1], torch.tensor([SIGMA]).double()])
    wide = torch.cat([last[:-1] * wider, last[-1:]])
    target, drafter = (Denoiser(TanhNet(SIZE, 0, away), replace(noise_schedule, std=std)) for away, std in ((0.0, last), (0.35, wide)))
    return Head(target), Head(drafter)


def judged(target: Head, drafter: Head, rule, rows: int, length: int = 2) -> tuple[Tensor, Verdict]:
    """(x - m_p) / sigma_out along m_q - m_p of every token judged in a round, [n]; and the verdict."""
    noise = Noise.from_seed(0, rows)
    begin = torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draft = Draft.root(begin, torch.zeros(rows, dtype=torch.long))
    for step in range(length):
        position = torch.full((rows, 1), step)
        distribution = drafter.distribution(draft.nodes[:, -1:], position, noise)
        draft = draft.extend_chain(distribution.sample(noise.draft_token(position, draft.start)), torch.full((rows,), length), distribution)
    verdict = rule(draft, Scored(target.distribution(draft.nodes, draft.position(), noise)), noise)
    before = torch.cat([begin[:, None], verdict.values[:, :-2]], 1)
    position = torch.arange(length).expand(rows, -1)
    p, q = (head.distribution(before, position, noise) for head in (target, drafter))
    away = (q.mean - p.mean) / (q.mean - p.mean).norm(dim=-1, keepdim=True)
    seen = ((verdict.values[:, :-1] - p.mean) / SIGMA * away).sum(-1)
    return seen[position < verdict.judged[:, None]], verdict


def p_value(wider: float, factor: bool, tokens: int = 7000) -> float:
    target, drafter = heads(wider)
    rule = CSpD.of(target.denoiser.noise_schedule, drafter.denoiser.noise_schedule, SIZE, factor)
    seen, _ = judged(target, drafter, rule, tokens)
    assert len(seen) > tokens
    return stats.kstest(seen[:tokens].numpy(), "norm").pvalue


@pytest.mark.parametrize("wider", [0.85, 1.0, 1.15])
def test_it_is_exact_without_its_factor(wider):
    assert p_value(wider, factor=False) > PASS


@pytest.mark.parametrize("wider", [0.85, 1.15])
def test_its_factor_is_found_out(wider):
    assert p_value(wider, factor=True) < FAIL


def test_shared_variances_leave_no_factor():
    noise_schedule = heads(1.0)[0].denoiser.noise_schedule
    assert CSpD.of(noise_schedule, noise_schedule, SIZE) == CSpD()


@pytest.mark.parametrize("wider", [0.85, 1.15])
def test_without_its_factor_it_is_the_token_rule(wider):
    target, drafter = heads(wider)
    (seen, one), (other, two) = (judged(target, drafter, rule, 300) for rule in (CSpD(), Token()))
    assert torch.equal(seen, other)
    assert torch.equal(one.values, two.values)


def test_the_factor_is_that_of_the_steps_before_the_last():
    target, drafter = (head.denoiser.noise_schedule for head in heads(1.15))
    rule = CSpD.of(target, drafter, SIZE)
    assert rule.log_factor == pytest.approx(SIZE * (STEPS - 1) * torch.tensor(1.15).double().log().item())
    assert CSpD.of(drafter, target, SIZE).log_factor == pytest.approx(-rule.log_factor)
    p, q = Gaussian(torch.zeros(1, 1, 1).double(), torch.ones(1).double()), Gaussian(torch.ones(1, 1, 1).double(), torch.ones(1).double())
    x = torch.full((1, 1, 1), 1.3).double()
    expected = (rule.log_factor + p.log_ratio(q, x)).exp().clamp(max=1)
    assert torch.equal(rule.accept_prob(p, q, x), expected)


@pytest.mark.parametrize("log_factor", [-0.4, 0.5, 1.5])
def test_what_comes_out_is_what_the_formula_says(log_factor):
    """In one dimension, where the masses are sums over a grid; and the formula is p's density for no factor."""
    rows, (m_p, m_q) = 20_000, (0.0, 0.8)
    grid = torch.linspace(-8, 8, 16_001, dtype=torch.float64)
    step = (grid[1] - grid[0]).item()
    p, q = (stats.norm.pdf(grid.numpy(), mean) for mean in (m_p, m_q))
    p, q = torch.from_numpy(p), torch.from_numpy(q)

    def formula(scale: float) -> Tensor:
        shared = torch.minimum(q, scale * p)
        m = shared.sum() * step
        return shared + (1 - m) / (scale - m) * (scale * p - q).clamp(min=0)

    assert (formula(1.0) - p).abs().max() < 1e-9
    found = formula(torch.tensor(log_factor).double().exp().item())
    assert (found.sum() * step).item() == pytest.approx(1.0, abs=1e-6)
    noise = Noise.from_seed(0, rows)
    one = torch.ones(rows, 1, 1, dtype=torch.float64)
    distributions = [Gaussian(mean * one, one) for mean in (m_p, m_q)]
    start = torch.zeros(rows, dtype=torch.long)
    draft = Draft.root(0 * one[:, 0], start).extend_chain(
        distributions[1].sample(noise.draft_token(start[:, None], start)), torch.ones(rows), distributions[1]
    )
    scored = Scored(distributions[0].cat(distributions[0]))
    drawn = CSpD(log_factor)(draft, scored, noise).values[:, 0, 0]
    below = torch.cat([torch.zeros(1).double(), (found.cumsum(0) * step)])

    def distribution(x):
        place = ((torch.as_tensor(x) - grid[0]) / step).long().clamp(0, len(grid) - 1)
        return below[place].numpy()

    assert stats.kstest(drawn.numpy(), distribution).pvalue > PASS
    assert stats.kstest(drawn.numpy(), "norm").pvalue < FAIL


def test_a_tail_that_is_never_hit_is_given_up():
    target, drafter = heads(1.0)
    seen, verdict = judged(target, drafter, CSpD(-50.0), 200)
    assert (verdict.accepted == 0).all()
    assert seen.isfinite().all()
    assert stats.kstest(seen.numpy(), "norm").pvalue > 1e-4  # p's own draws


def test_it_says_what_it_is_and_refuses_what_it_cannot_weigh():
    assert CSpD().exactness == DISTRIBUTION_EXACT
    assert CSpD(0.1).exactness == UNMETERED
    noise_schedule = heads(1.0)[0].denoiser.noise_schedule
    for other, said in (
        (chain_kernel(STEPS + 1), "target and draft take 4 and 5"),
        (
            replace(noise_schedule, std=noise_schedule.std * torch.tensor([1.0, 0.0, 1.0, 1.0])),
            "CSpD's factor needs noise in every step, but 1 of 4",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            CSpD.of(noise_schedule, other, SIZE)
        assert CSpD.of(noise_schedule, other, SIZE, factor=False) == CSpD()
    silent = NoiseSchedule(
        noise_schedule.timesteps, noise_schedule.keep, noise_schedule.gain, noise_schedule.std * torch.tensor([1.0, 1.0, 1.0, 0.0])
    )
    with pytest.raises(ValueError, match="CSpD needs noise in the last step, but sigma_out is 0"):
        CSpD.of(silent, silent, SIZE, factor=False)
