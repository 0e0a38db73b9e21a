"""Grouped acceptance: clusters are what they say at every rank, no draft token loses by them, and the cost is the gain."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.lossy.grouped import Grouped
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled
from tests.oracles.relaxed import (
    SEEN,
    TINY,
    distance,
    families,
    finished,
    identity_error,
    many,
    path_drift,
    point_error,
    same,
    spread,
    window,
)
from tests.oracles.tables import first_value_distribution, one_round, pair, round_outcomes

SIZE = 20
POINTS = torch.randn(SIZE - 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # the last two values are controls
RULES = [
    Grouped(POINTS, 6, 0.15, 3.0),
    Grouped(POINTS, 14, 1.0, 2.0),
    Grouped(POINTS, 40, 0.05, 10.0),
    Grouped(None, 2),
    Grouped(None, 7, 0.01),
]


def cluster(rule: Grouped, p: torch.Tensor, x: int) -> set[int]:
    """By hand: as many ranks below x as above it, or one more, cut at the ends, alike in probability and in looks."""
    order = sorted(range(len(p)), key=lambda value: p[value].item())  # sorts are stable: ties by number
    rank, below = order.index(x), rule.size // 2
    near = order[max(0, rank - below) : rank - below + rule.size]
    alike = {y for y in near if abs(p[y] - p[x]) <= rule.p_gap}
    if rule.embeddings is not None:
        known = len(rule.embeddings)
        alike = {y for y in alike if max(x, y) < known and (rule.embeddings[x] - rule.embeddings[y]).norm() <= rule.distance}
    return alike | {x}


def groups_differ(rule: Grouped, p: torch.Tensor) -> int:
    members, inside = rule.group(spread(p), torch.arange(SIZE))
    found = [set(members[x][inside[x]].tolist()) for x in range(SIZE)]
    return sum(found[x] != cluster(rule, p, x) for x in range(SIZE))


@pytest.mark.parametrize("size", range(1, SIZE + 1))
def test_a_group_has_as_many_codes_as_its_size_says(size):
    p, _ = next(iter(many(SIZE, 2)))
    _, inside = Grouped(None, size, p_gap=1.0).group(spread(p), torch.arange(SIZE))
    assert int(inside.sum(-1).max()) == size


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_clusters_are_what_they_say(rule):
    for p, _ in many(SIZE, 2):
        assert groups_differ(rule, p) == 0


def test_controls_are_in_no_group():
    members, inside = RULES[1].group(spread(torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)), torch.arange(SIZE))
    assert inside[-2:].sum(-1).tolist() == [1, 1]
    assert not (inside & (members >= SIZE - 2))[:-2].any()
    assert inside.sum() > 2 * SIZE


# --- the distribution and its meter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_it_costs_is_what_it_gains(rule):
    for p, q in many(SIZE, 4):
        assert identity_error(rule, p, q) < TINY
        assert point_error(rule, p) < TINY


def test_there_is_something_to_gain():
    p, q = families(SIZE)["broad"]
    gains = [distance(rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), p) for rule in RULES]
    assert min(gains) > 0.01
    assert max(gains) > 0.1


THREE = Grouped(torch.tensor([[0.0], [0.6], [1.1]]), 2, 0.5)


@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_output_distribution_is_the_enumerated_distribution(draw):
    for seed in range(3):
        target, drafter = pair(3, 3, seed, zeros=0.2)
        p, q = (world.table.distribution(torch.tensor(1)) for world in (target, drafter))
        q = q if draw is sampled else Categorical.point(q.mode(), 3, torch.float64)
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), THREE, most=2, length=1)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), THREE)
        assert (distribution - THREE.output_distribution(p, q).probs()).abs().max() < TINY
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, p.probs()), abs=TINY)


def test_the_meter_over_several_positions():
    """Mean drift of a round of three draft tokens: exact by enumeration, and within 5 % over 50 000 rows with the real noise."""
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(THREE, target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter), THREE, most=4, length=3)
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)
    rows = 50_000
    _, verdict = one_round(target, ModelDrafter(drafter), THREE, Noise.from_seed(0, rows), rows, 4, 3)
    assert truth > 0.03
    assert verdict.drift.mean().item() == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_groups_of_one_are_the_token_rule_bit_for_bit(kind):
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact = Token()(draft, scored, noise)
    points = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    for rule in (Grouped(points, 1), Grouped(points, 14, distance=0.0), Grouped(points, 8, 1.0, 9.0, budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    verdict = Grouped(points, 8, 1.0, 9.0)(draft, scored, noise)
    assert not same(verdict, exact)
    assert (verdict.accepted >= exact.accepted).all()
    assert verdict.drift.isfinite().all()


# --- published faults, planted ----------------------------------------------------------------------------------------


class OneMoreBelow(Grouped):
    """The slice [rank - h, rank + h): one code more below x than above it."""

    def group(self, p, x):
        members, inside = super().group(p, x)
        return members, inside & (torch.arange(members.shape[-1]) < 2 * (self.size // 2))


class EmptySlice(OneMoreBelow):
    """And near the end that slice starts below 0 and is empty: 0/0, which no number is below."""

    def group(self, p, x):
        members, inside = super().group(p, x)
        rank = (p.scores < p.scores.gather(-1, x[..., None])).sum(-1, keepdim=True)
        return members, inside & (rank >= self.size // 2)

    def accept_prob(self, p, q, x):
        members, inside = self.group(p, x)
        mass = [torch.where(inside, distribution.probs().gather(-1, members), 0).sum(-1) for distribution in (p, q)]
        return (mass[0] / mass[1]).clamp(max=1)


class GroupAlone(Grouped):
    """p(C) / q(C) even where it is less than p(x) / q(x), with the ordinary residual."""

    def accept_prob(self, p, q, x):
        members, inside = self.group(p, x)
        mass = [torch.where(inside, distribution.probs().gather(-1, members), 0).sum(-1) for distribution in (p, q)]
        return (mass[0] / mass[1]).clamp(max=1)


class ResidualIsP(Grouped):
    """After a refusal, draw from p."""

    def replacement(self, p, q, x):
        return p


def test_an_asymmetric_slice_is_noticed():
    p, _ = families(SIZE)["broad"]
    assert groups_differ(RULES[2], p) == 0
    assert groups_differ(OneMoreBelow(POINTS, 7, 0.15, 3.0), p) > 0


@pytest.mark.parametrize("mutant", [EmptySlice, GroupAlone, ResidualIsP])
def test_planted_faults_break_the_identity(mutant):
    def worst(kind):
        return max(identity_error(kind(None, 6), p, q) for p, q in many(SIZE, 3))

    assert worst(Grouped) < TINY
    assert worst(mutant) > SEEN


def test_an_empty_slice_is_not_a_number():
    p, q = families(SIZE)["broad"]
    x = torch.arange(SIZE)
    assert Grouped(None, 6).accept_prob(spread(p), spread(q), x).isfinite().all()
    assert EmptySlice(None, 7).accept_prob(spread(p), spread(q), x).isnan().sum() == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grouped(POINTS, 0), "size is 0"),
        (lambda: Grouped(POINTS, 4, -0.1), "p_gap and distance are -0.1"),
        (lambda: Grouped(POINTS, 4, 0.1, float("nan")), "p_gap and distance are 0.1, nan"),
        (lambda: Grouped(POINTS, budget=-1), "budget is -1"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
