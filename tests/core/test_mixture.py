"""Mixtures: densities by quadrature and against torch's own, and whole runs by their distribution functions."""

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, StudentT

from mmspec.core.distributions.mixture import Mixture
from mmspec.core.rules.block import Block
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from tests.oracles.gaussians import REJECTED, FromTarget, Markov, NoRollback, emitted_error, grid, streams, vectors_run
from tests.oracles.statistics import uniform

TINY, SEEN, PASS = 1e-9, 1e-3, 1e-2


def parts(*shape: int, seed: int = 0, least: float = 0.4) -> tuple[Tensor, Tensor, Tensor]:
    """Log-weights without the last dimension where `shape` has three, means and scales."""
    generator = torch.Generator().manual_seed(seed)
    logits, mean, scale = (torch.randn(*size, generator=generator).double() for size in (shape[:-1] or shape, shape, shape))
    return logits, mean, least + 0.5 * scale.abs()


def joint(rows: int, width: int, seed: int = 0, count: int = 3) -> Mixture:
    return spread(Mixture.joint(*(part[None, None] for part in parts(count, width, seed=seed))), rows)


def per_channel(rows: int, width: int, seed: int = 0, count: int = 3) -> Mixture:
    _, mean, scale = parts(width, count, seed=seed)
    return spread(
        Mixture.per_channel(torch.linspace(-1, 1, count).double().expand(1, 1, width, -1), mean[None, None], scale[None, None]), rows
    )


def student(rows: int, width: int, seed: int = 0) -> Mixture:
    _, mean, scale = parts(1, width, seed=seed)
    return spread(Mixture.student(mean[None], scale[None], torch.full((1,), 30.0 - 4 * seed).double()), rows)


def spread(distribution: Mixture, rows: int) -> Mixture:
    return distribution.at(torch.zeros(1, 1).long()).picked(torch.zeros(rows, 1).long(), torch.zeros(rows, 1).long())


KINDS = {"joint": joint, "per channel": per_channel, "student": student}
GRIDS = {1: (30.0, 6001), 2: (9.0, 361)}


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("kind", ["joint", "per channel", "student"])
def test_the_token_rule_commits_the_targets_density(kind, width):
    if (kind, width) == ("student", 2):
        return  # tails too long for a plane: its coordinates are independent, and one is held to the distribution
    x, cell = grid(width, *GRIDS[width])
    p, q = (KINDS[kind](len(x), width, seed) for seed in (1, 2))
    assert emitted_error(Token(), p, q, x, cell) < TINY
    assert emitted_error(FromTarget(), p, q, x, cell) > SEEN
    cool, other = (distribution.tempered(0.9, 1.3) for distribution in (p, q))
    assert emitted_error(Token(), cool, other, x, cell) < TINY
    assert (cool.prob(x) - p.prob(x)).abs().max() > SEEN


class LastGroup(Token):
    """One channel's ratio for the whole vector."""

    def accept_prob(self, p, q, x):
        return (p.log_ratio(q, x) / 2).exp().clamp(max=1)


def test_a_value_is_the_whole_vector():
    x, cell = grid(2, *GRIDS[2])
    p, q = (per_channel(len(x), 2, seed) for seed in (1, 2))
    assert emitted_error(LastGroup(), p, q, x, cell) > SEEN


def test_densities_are_torchs_own():
    x = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(3)).double()
    logits, mean, scale = parts(3, 4)
    weights = torch.randn(3, generator=torch.Generator().manual_seed(9)).double()
    own = MixtureSameFamily(Categorical(logits=weights), Independent(Normal(mean, scale), 1)).log_prob(x)
    found = Mixture.joint(*(part.expand(5, 1, *part.shape) for part in (weights, mean, scale))).log_prob(x)
    assert (found - own).abs().max() < TINY
    logits, mean, scale = torch.randn(4, 3, generator=torch.Generator().manual_seed(8)).double(), mean.T, scale.T
    own = MixtureSameFamily(Categorical(logits=logits), Normal(mean, scale)).log_prob(x).sum(-1)
    found = Mixture.per_channel(*(part.expand(5, 1, *part.shape) for part in (logits, mean, scale))).log_prob(x)
    assert (found - own).abs().max() < TINY
    df = torch.tensor([2.5, 4.0, 9.0, 100.0]).double()
    own = StudentT(df, mean[:, 0], scale[:, 0]).log_prob(x).sum(-1)
    assert (Mixture.student(mean[:, 0].expand(5, 1, 4), scale[:, 0], df).log_prob(x) - own).abs().max() < TINY


