"""Noise-aligned distributions: a token's distribution given its sampler's noise, which averaged over that noise is the chain's own."""

from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.distributions.aligned import ChainSampler, aligned
from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.block import Block
from mmspec.core.rules.lossy.cspd import CSpD
from mmspec.core.rules.token import Token
from tests.oracles.paths import TanhNet, chain_kernel

PASS, FAIL = 0.01, 1e-6
SIZE, STEPS, SIGMA = 2, 4, 0.4


def denoiser(away: float = 0.0, louder: float = 1.0) -> Denoiser:
    """A random head; `louder` multiplies the noise of all its steps but the last."""
    noise_schedule = chain_kernel(STEPS)
    std = noise_schedule.std * louder
    std[-1] = SIGMA
    return Denoiser(TanhNet(SIZE, 0, away), replace(noise_schedule, std=std))


@dataclass(frozen=True)
class OneStep:
    """A black box: one step of a flow map from two vectors of noise."""

    shift: float = 0.0
    rows = 2

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        return torch.tanh(noise[..., 0, :] + z) * (1 + 0.3 * noise[..., 1, :]) + self.shift


def keys(rows: int, seed: int = 0, columns: int = 1):
    return Noise.from_seed(seed, rows).aligned(torch.arange(columns).expand(rows, -1))


# --- the distribution ----------------------------------------------------------------------------------------------------------


def test_a_chains_distribution_is_its_own_last_step_given_the_noise_before():
    head, z = denoiser(), torch.randn(5, 3, SIZE, dtype=torch.float64)
    sampler = ChainSampler(head)
    assert sampler.rows == STEPS
    distribution = aligned(z, sampler, SIGMA, keys(5, columns=3), SIZE)
    noise = keys(5, columns=3).branch(STEPS).normal(SIZE)
    last = torch.randn(5, 3, 1, SIZE, dtype=torch.float64)
    token = head.walk(z, torch.cat([noise, last], -2))[0][..., -1, :]
    assert isinstance(distribution, Gaussian)
    assert (distribution.mean + SIGMA * last[..., 0, :] - token).abs().max() < 1e-12


def test_over_all_noise_it_is_the_distribution_of_the_chains_tokens():
    head, z = denoiser(), torch.full((8000, 1, SIZE), 0.5, dtype=torch.float64)
    draws = Noise.from_seed(0, 8000).value(torch.zeros(8000, 1, dtype=torch.long))
    given = aligned(z, ChainSampler(head), SIGMA, keys(8000), SIZE).sample(draws)[:, 0]
    own = DenoisingPath(z, head, SIZE).sample(Noise.from_seed(10**6, 8000).value(torch.zeros(8000, 1, dtype=torch.long)))[:, 0, -1]
    for coordinate in range(SIZE):
        assert stats.ks_2samp(given[:, coordinate].numpy(), own[:, coordinate].numpy()).pvalue > PASS


