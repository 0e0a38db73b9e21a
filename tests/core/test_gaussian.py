"""Gaussians under the rules of single values: densities by quadrature, and whole runs against a joint distribution in closed form."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.distributions import reflection
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.thinning import ResidualByThinning
from mmspec.core.noise import Noise
from mmspec.core.rules.block import Block, _Weighted
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, drawn, most_likely, sampled
from tests.oracles.gaussians import (
    REJECTED,
    FromTarget,
    Markov,
    MeanOverDims,
    NoRollback,
    SigmaFactor,
    emitted_error,
    grid,
    linear_pair,
    lines,
    nodes,
    normal,
    projected,
    streams,
    vectors_run,
    within,
)

TINY, SEEN, PASS = 1e-9, 1e-3, 0.01


def distribution(mean, scale, rows: int = 1) -> Gaussian:
    mean, scale = (torch.tensor(part, dtype=torch.float64) for part in (mean, scale))
    return Gaussian(mean.expand(rows, 1, -1), scale)


EQUAL = {1: (([0.4], [0.8]), ([-0.5], [0.8])), 2: (([0.4, -0.2], [0.8, 0.5]), ([-0.3, 0.1], [0.8, 0.5]))}
UNEQUAL = {1: (([0.4], [0.8]), ([-0.5], [1.1])), 2: (([0.4, -0.2], [0.8, 0.5]), ([-0.3, 0.1], [0.6, 0.9]))}
GRIDS = {1: (9.0, 4001), 2: (7.0, 401)}


# --- one value --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("scales", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_the_token_rule_commits_the_targets_density(scales, width):
    x, cell = grid(width, *GRIDS[width])
    p, q = (distribution(mean, scale, len(x)) for mean, scale in scales[width])
    assert emitted_error(Token(), p, q, x, cell) < TINY
    for mutant in (FromTarget(), SigmaFactor()) + ((MeanOverDims(),) if width > 1 else ()):
        assert emitted_error(mutant, p, q, x, cell) > SEEN
    accepts = (q.prob(x) * Token().accept_prob(p, q, x)).sum() * cell
    assert abs(accepts - torch.minimum(p.prob(x), q.prob(x)).sum() * cell) < TINY
    assert abs((q.prob(x) * p.tv(q, x)).sum() * cell - (1 - accepts)) < 1e-4  # its meter; a kink and a coarse grid


@pytest.mark.parametrize("width", [1, 2])
def test_guided_gaussians_are_the_normalised_product(width):
    x, cell = grid(width, *GRIDS[width])
    cond, uncond = (distribution(*of, len(x)) for of in UNEQUAL[width])
    uncond = replace(uncond, scale=uncond.scale + 0.5)  # wider: nothing to clamp
    for weight in (0.0, 0.7, 2.0):
        product = ((1 + weight) * cond.log_prob(x) - weight * uncond.log_prob(x)).exp()[:, 0]
        guided = Gaussian.guided(cond, uncond, weight)
        assert (guided.prob(x)[:, 0] - product / (product.sum() * cell)).abs().max() < TINY
        other = Gaussian.guided(distribution([0.2] * width, [0.7] * width, len(x)), uncond, weight)
        assert emitted_error(Token(), guided, other, x, cell) < TINY


def test_guidance_without_a_density_is_clamped():
    """Where (1 + w) / s_c^2 <= w / s_u^2, s_u is taken for s_c; elsewhere nothing is touched."""
    cond, uncond = distribution([1.0, 1.0], [1.0, 1.0]), distribution([0.0, 0.0], [0.5, 0.9])
    found = Gaussian.guided(cond, uncond, 1.0)
    assert found.mean[0, 0, 0] == 2.0
    assert found.scale[0, 0, 0] == 1.0
    precision = 2.0 - 1 / 0.81
    assert abs(found.scale[0, 0, 1] - precision**-0.5) < TINY
    assert abs(found.mean[0, 0, 1] - 2.0 / precision) < TINY
    assert torch.equal(Gaussian.guided(cond, uncond, 0.0).mean, cond.mean)
    point = Gaussian.guided(distribution([1.0], [0.0]), distribution([0.0], [0.5]), 3.0)
    assert (point.mean.item(), point.scale.item()) == (1.0, 0.0)


def test_log_probabilities_are_those_of_torch():
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    p = Gaussian(torch.zeros(5, 3, 4) + 0.3, torch.tensor([0.5, 1.0, 2.0, 0.1]))
    own = torch.distributions.Normal(p.mean.double(), p.scale.double()).log_prob(x.double()).sum(-1)
    assert (p.log_prob(x) - own).abs().max() < TINY
    assert p.log_prob(x).dtype == torch.float64
    assert p.sample(streams(5, columns=3)).dtype == torch.float32
    for scale in (p.scale, p.scale + 0.2, torch.full((1,), 0.4)):
        q = Gaussian(p.mean - 0.2, scale)
        assert (p.log_ratio(q, x) - (p.log_prob(x) - q.log_prob(x))).abs().max() < 1e-6
    assert torch.equal(p.log_ratio(None, x), torch.full((5, 3), -torch.inf, dtype=torch.float64))


def test_small_gaps_are_not_lost():
    """Of means that differ by less than their distance to x can tell: the ratio is made of the gap itself."""
    p, q = distribution([1e-12], [1.0]), distribution([0.0], [1.0])
    x = torch.full((1, 1, 1), 30.0, dtype=torch.float64)
    assert abs(p.log_ratio(q, x).item() / 3e-11 - 1) < 1e-12
    assert abs(p.tv(q, x).item() / (1e-12 * 0.3989422804) - 1) < 1e-9


@pytest.mark.parametrize("width", [1, 8, 64])
@pytest.mark.parametrize("gap", [0.0, 0.02, 0.2, 1.0, 3.0])
def test_acceptance_and_the_distribution_along_and_across(gap, width):
    rows = 10_000
    scale = torch.linspace(0.5, 2.0, width).double()
    at = torch.randn(width, generator=torch.Generator().manual_seed(1)).double()
    p, q = (Gaussian((m * scale).expand(rows, 1, width), scale) for m in (gap * at / at.norm(), torch.zeros(width).double()))
    keys = streams(rows, seed=width)
    x = q.sample(keys)
    chance = Token().accept_prob(p, q, x)
    taken = streams(rows, seed=10**6).below(chance)
    y = torch.where(taken[..., None], x, p.residual(q, x).sample(streams(rows, seed=10**7)))
    assert within(taken, reflection.agreement(torch.tensor(gap)).expand(rows)) or gap == 0
    assert gap > 0 or taken.all()
    z = ((y - p.mean) / p.scale)[:, 0]
    assert normal(z @ (at / at.norm())) > 1e-4
    assert lines(z) > 1e-4
    if gap >= 1:
        wrong = torch.where(taken[..., None], x, p.sample(streams(rows, seed=10**7)))
        assert normal(((wrong - p.mean) / p.scale)[:, 0] @ (at / at.norm())) < REJECTED


@pytest.mark.parametrize("weight", [1.0, 0.6, 0.1])
def test_weighted_residuals_agree_with_thinning(weight):
    """Two ways to draw from norm((w p - q)+): the half-line distribution, and trying until one is kept."""
    rows = 4_000
    p, q = (distribution(*of, rows) for of in EQUAL[2])
    weights = torch.full((rows, 1), weight).double()
    x = q.sample(streams(rows, seed=5))
    ways = (
        p.residual(q, x, weights).sample(streams(rows, seed=50_000)),
        ResidualByThinning(p, q, x, weights).sample(streams(rows, seed=90_000)),
    )
    e = reflection.direction(p.gap(q))
    pit = []
    for found in ways:
        z = (found - q.mean) / q.scale
        s = (z * e).sum(-1)
        length, mass = reflection.distance(p.gap(q)), p.mass(q, x, weights)
        pit.append(torch.special.ndtri((reflection.beyond(weights, length, s) / mass).clamp(1e-12, 1 - 1e-12)))
        assert normal(pit[-1]) > 1e-4
        assert normal((z * torch.stack([e[..., 1], -e[..., 0]], -1)).sum(-1)) > 1e-4
    if weight < 1:
        loose = (p.residual(q, x).sample(streams(rows)) - q.mean) / q.scale  # reflected, as if there were no weight
        s = (loose * e).sum(-1)
        wrong = (reflection.beyond(weights, length, s) / mass).clamp(1e-12, 1 - 1e-12)
        assert normal(torch.special.ndtri(wrong)) < REJECTED


def test_points_are_accepted_where_they_are_equal():
    mean = torch.tensor([[[1.0, 2.0]], [[1.0, 2.5]], [[1.0, 2.0]]]).double()
    p, q = Gaussian(mean, torch.tensor([0.5, 0.0])), Gaussian(torch.tensor([0.8, 2.0]).double().expand(3, 1, 2), torch.tensor([0.5, 0.0]))
    x = q.sample(streams(3))
    accepts = Token().accept_prob(p, q, x)
    assert (accepts[[0, 2]] > 0).all()
    assert accepts[1] == 0
    assert torch.equal(p.residual(q, x).sample(streams(3))[..., 1], mean[..., 1])
    assert torch.equal(p.residual(q, x, torch.ones(3, 1)).sample(streams(3))[..., 1], mean[..., 1])
    assert p.tv(q, x)[1] == 1
    wide = replace(q, scale=torch.tensor([0.5, 0.3]).expand(3, 1, 2))
    assert (Token().accept_prob(p, wide, wide.sample(streams(3, seed=9))) == 0).all()
    assert (Token().accept_prob(wide, p, p.sample(streams(3, seed=9))) == 0).all()
    both = replace(p, scale=torch.zeros_like(p.scale))
    assert torch.equal(Token().accept_prob(both, both, both.mean), torch.ones(3, 1).double())
    assert torch.equal(both.residual(wide, wide.mean).sample(streams(3)), both.mean)
    rows = 20_000
    p, q = distribution([0.3, 1.0], [0.5, 0.0], rows), distribution([0.0, 2.0], [0.5, 0.0], rows)  # nothing in common: all of p is left
    y = p.residual(q, q.sample(streams(rows))).sample(streams(rows, seed=77_777))
    assert normal((y[..., 0] - 0.3) / 0.5) > 1e-4


# --- block verification, by quadrature --------------------------------------------------------------------------------


class Unweighted(_Weighted):
    def replacement(self, p, q, x):
        return p.residual(q, x)


def block_density(rule: type[Block], weighted: bool = True) -> tuple[Tensor, Tensor]:
    """[X1, X2] density of the first two values when two draft tokens are judged by `rule` and what is missing is drawn from the target,
    and the target's own. Every integral runs between its integrand's kinks."""
    one = (0.5, -0.3, 0.8)  # target's and drafter's mean of the first value, scale

    def distributions(x1: Tensor, x: Tensor) -> tuple[Gaussian, Gaussian]:
        """[R, 2]: of the first value, and of the second given `x1` [R]."""
        first = torch.full_like(x1, one[0]), torch.full_like(x1, one[1])
        second = 0.6 * x1 + 0.2, 0.3 * x1 - 0.2
        scale = torch.tensor([one[2], 0.5]).double()[None, :, None].expand(len(x1), 2, 1)
        return tuple(Gaussian(torch.stack([a, b], 1)[..., None], scale) for a, b in zip(first, second, strict=True))  # pyright: ignore

    def parts(x1: Tensor, x2: Tensor) -> tuple[Tensor, ...]:
        """Of pairs [R]: densities p1, p2, q1, q2, reach r1, and stopping chances h1, h2."""
        x = torch.stack([x1, x2], 1)[..., None]
        p, q = distributions(x1, x)
        reach = rule.reach(p, q, x)
        keep = rule.keep_prob(p, q, x, reach, torch.ones(len(x1), 2, dtype=torch.bool))
        return *p.prob(x).unbind(1), *q.prob(x).unbind(1), reach[:, 1], *keep.unbind(1)

    def kink(r1: Tensor, x1: Tensor) -> Tensor:
        """Where r1 p2 = q2 in x2."""
        p, q = (m / 0.5 for m in (0.6 * x1 + 0.2, 0.3 * x1 - 0.2))
        gap = (p - q).abs()
        return 0.5 * (q + torch.where(p > q, 1, -1) * reflection.edge(r1, gap))

    def unstopped(x1: Tensor) -> Tensor:
        """[R] the chance that the second draft token is not where it ends, given the first."""
        r1 = parts(x1, x1)[4]
        low, high = 0.3 * x1 - 5.2, 0.3 * x1 + 4.8
        at, by = nodes(low, torch.clamp(kink(r1, x1).nan_to_num(0), low, high), high, count=40)
        _, _, _, q2, _, _, h2 = parts(x1[:, None].expand_as(at).flatten(), at.flatten())
        return (q2 * (1 - h2)).view(at.shape).mul(by).sum(-1)

    x1, x2 = torch.linspace(-1.5, 1.9, 23).double(), torch.linspace(-1.6, 1.7, 27).double()
    a, b = (part.flatten() for part in torch.meshgrid(x1, x2, indexing="ij"))
    p1, p2, q1, q2, r1, h1, h2 = parts(a, b)
    reach = r1[:, None]
    p, q = distributions(a, b)
    p_first, p_second, q_first, q_second = p.at(torch.zeros(len(a), 1).long()), p.last(1), q.at(torch.zeros(len(a), 1).long()), q.last(1)
    weight = reach if weighted else torch.ones_like(reach)
    left = (weight[:, 0] * p2 - q2).clamp(min=0) / p_second.mass(q_second, b, weight)[:, 0].clamp_min(1e-300)
    drop = unstopped(x1)
    kinks = sorted([0.1, -5.8, 5.2])  # p1 = q1 halfway between the means
    at, by = nodes(*kinks, count=80)
    f1 = parts(at, at)
    none = (f1[2] * (1 - f1[5]) * unstopped(at) * by).sum()
    first = (p1 - q1).clamp(min=0) / p_first.mass(q_first, a, torch.ones_like(reach))[:, 0]
    density = q1 * q2 * h2 + q1 * h1 * drop.repeat_interleave(len(x2)) * left + none * first * p2
    return density, p1 * p2


def test_block_verification_commits_the_joint_density():
    found, goal = block_density(Block)
    assert (found - goal).abs().max() < 1e-8


def test_block_mutants_do_not():
    found, goal = block_density(Block, weighted=False)
    assert (found - goal).abs().max() > SEEN

    class Unclipped(Block):
        @staticmethod
        def reach(p, q, x):
            return torch.cat([torch.ones(len(x), 1).double(), p.log_ratio(q, x).exp().cumprod(1).clamp(max=1)], 1)

    class Naive(Block):
        """Stops by how much of the target is left in reach, not by how much of it lies ahead."""

        @staticmethod
        def keep_prob(p, q, x, reach, valid):
            return reach[:, 1:]

    for mutant in (Unclipped, Naive):
        found, goal = block_density(mutant)
        assert (found - goal).abs().max() > 1e-4


# --- whole runs -------------------------------------------------------------------------------------------------------


class BlockUnweighted(Block):
    def __call__(self, draft, scored, noise):
        class Plain:
            """Target distributions whose residual forgets its weight."""

            def __init__(self, distribution):
                self.distribution = distribution

            def __getattr__(self, name):
                return getattr(self.distribution, name)

            def at(self, index):
                return Plain(self.distribution.at(index))

            def residual(self, q, x, weight=None):
                return Again(self.distribution.residual(q, x, None), self.distribution)

        @dataclass
        class Again:
            left: object
            distribution: Gaussian

            def where(self, mask, other):
                return self.left.where(mask, self.distribution)  # pyright: ignore[reportAttributeAccessIssue]

        return super().__call__(draft, replace(scored, p=Plain(scored.p)), noise)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("rule", [Token(), Block()], ids=lambda rule: type(rule).__name__)
def test_whole_runs_have_the_joint_distribution(rule, length):
    p, q = linear_pair()
    rows, most = 3_000, 5
    runs, stats = vectors_run(p.target, ModelDrafter(q.target), rule, rows, most=most, length=length)
    assert runs.shape == (rows, most, 2)
    assert projected(p, q, runs) > PASS
    assert lines(p.whitened(runs)) > PASS
    assert 0 < stats.accepted < stats.judged
    drafted, _ = vectors_run(q.target, NoDraft(), Match(), rows, most=most, length=0)
    assert projected(p, q, drafted) < REJECTED
    assert lines(p.whitened(drafted)) < REJECTED


@pytest.mark.parametrize(
    "rule", [FromTarget(), NoRollback(), MeanOverDims(), SigmaFactor(), BlockUnweighted()], ids=lambda r: type(r).__name__
)
def test_planted_bugs_are_seen(rule):
    p, q = linear_pair(gap=1.0)
    runs, _ = vectors_run(p.target, ModelDrafter(q.target), rule, 6_000, most=8, length=6)
    assert projected(p, q, runs) < REJECTED


@pytest.mark.parametrize("rule", [Token(), Block()], ids=lambda rule: type(rule).__name__)
def test_exact_rules_pass_where_the_bugs_are_seen(rule):
    p, q = linear_pair(gap=1.0)
    assert projected(p, q, vectors_run(p.target, ModelDrafter(q.target), rule, 6_000, most=8, length=6)[0]) > PASS


def test_draft_tokens_that_come_again_after_a_rejection_bend_a_block():
    """Where a block ends depends on the draft tokens behind its end: drawn from the same numbers in the next round, they are no draws of
    q."""

    class Again(Noise):
        def draft_token(self, position, start, branch=0):
            return self.shared(position)

    p, q = linear_pair(gap=1.0)
    noise = Again(Noise.from_seed(0, 6_000).seeds)
    out = generate(p.target, ModelDrafter(q.target), Block(), 6_000, stopping=DefaultStopping(6_000, 8), noise=noise, control=Fixed(6))
    assert projected(p, q, out.sequences) < REJECTED


def test_block_accepts_more():
    p, q = linear_pair(gap=1.0)
    shares = [
        vectors_run(p.target, ModelDrafter(q.target), rule, 3_000, most=12, length=6)[1].tokens_per_call for rule in (Token(), Block())
    ]
    assert shares[1] > 1.005 * shares[0]


def test_long_chains_of_steps_that_hardly_differ():
    """Block verification over forty steps: gaps so small that little is left anywhere, and reach falls and rises again."""
    p, q = linear_pair(gap=0.05)
    runs, stats = vectors_run(p.target, ModelDrafter(q.target), Block(), 300, most=40, length=40)
    assert projected(p, q, runs) > PASS
    assert stats.accepted > 0.9 * stats.judged


@pytest.mark.parametrize("scales", [True, False], ids=["equal", "unequal"])
def test_a_nonlinear_chain_is_exact(scales):
    """Thinning in the loop, too, where the drafter's scales are its own."""

    def step(x: Tensor, by: float, scale: float) -> Gaussian:
        return Gaussian(torch.tanh(by * x) + 0.3, torch.tensor([scale, 0.7]).double())

    def p(x):
        return step(x, 1.3, 0.5)

    def q(x):
        return step(x, 0.8, 0.5 if scales else 0.65)

    runs, stats = vectors_run(Markov(p, 2), ModelDrafter(Markov(q, 2)), Token(), 2_000, most=5, length=3)
    assert projected(p, q, runs) > PASS
    assert 0 < stats.accepted < stats.judged


