"""Several drafts of one Gaussian step: densities by quadrature, acceptance in closed form, and trees in whole runs."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions import reflection
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.mixture import Mixture
from mmspec.core.noise import Noise
from mmspec.core.rules.d_grs import DGRS, Claimed, dgrs
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, Comb, draw_with_replacement, draw_without_replacement, sampled
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.gaussians import REJECTED, Markov, grid, linear_pair, lines, nodes, normal, projected, streams, vectors_run, within
from tests.oracles.tables import one_round

TINY, SEEN, PASS = 1e-9, 1e-3, 0.01


def distribution(mean: list[float], scale: list[float], rows: int) -> Gaussian:
    mean_, scale_ = (torch.tensor(part, dtype=torch.float64) for part in (mean, scale))
    return Gaussian(mean_.expand(rows, 1, -1), scale_)


def pair(width: int, rows: int, gap: float = 1.0) -> tuple[Gaussian, Gaussian]:
    scale = [0.8, 0.5][:width]
    at = [gap / width**0.5 * s for s in scale]
    return distribution(at, scale, rows), distribution([0.0] * width, scale, rows)


def committed(rule: DGRS, p: Any, q: Any, x: Tensor, refused: list[float]) -> Tensor:
    """[M] density of what is committed at `x` [M, 1, d], distributions [M, 1]: sibling after sibling, then what is left of p.

    `refused` [K] are the chances of refusing each sibling, by quadrature of the same rule.
    """
    siblings, count = len(refused), torch.full((len(x), 1), len(refused))
    left, still, found = p, 1.0, torch.zeros(len(x)).double()
    for j in range(siblings):
        found = found + still * (q.prob(x) * rule.take_prob(left, q, x, j, count))[:, 0]
        left, _ = rule.refuse(left, q, x, j, count)
        still *= refused[j]
    over = (p.prob(x) - left.claim * q.prob(x)).clamp(min=0)[:, 0]
    return found + still * over / left.mass[:, 0]


def refusals(rule: DGRS, gap: float, siblings: int) -> list[float]:
    """The chance that each sibling is refused given that those before it were, in the one coordinate that matters."""
    claims, found, left = [0.0], [], None
    for j in range(siblings):
        p, q = distribution([gap], [1.0], 1), distribution([0.0], [1.0], 1)
        now = Claimed.of(p, q, torch.ones(1, 1)) if left is None else left
        tops = [claim + float(now.mass) for claim in claims[-1:]]
        kinks = sorted(gap / 2 + math.log(k) / gap for k in {claims[-1], *tops} if k > 0)
        s, by = nodes(-12.0, *kinks, 16.0, count=80)
        many = Claimed(distribution([gap], [1.0], len(s)), distribution([0.0], [1.0], len(s)), now.claim.expand(len(s), 1))
        x = s[:, None, None]
        chance = rule.take_prob(many, many.q, x, j, torch.full((len(s), 1), siblings))[:, 0]
        found.append(float(((1 - chance) * many.q.prob(x)[:, 0] * by).sum()))
        left = now.refused()
        claims.append(float(left.claim))
    return found


class Unclaimed(DGRS):
    """Each sibling judged as if it were the first."""

    def refuse(self, p, q, x, index, count) -> tuple[Any, Any]:
        return replace(Claimed.of(p, q, count), claim=torch.ones_like(count).double()), q

    def take_prob(self, p, q, x, index, count):
        now = Claimed.of(p, q, count)
        return replace(now, claim=torch.zeros_like(now.claim)).taken(x)


class NotScaled(DGRS):
    """What is left of p not measured by its mass."""

    def take_prob(self, p, q, x, index, count):
        now = Claimed.of(p, q, count)
        return (now.p.log_ratio(now.q, x).exp() - now.claim).clamp(0, 1)


@pytest.mark.parametrize("siblings", [1, 2, 3])
@pytest.mark.parametrize("gap", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 2])
def test_the_committed_density_is_the_targets(width, gap, siblings):
    x, _ = grid(width, 4.0, 401 if width == 1 else 61)
    p, q = pair(width, len(x), gap)
    found = committed(DGRS(), p, q, x, refusals(DGRS(), gap, siblings))
    assert (found - p.prob(x)[:, 0]).abs().max() < TINY
    if siblings > 1:
        for mutant in (Unclaimed(), NotScaled()):
            wrong = committed(mutant, p, q, x, refusals(mutant, gap, siblings))
            assert (wrong - p.prob(x)[:, 0]).abs().max() > SEEN * gap


@pytest.mark.parametrize("gap", [0.05, 0.5, 1.0, 3.0])
def test_acceptance_is_what_is_claimed(gap):
    """One sibling: 2 Phi(-gap/2). Every further one adds something. The walk's own meter says the same."""
    p, q = pair(1, 1, gap)
    left, chances = Claimed.of(p, q, torch.ones(1, 1)), []
    for j in range(4):
        meter = DGRS().refusal(left, q, q.mean, j, torch.ones(1, 1))
        assert abs(float(meter) - refusals(DGRS(), gap, j + 1)[-1]) < TINY
        left = left.refused()
        chances.append(1 - float(left.mass))
    assert abs(chances[0] - float(reflection.agreement(torch.tensor(gap).double()))) < TINY
    assert chances == sorted(chances)
    assert chances[0] < chances[1] < chances[3] < 1
    assert abs(math.prod(refusals(DGRS(), gap, 3)) - (1 - chances[2])) < TINY


