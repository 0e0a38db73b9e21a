"""Distributions of a token's whole denoising path: densities, draws, frozen outputs, and the token rule over them by projected
residuals."""

from dataclasses import replace

import pytest
import torch
from numpy.polynomial import legendre
from scipy import stats
from torch import Tensor

from mmspec.core.distributions import thinning
from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath, recorded
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.distributions.thinning import ResidualByThinning
from mmspec.core.noise import Keys, Noise
from mmspec.core.rules.token import Token
from tests.oracles.paths import FAIL, PASS, PathTarget, TanhNet, bias, chain_kernel, one_round, path_pair, projection, residuals

SIZE, STEPS = 3, 5


def distribution(every: int = 1, rows: int = 4, columns: int = 2, steps: int = STEPS, away: float = 0.0) -> DenoisingPath:
    z = torch.randn(rows, columns, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DenoisingPath(z, Denoiser(TanhNet(SIZE, 0, away), chain_kernel(steps), every), SIZE)


def keys(rows: int = 4, columns: int = 2, seed: int = 0) -> Keys:
    return Noise.from_seed(seed, rows).value(torch.arange(columns).expand(rows, -1))


class Counting:
    """A net that counts its runs and the states it was shown."""

    def __init__(self):
        self.net, self.runs, self.states = TanhNet(SIZE, 0), 0, 0

    def __call__(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        self.runs, self.states = self.runs + 1, self.states + len(x)
        return self.net(x, timesteps, z)


# --- what a path is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_a_density_is_that_of_every_state_given_the_one_before(every):
    """And its draws are the chain's, noise and all: one state of the path after the other by the kernel's own tables."""
    paths = distribution(every)
    path, noise_schedule = paths.sample(keys()), paths.denoiser.noise_schedule
    assert path.shape == (4, 2, STEPS + 1, SIZE)
    noise = keys().branch(paths.streams).normal(SIZE)
    assert torch.equal(path[..., 0, :], noise[..., 0, :])
    total, out = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, 2, SIZE)
    for step in range(STEPS):
        x = path[..., step, :]
        if step % every == 0:
            times = noise_schedule.timesteps[step].expand(8)
            out = paths.denoiser.net(x.reshape(8, SIZE), times, paths.z.reshape(8, SIZE)).view(4, 2, SIZE)
        mean = noise_schedule.mean(x, step, out)
        assert torch.allclose(path[..., step + 1, :], mean + noise_schedule.std[step] * noise[..., step + 1, :], atol=1e-12)
        total += torch.distributions.Normal(mean, noise_schedule.std[step]).log_prob(path[..., step + 1, :]).sum(-1)
        assert torch.allclose(paths.steps(path).mean[..., step, :], mean, atol=1e-12)
    assert torch.allclose(paths.log_prob(path), total, atol=1e-10)


@pytest.mark.parametrize("every", [1, 2])
def test_what_a_drafter_recorded_is_what_its_distribution_says(every):
    paths = distribution(every)
    counting = Counting()
    counted = replace(paths, denoiser=replace(paths.denoiser, net=counting))
    path, record = recorded(counted, keys())
    assert counting.runs == -(-STEPS // every)
    seen = record.log_prob(path), record.steps(path)
    assert counting.runs == -(-STEPS // every)  # nothing was run for it
    assert torch.equal(path, paths.sample(keys()))
    assert torch.allclose(seen[0], paths.log_prob(path), atol=1e-10)
    assert torch.allclose(seen[1].mean, paths.steps(path).mean, atol=1e-12)
    rows = torch.tensor([[1], [0], [1], [0]])
    assert torch.equal(record.at(rows).z, paths.at(rows).z)
    both = record.cat(record)
    assert torch.allclose(both.log_prob(torch.cat([path, path], 1)), torch.cat([seen[0], seen[0]], 1))


def test_all_drafted_states_are_judged_in_one_run():
    paths, other = distribution(), distribution(away=0.4)
    counting = Counting()
    paths = replace(paths, denoiser=replace(paths.denoiser, net=counting))
    path, record = recorded(other, keys())
    for _ in range(3):
        paths.log_ratio(record, path)
        paths.tv(record, path)
    assert (counting.runs, counting.states) == (1, 4 * 2 * STEPS)
    path[0, 0, 2, 0] += 1.0  # written into: asked about anew
    paths.log_prob(path)
    assert counting.runs == 2


@pytest.mark.parametrize("every", [1, 2, 3])
def test_paths_are_drawn_anew_from_any_state_on(every):
    paths = distribution(every, rows=STEPS + 2)
    mine, fresh = paths.sample(keys(STEPS + 2)), keys(STEPS + 2, seed=99)
    whole = paths.sample(fresh)
    first = torch.arange(STEPS + 2)[:, None].expand(-1, 2)
    found = paths.redrawn(mine, first, fresh)
    assert torch.equal(found[0], whole[0])  # 0: all of it, by the streams that sample uses
    assert torch.equal(found[-1], mine[-1])  # T + 1: nothing
    for row in range(1, STEPS + 1):
        assert torch.equal(found[row, :, :row], mine[row, :, :row])
        assert (found[row, :, row:] != mine[row, :, row:]).all()
    noise = fresh.branch(paths.streams).normal(SIZE)
    means = paths.steps(found).mean
    expected = means + paths.denoiser.noise_schedule.std[:, None] * noise[..., 1:, :]
    changed = torch.arange(1, STEPS + 1) >= first[..., None]
    assert torch.allclose(found[..., 1:, :][changed], expected[changed], atol=1e-12)
    for only in (2, STEPS):  # begun in the middle, where outputs of an earlier state may still stand
        alone = replace(paths, z=paths.z[only:]).redrawn(mine[only:], first[only:], fresh[only:])
        assert torch.allclose(alone, found[only:], atol=1e-12)


def test_distributions_are_picked_and_joined_as_their_conditions_are():
    paths, other = distribution(), distribution(away=0.3)
    x = paths.sample(keys())
    rows, columns = torch.tensor([[3, 0]]), torch.tensor([[1, 0]])
    assert torch.allclose(paths.picked(rows, columns).log_prob(x[rows, columns]), paths.log_prob(x)[rows, columns])
    assert torch.allclose(paths.last(1).log_prob(x[:, 1:]), paths.log_prob(x)[:, 1:])
    assert torch.allclose(paths.cat(paths).log_prob(torch.cat([x, x], 1)), torch.cat([paths.log_prob(x)] * 2, 1))
    with pytest.raises(ValueError, match="has no table of values"):
        paths.probs()
    with pytest.raises(ValueError, match="every is 0"):
        replace(paths.denoiser, every=0)
    assert torch.equal(paths.draws(keys(), torch.tensor([[0, 1]] * 4), x), torch.ones(4, 2, dtype=torch.bool))
    assert not paths.draws(keys(), torch.tensor([[0, 1]] * 4), other.sample(keys())).any()
    assert (paths.mode()[..., 0, :] == 0).all()


# --- the token rule over paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_paths_have_the_targets_distribution(every, ragged):
    """Whatever the drafter: also one that reuses what its net said."""
    target, drafter = path_pair(2, 4, away=0.2)
    assert bias(target, PathTarget(replace(drafter.denoiser, every=every), 2), Token(), 5000, 2, ragged=ragged) > PASS


class Unweighed(DenoisingPath):
    """Ratios by the mean over a path's numbers, not their sum."""

    def log_ratio(self, q, x):
        return super().log_ratio(q, x) / (self.denoiser.steps * self.width)


class Shifted(DenoisingPath):
    """Every state is judged by the distribution of the one behind it."""

    def log_ratio(self, q, x):
        return self.steps(x).log_ratio(q.steps(x), x[..., :-1, :]).sum(-1)


@pytest.mark.parametrize("mutant", [Unweighed, Shifted])
def test_a_wrong_ratio_shows(mutant):
    target, drafter = path_pair(2, 4, away=0.3)

    class Wrong(PathTarget):
        def distribution(self, nodes: Tensor) -> DenoisingPath:
            return kept_as(mutant, super().distribution(nodes))

    run = one_round(Wrong(target.denoiser, target.size), drafter, Token(), 7000, 2)
    assert projection(residuals(target, drafter, run.paths, run.before)) < FAIL


def kept_as(kind: type, plain: DenoisingPath) -> DenoisingPath:
    """`plain` as a distribution of `kind`, which stays one where it is picked from."""

    class Kept(kind):  # pyright: ignore[reportGeneralTypeIssues]
        def picked(self, rows, columns):
            return kept_as(kind, super().picked(rows, columns))

    return Kept(plain.z, plain.denoiser, plain.width)


def test_a_residual_that_is_the_target_itself_shows(monkeypatch):
    monkeypatch.setattr(DenoisingPath, "residual", lambda self, q, x, weight=None: self)
    assert bias(*path_pair(2, 4, away=0.3), Token(), 7000, 2) < FAIL


def test_a_target_that_drafts_for_itself_is_never_refused(monkeypatch):
    """And nothing is drawn again and again."""
    target, _ = path_pair(2, 4)

    def never(*_):
        raise AssertionError("thinning was asked for")

    monkeypatch.setattr(ResidualByThinning, "_tries", never)
    verdict = one_round(target, target, Token(), 500, 3).verdict
    assert (verdict.accepted == 3).all()


def test_acceptance_is_what_the_gap_of_the_paths_says():
    """2 Phi(-sqrt(K) / 2) exactly where K does not hang on the path; and -K/2 is the mean log-ratio."""
    noise_schedule = chain_kernel(STEPS, noise=0.8)
    away = torch.tensor([0.25, -0.1, 0.2]).double()

    def near(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(x + z)

    def far(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        return near(x, timesteps, z) + away

    target, drafter = (PathTarget(Denoiser(net, noise_schedule), SIZE) for net in (near, far))
    gap = noise_schedule.gap(torch.zeros(STEPS, SIZE).double(), away.expand(STEPS, SIZE)).item()
    run = one_round(target, drafter, Token(), 20_000, 1)
    p, q = (model.distribution(run.draft.nodes[:, :1]) for model in (target, drafter))
    ratios = p.log_ratio(q, run.draft.draft_tokens)[:, 0]
    assert stats.kstest(((ratios + gap / 2) / gap**0.5).numpy(), "norm").pvalue > PASS
    expected = 2 * stats.norm.cdf(-(gap**0.5) / 2)
    assert abs(run.verdict.accepted.double().mean() - expected) < 4 * (expected * (1 - expected) / 20_000) ** 0.5
    assert run.verdict.expected is not None
    assert abs(run.verdict.expected.mean() - (1 - expected)) < 0.02


def test_one_more_chain_is_drawn_for_every_token_judged(monkeypatch):
    """In the mean: 1 / TV tries for each of the TV that are refused. The first draw of a column is made whether it is used or not."""
    target, drafter = path_pair(2, 4, away=0.3)
    tried, whole = [], thinning.ResidualByThinning._kept

    def counted(self, f, keys):
        kept = whole(self, f, keys)
        tried.append((self, kept))
        return kept

    monkeypatch.setattr(ResidualByThinning, "_kept", counted)
    monkeypatch.setattr(thinning, "_ABREAST", 1)
    rows = 6000
    verdict = one_round(target, drafter, Token(), rows, 1).verdict
    refused = verdict.accepted == 0
    more = sum(int(kept.numel()) for _, kept in tried[1:])
    assert more > 100
    assert abs((int(refused.sum()) + more) / rows - 1) < 0.15


def test_paths_of_one_number_in_two_steps_are_accepted_with_the_mass_both_share():
    """Integral of min(P, Q) over (x_1, x_0), by Gauss-Legendre; and min(P, Q) + (P - Q)+ is P at every point."""
    noise_schedule = NoiseSchedule(
        torch.tensor([2, 1]), torch.tensor([0.6, 0.8]).double(), torch.tensor([0.5, 0.4]).double(), torch.tensor([0.7, 0.5]).double()
    )
    target, drafter = (PathTarget(Denoiser(TanhNet(1, 0, away), noise_schedule), 1) for away in (0.0, 0.8))
    node, weight = (torch.from_numpy(part) * 7 for part in legendre.leggauss(400))
    x1, x0 = (side.flatten() for side in torch.meshgrid(node, node, indexing="ij"))
    path = torch.stack([torch.full_like(x1, 0.3), x1, x0], -1)[:, None, :, None]
    z = torch.full((len(x1), 1, 1), 0.4, dtype=torch.float64)
    p, q = (DenoisingPath(z, model.denoiser, 1) for model in (target, drafter))
    area = (weight[:, None] * weight).flatten()
    assert (p.prob(path)[:, 0] * area).sum().item() == pytest.approx(1, abs=1e-6)
    chance = Token().accept_prob(p, q, path)[:, 0]
    shared = (q.prob(path)[:, 0] * chance * area).sum()
    left = p.prob(path)[:, 0] * ResidualByThinning(p, q, path).keep_prob(path)[:, 0]
    emitted = q.prob(path)[:, 0] * chance + left / (left * area).sum() * (1 - shared)
    assert (emitted - p.prob(path)[:, 0]).abs().max() < 1e-4  # the bend at P = Q limits the sums over the grid
    assert (q.prob(path)[:, 0] * chance + left - p.prob(path)[:, 0]).abs().max() < 1e-12
    assert abs((left * area).sum() + shared - 1) < 1e-6


def test_steps_are_the_kernels_gaussians():
    paths = distribution()
    found = paths.steps(paths.sample(keys()))
    assert isinstance(found, Gaussian)
    assert torch.equal(found.scale[..., 0], paths.denoiser.noise_schedule.std.expand(4, 2, -1))