def test_a_row_is_the_same_alone_and_in_a_batch():
    p, q = linear_pair()
    for rule in (Token(), Block()):
        together, _ = vectors_run(p.target, ModelDrafter(q.target), rule, 5, most=8, length=3, seed=[4, 7, 1, 9, 2])
        for row, seed in enumerate([4, 7, 1, 9, 2]):
            assert torch.equal(vectors_run(p.target, ModelDrafter(q.target), rule, 1, most=8, length=3, seed=[seed])[0][0], together[row])


def test_the_target_drafting_for_itself_is_never_refused():
    p, _ = linear_pair()
    for rule in (Token(), Block()):
        _, stats = vectors_run(p.target, ModelDrafter(p.target), rule, 20, most=9, length=4)
        assert stats.accepted == stats.judged > 0
    plain, _ = vectors_run(p.target, NoDraft(), Match(), 6, most=7, length=0)
    for rule, draw in ((Coupled(), drawn), (Match(), most_likely), (Match(), sampled)):
        assert torch.equal(vectors_run(p.target, ModelDrafter(p.target, Chain(draw)), rule, 6, most=7, length=3)[0], plain)
    greedy, _ = vectors_run(p.target, NoDraft(), Greedy(), 2, most=7, length=0)
    found, stats = vectors_run(p.target, ModelDrafter(p.target, Chain(most_likely)), Greedy(), 2, most=7, length=3)
    assert torch.equal(found, greedy)
    assert stats.accepted == stats.judged