def test_the_heads_of_transformers_time_series_models_fit():
    """What their student_t output says, affine scaling and all, is a `Mixture.student`; normal output is a `Gaussian`."""
    from transformers.time_series_utils import NormalOutput, StudentTOutput

    from mmspec.core.distributions.gaussian import Gaussian

    generator = torch.Generator().manual_seed(0)
    loc, scale, x = (torch.randn(3, 1, generator=generator).double() for _ in range(3))
    scale = 0.5 + scale.abs()
    df, mean, sigma = StudentTOutput.domain_map(*(torch.randn(3, 1, generator=generator).double() for _ in range(3)))
    theirs = StudentTOutput(dim=1).distribution((df, mean, sigma), loc[:, 0], scale[:, 0])
    own = Mixture.student((loc[:, 0] + scale[:, 0] * mean)[:, None, None], (scale[:, 0] * sigma)[:, None, None], df[:, None, None])
    assert (own.log_prob(x[:, None])[:, 0] - theirs.log_prob(x[:, 0])).abs().max() < 1e-6
    mean, sigma = NormalOutput.domain_map(*(torch.randn(3, 1, generator=generator).double() for _ in range(2)))
    theirs = NormalOutput(dim=1).distribution((mean, sigma), loc[:, 0], scale[:, 0])
    own = Gaussian((loc[:, 0] + scale[:, 0] * mean)[:, None, None], (scale[:, 0] * sigma)[:, None, None])
    assert (own.log_prob(x[:, None])[:, 0] - theirs.log_prob(x[:, 0])).abs().max() < 1e-6


def pit(distribution: Mixture, x: Tensor) -> Tensor:
    """[...] the distribution function of distributions of one number at `x` [..., 1]: uniform for draws."""
    if distribution.df is not None:
        z = ((x[..., None, None] - distribution.mean) / distribution.scale)[..., 0, 0, 0]
        return torch.from_numpy(stats.t.cdf(z.numpy(), distribution.df[..., 0, 0, 0].numpy()))
    below = torch.special.ndtr((x[..., None, None] - distribution.mean) / distribution.scale)[..., 0]
    return (below * distribution.logits.softmax(-1)).sum(-1)[..., 0]


@pytest.mark.parametrize("kind", ["joint", "per channel", "student"])
def test_draws_have_the_distribution(kind):
    rows = 20_000
    distribution = KINDS[kind](rows, 1)
    assert uniform(pit(distribution, distribution.sample(streams(rows)))) > PASS
    other = KINDS[kind](rows, 1, 3)
    assert uniform(pit(distribution, other.sample(streams(rows)))) < REJECTED


def test_a_joint_component_is_picked_for_the_whole_vector():
    """Two far components: coordinates agree on theirs; per channel they do not. And heavy tails stay independent."""
    rows = 4_000
    mean = torch.tensor([[-5.0, -5.0], [5.0, 5.0]]).double().expand(rows, 1, 2, 2)
    signs = Mixture.joint(torch.zeros(rows, 1, 2), mean, torch.ones(1)).sample(streams(rows)).sign()
    assert torch.equal(signs[..., 0], signs[..., 1])
    signs = Mixture.per_channel(torch.zeros(rows, 1, 2, 2), mean.mT, torch.ones(1)).sample(streams(rows)).sign()
    assert abs((signs[..., 0] == signs[..., 1]).double().mean() - 0.5) < 0.04
    x = Mixture.student(torch.zeros(rows, 1, 2).double(), torch.ones(1), torch.tensor([3.0])).sample(streams(rows))
    assert abs(stats.spearmanr(x[:, 0].numpy()).statistic) < 0.06  # pyright: ignore[reportAttributeAccessIssue]


# --- whole runs -------------------------------------------------------------------------------------------------------