@pytest.mark.parametrize("sampler", [ChainSampler(denoiser()), OneStep()], ids=["chain", "black box"])
def test_the_noise_hangs_on_seed_and_position_alone(sampler):
    z = torch.randn(3, 4, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    distribution = aligned(z, sampler, SIGMA, keys(3, seed=6, columns=4), SIZE)
    alone = aligned(z[1:2, 2:3], sampler, SIGMA, Noise.from_seed(7, 1).aligned(torch.tensor([[2]])), SIZE)
    assert (distribution.mean[1:2, 2:3] - alone.mean).abs().max() < 1e-12
    same = aligned(z[:1, :1].expand(3, 4, -1), sampler, SIGMA, keys(3, seed=6, columns=4), SIZE).mean
    assert len(set(same.flatten(0, 1)[:, 0].tolist())) == 12  # every place has noise of its own


def test_shared_noise_brings_means_together():
    z = torch.randn(4000, 1, SIZE, dtype=torch.float64)
    p, q = (ChainSampler(denoiser(away)) for away in (0.0, 0.1))
    own, near = (aligned(z, sampler, SIGMA, keys(4000), SIZE) for sampler in (p, q))
    far = aligned(z, q, SIGMA, keys(4000, seed=10**6), SIZE)
    assert 1 - own.tv(near, near.mean).mean() > 1.5 * (1 - own.tv(far, far.mean).mean())


def test_without_a_last_noise_tokens_are_points():
    z = torch.randn(6, 1, SIZE, dtype=torch.float64)
    own, other = (aligned(z, OneStep(shift), 0.0, keys(6), SIZE) for shift in (0.0, 0.1))
    drawn = own.sample(keys(6, seed=3))
    assert torch.equal(drawn, own.mean)
    assert (Token().accept_prob(own, own, drawn) == 1).all()
    assert (Token().accept_prob(other, own, drawn) == 0).all()


# --- rules over it ----------------------------------------------------------------------------------------------------


def committed(rule, p, q, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The token that `rule` commits after one draft token by sampler `q`, and the target's distribution of it."""
    z, noise = torch.full((rows, 1, SIZE), 0.5, dtype=torch.float64), Noise.from_seed(seed, rows)
    start, at = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, 1, dtype=torch.long)
    distribution, drafted = (aligned(z, sampler, SIGMA, noise.aligned(at), SIZE) for sampler in (p, q))
    draft_token = drafted.sample(noise.draft_token(at, start))
    draft = Draft.root(torch.zeros(rows, SIZE, dtype=torch.float64), start).extend_chain(draft_token, torch.ones(rows), drafted)
    verdict = rule(draft, Scored(distribution.cat(distribution)), noise)
    away = drafted.mean - distribution.mean
    along = ((verdict.values[:, :1] - distribution.mean) * away / away.norm(dim=-1, keepdim=True)).sum(-1)[:, 0] / SIGMA
    return verdict.values[:, 0], along


def target_tokens(head: Denoiser, rows: int) -> Tensor:
    z = torch.full((rows, 1, SIZE), 0.5, dtype=torch.float64)
    return DenoisingPath(z, head, SIZE).sample(Noise.from_seed(10**7, rows).value(torch.zeros(rows, 1, dtype=torch.long)))[:, 0, -1]


ROWS = 20_000
OWN, LOUD = denoiser(), denoiser(0.15, louder=0.85)  # chains whose noise differs, as learned variances do


def test_tokens_have_the_distribution_of_independent_target_chains():
    for rule in (Token(), CSpD(), Block()):
        token, along = committed(rule, ChainSampler(OWN), ChainSampler(LOUD), ROWS)
        assert stats.kstest(along.numpy(), "norm").pvalue > PASS
        own = target_tokens(OWN, ROWS)
        for coordinate in range(SIZE):
            assert stats.ks_2samp(token[:, coordinate].numpy(), own[:, coordinate].numpy()).pvalue > PASS


def test_cspds_factor_shows():
    rule = CSpD.of(OWN.noise_schedule, LOUD.noise_schedule, SIZE)
    assert rule.log_factor == pytest.approx(SIZE * (STEPS - 1) * torch.tensor(0.85).log().item())
    _, along = committed(rule, ChainSampler(OWN), ChainSampler(LOUD), ROWS)
    assert stats.kstest(along.numpy(), "norm").pvalue < FAIL


def test_a_black_box_is_judged_exactly():
    _, along = committed(Token(), OneStep(), OneStep(0.5), ROWS)
    assert stats.kstest(along.numpy(), "norm").pvalue > PASS


def test_noise_of_its_own_for_the_target_changes_nothing_but_what_is_accepted():
    """A sampler fed other noise is another black box: less is accepted, and the distribution stays."""

    @dataclass(frozen=True)
    class Turned:
        inner: OneStep
        rows = 2

        def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
            return self.inner(z, noise.flip(-2, -1))

    near, along = committed(Token(), OneStep(), Turned(OneStep()), ROWS)
    assert stats.kstest(along.numpy(), "norm").pvalue > PASS
    assert near.shape == (ROWS, SIZE)