def test_draft_tokens_that_were_not_drawn_are_refused():
    """A point shares nothing with a density: every draft token is lost, and the run is plain sampling's distribution."""
    p, q = linear_pair()
    runs, stats = vectors_run(p.target, ModelDrafter(q.target, Chain(most_likely)), Token(), 500, most=4, length=2)
    assert stats.accepted == 0
    assert projected(p, q, runs) > PASS


# --- shapes and refusals ----------------------------------------------------------------------------------------------


def test_distributions_join_and_select():
    p = Gaussian(torch.randn(4, 2, 3), torch.rand(4, 2, 3))
    q = Gaussian(torch.randn(4, 2, 3), torch.tensor([0.5]))
    both = p.cat(q)
    assert both.mean.shape == both.scale.shape == (4, 4, 3)
    assert torch.equal(both.last(2).mean, q.mean)
    assert torch.equal(both.at(torch.tensor([[2], [3], [0], [1]])).mean[2, 0], p.mean[2, 0])
    mask = torch.tensor([[True, False]] * 4)
    mixed = p.where(mask, q)
    assert torch.equal(mixed.log_prob(p.mean), torch.where(mask, p.log_prob(p.mean), q.log_prob(p.mean)))
    assert q.scale.shape == (4, 2, 1)
    assert p.mode() is p.mean


def test_refusals():
    with pytest.raises(ValueError, match="floating-point"):
        Gaussian(torch.zeros(2, 1, 3, dtype=torch.long), torch.ones(1))
    with pytest.raises(ValueError, match=r"scale is \[2\] for vectors of 3"):
        Gaussian(torch.zeros(2, 1, 3), torch.ones(2))
    p, q = (distribution(*of) for of in UNEQUAL[2])
    with pytest.raises(ValueError, match=r"scales of target and draft differ.*token"):
        p.mass(q, p.mean, torch.ones(1, 1))
    with pytest.raises(ValueError, match="has no table of values"):
        _ = p.scores
    with pytest.raises(ValueError, match="has no table of values"):
        p.probs()