def test_what_is_left_is_a_half_line():
    """Drawn, along and across; the mutant draws from (p - q)+ whatever was claimed."""
    rows, gap = 6_000, 1.0
    p, q = pair(2, rows, gap)
    left = Claimed.of(p, q, torch.ones(rows, 1)).refused().refused()
    e = reflection.direction(p.gap(q))

    def along(distribution: Claimed) -> Tensor:
        return (((distribution.sample(streams(rows)) - q.mean) / q.scale) * e).sum(-1)

    def judged(s: Tensor) -> float:
        weight, length = 1 / left.claim, reflection.distance(p.gap(q))
        rest = reflection.beyond(weight, length, s) / reflection.mass(weight, length)
        return normal(torch.special.ndtri(rest.clamp(1e-12, 1 - 1e-12)))

    assert judged(along(left)) > PASS
    assert judged(along(replace(left, claim=torch.ones_like(left.claim)))) < REJECTED
    z = (left.sample(streams(rows)) - q.mean) / q.scale
    assert normal((z * torch.stack([e[..., 1], -e[..., 0]], -1)).sum(-1)) > PASS


SHAPES = {
    "comb": Comb(3, draw_with_replacement),
    "tree": StaticTree(Template.branching((3, 2)), draw_with_replacement),
    "chain": Chain(sampled),
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_whole_runs_have_the_joint_distribution(shape):
    p, q = linear_pair(gap=1.0)
    runs, stats = vectors_run(p.target, ModelDrafter(q.target, SHAPES[shape]), dgrs(), 2_500, most=5, length=2)
    assert projected(p, q, runs) > PASS
    assert lines(p.whitened(runs)) > PASS
    assert 0 < stats.accepted < stats.judged


class FromTarget(DGRS):
    """After the last refusal drawn from p as it is."""

    def refuse(self, p, q, x, index, count) -> tuple[Any, Any]:
        left = Claimed.of(p, q, count).refused()
        return Forgetful(left.p, left.q, left.claim), q


class Forgetful(Claimed):
    def sample(self, keys):
        return self.p.sample(keys)

    def where(self, mask, other):
        joined = super().where(mask, other)
        return Forgetful(joined.p, joined.q, joined.claim)


class Sorted(Walk):
    """Siblings judged best first, not in the order they were drawn."""

    def __call__(self, draft, scored, noise):
        ratio = scored.p.at(draft.parents[:, draft.roots :].clamp_min(0)).log_ratio(draft.q, draft.draft_tokens)
        order = ratio.argsort(1, descending=True)
        rows = torch.arange(len(order))[:, None]
        nodes = torch.cat([draft.nodes[:, : draft.roots], draft.draft_tokens[rows, order]], 1)
        return super().__call__(replace(draft, nodes=nodes), scored, noise)


@pytest.mark.parametrize("rule", [Walk(Unclaimed()), Walk(FromTarget()), Sorted(DGRS())], ids=["unclaimed", "from p", "sorted"])
def test_planted_bugs_are_seen(rule):
    p, q = linear_pair(gap=1.0)
    shape = StaticTree(Template.branching((3,)), draw_with_replacement)
    runs, _ = vectors_run(p.target, ModelDrafter(q.target, shape), rule, 5_000, most=5, length=1)
    assert projected(p, q, runs) < REJECTED
    runs, _ = vectors_run(p.target, ModelDrafter(q.target, shape), dgrs(), 5_000, most=5, length=1)
    assert projected(p, q, runs) > PASS


@pytest.mark.parametrize("siblings", [1, 3])
def test_the_share_accepted(siblings):
    rows, gap = 10_000, 1.0
    p, q = (Markov(lambda x, at=at: Gaussian(torch.full_like(x, at), torch.ones(1)), 1) for at in (gap, 0.0))
    drafter = ModelDrafter(q, StaticTree(Template.branching((siblings,)), draw_with_replacement))
    _, verdict = one_round(p, drafter, dgrs(), Noise.from_seed(0, rows), rows, 2, 1)
    left = Claimed.of(*pair(1, 1, gap), torch.ones(1, 1))
    for _ in range(siblings):
        left = left.refused()
    assert within(verdict.accepted > 0, 1 - left.mass.expand(rows, 1))
    assert normal(verdict.values[:, 0] - gap) > PASS


def test_one_sibling_is_the_token_rule():
    x, _ = grid(1, 4.0, 101)
    p, q = pair(1, len(x))
    count = torch.ones(len(x), 1)
    assert torch.equal(DGRS().take_prob(p, q, x, 0, count), Token().accept_prob(p, q, x))


def test_a_row_is_the_same_alone_and_in_a_batch_and_itself_is_never_refused():
    p, q = linear_pair(gap=1.0)
    for shape in SHAPES.values():
        together, _ = vectors_run(p.target, ModelDrafter(q.target, shape), dgrs(), 3, most=6, length=2, seed=[3, 9, 1])
        for row, seed in enumerate([3, 9, 1]):
            alone, _ = vectors_run(p.target, ModelDrafter(q.target, shape), dgrs(), 1, most=6, length=2, seed=[seed])
            assert torch.equal(alone[0], together[row])
        _, stats = vectors_run(p.target, ModelDrafter(p.target, shape), dgrs(), 3, most=6, length=2)
        assert stats.accepted == stats.judged > 0


def test_points_and_strangers():
    p, q = distribution([0.3, 1.0], [0.5, 0.0], 4), distribution([0.0, 2.0], [0.5, 0.0], 4)  # nothing in common
    count = torch.full((4, 1), 2)
    assert (DGRS().take_prob(p, q, q.sample(streams(4)), 0, count) == 0).all()
    left, _ = DGRS().refuse(p, q, q.mean, 0, count)
    left, _ = DGRS().refuse(left, q, q.mean, 1, count)
    assert torch.equal(left.sample(streams(4))[..., 1], torch.ones(4, 1).double())


def test_refusals():
    p, q = linear_pair()
    with pytest.raises(ValueError, match=r"D-GRS judges siblings.*target's own scales"):
        vectors_run(p.target, ModelDrafter(replace(q, scale=q.scale * 2).target, SHAPES["comb"]), dgrs(), 2, most=4, length=2)

    def mixed(x: Tensor) -> Mixture:
        return Mixture.student(x, torch.ones(1).double(), torch.tensor([4.0]))

    with pytest.raises(ValueError, match=r"D-GRS judges siblings"):
        vectors_run(Markov(mixed, 2), ModelDrafter(Markov(mixed, 2), SHAPES["comb"]), dgrs(), 2, most=4, length=2)
    with pytest.raises(ValueError, match="has no table of values"):
        vectors_run(p.target, ModelDrafter(q.target, Comb(2, draw_without_replacement)), dgrs(), 2, most=4, length=2)
    with pytest.raises(ValueError, match="needs the distribution its candidates were drawn from"):
        dgrs()(*_undrawn(p))


def _undrawn(p):
    session, pending = p.target.begin(1)
    draft = pending.extend(torch.zeros(1, 1, 2).double(), torch.zeros(1, 1).long())
    return draft, session.score(draft), Noise.from_seed(0, 1)