def after(x: Tensor, seed: int, kind: str = "joint") -> Mixture:
    """The distribution of the next of a row of numbers: it moves with the last."""
    by = 0.5 + 0.2 * seed
    if kind == "student":
        return Mixture.student(
            torch.tanh(by * x) + 0.2 * seed, torch.tensor([0.6 + 0.1 * seed]).double(), torch.tensor([4.0 + seed]).double()
        )
    mean = torch.stack([torch.tanh(by * x) - 1, x * 0.3 + 1 + 0.2 * seed], -2)  # [B, N, 2, 1]
    scale = torch.tensor([[0.4 + 0.1 * seed], [0.8]]).double()
    return Mixture.joint(torch.cat([x, -0.5 * x], -1), mean, scale)


def target(seed: int, kind: str) -> Markov:
    return Markov(lambda x: after(x, seed, kind), 1)


def committed_pit(runs: Tensor, kind: str) -> float:
    before = torch.cat([torch.zeros_like(runs[:, :1]), runs[:, :-1]], 1)
    return uniform(pit(after(before, 0, kind), runs))


@pytest.mark.parametrize("kind", ["joint", "student"])
def test_whole_runs_have_the_distribution(kind):
    p, q, rows = target(0, kind), target(3, kind), 3_000
    runs, stats = vectors_run(p, ModelDrafter(q), Token(), rows, most=5, length=3)
    assert committed_pit(runs, kind) > PASS
    assert 0 < stats.accepted < stats.judged
    assert committed_pit(vectors_run(p, NoDraft(), Match(), rows, most=5, length=0)[0], kind) > PASS
    for bug in (FromTarget(), NoRollback()):
        assert committed_pit(vectors_run(p, ModelDrafter(q), bug, rows, most=5, length=3)[0], kind) < REJECTED


def test_a_mixture_is_the_same_alone_and_in_a_batch_and_never_refuses_itself():
    p, q = target(0, "joint"), target(2, "joint")
    together, _ = vectors_run(p, ModelDrafter(q), Token(), 4, most=6, length=3, seed=[3, 9, 1, 5])
    for row, seed in enumerate([3, 9, 1, 5]):
        assert torch.equal(vectors_run(p, ModelDrafter(q), Token(), 1, most=6, length=3, seed=[seed])[0][0], together[row])
    _, stats = vectors_run(p, ModelDrafter(p), Token(), 4, most=6, length=3)
    assert stats.accepted == stats.judged > 0


# --- shapes and refusals ----------------------------------------------------------------------------------------------


def test_distributions_join_and_select():
    p, q = (Mixture.joint(torch.randn(4, 2, 3), torch.randn(4, 2, 3, 5), torch.rand(4, 2, 3, 5) + 0.1) for _ in range(2))
    both, x = p.cat(q), torch.randn(4, 2, 5)
    assert torch.equal(both.last(2).log_prob(x), q.log_prob(x))
    assert torch.equal(both.at(torch.tensor([[2, 3]] * 4)).log_prob(x), q.log_prob(x))
    mask = torch.tensor([[True, False]] * 4)
    assert torch.equal(p.where(mask, q).log_prob(x), torch.where(mask, p.log_prob(x), q.log_prob(x)))
    assert p.mode().shape == p.sample(streams(4, columns=2)).shape == (4, 2, 5)
    heaviest = p.logits[1, 1, 0].argmax()
    assert torch.equal(p.mode()[1, 1], p.mean[1, 1, 0, heaviest])
    assert p.sample(streams(4, columns=2)).dtype == torch.float32
    t = Mixture.student(torch.zeros(4, 2, 3), torch.ones(1), torch.tensor([3.0]))
    assert t.cat(t).df is not None


def test_refusals():
    with pytest.raises(ValueError, match=r"temperature is 0.*above 0"):
        joint(1, 2).tempered(0)
    with pytest.raises(ValueError, match=r"do not fit.*Mixture\.joint"):
        Mixture(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3), torch.ones(2, 1, 3))
    with pytest.raises(ValueError, match="has no table of values"):
        vectors_run(target(0, "joint"), ModelDrafter(target(2, "joint")), Block(), 2, most=4, length=2)
