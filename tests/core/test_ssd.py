"""SSD: the emitted distribution is the closed form, what it costs is what it gains, and beta 0 is the token rule."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.base import LOSSY
from mmspec.core.rules.lossy.ssd import SSD, ssd_tree
from mmspec.core.rules.siblings import relaxed
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.run.registry import ACCEPT, build
from tests.oracles.relaxed import (
    SEEN,
    TINY,
    committed,
    distance,
    families,
    finished,
    identity_error,
    many,
    node,
    path_drift,
    point_error,
    same,
    window,
)
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import first_value_distribution, pair, round_outcomes

SIZE = 12
BETAS = [0.0, 0.1, 0.4, 1.0]


def closed_form(p: torch.Tensor, q: torch.Tensor, beta: float) -> torch.Tensor:
    """q a + (sum of q (1 - a)) r, written down without the engine."""
    a = torch.where(q > 0, ((p / q).clamp(max=1) + beta).clamp(max=1), 0)
    left = (p - q).clamp(min=0)
    r = left / left.sum() if left.sum() > 0 else p
    return q * a + (q * (1 - a)).sum() * r


@pytest.mark.parametrize("beta", BETAS)
def test_the_emitted_distribution_is_the_closed_form(beta):
    for p, q in many(SIZE, 4):
        distribution = SSD(beta).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (distribution - closed_form(p, q, beta)).abs().max() < TINY


@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_the_code_that_runs_emits_it(draw):
    for seed in range(4):
        target, drafter = pair(3, 3, seed, zeros=0.3)
        p, q = target.table.probs[1], drafter.table.probs[1]
        q = q if draw is sampled else torch.nn.functional.one_hot(q.argmax(), 3).double()
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), SSD(0.3), most=2, length=1)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), SSD(0.3))
        assert (distribution - closed_form(p, q, 0.3)).abs().max() < TINY
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, p), abs=TINY)


@pytest.mark.parametrize("point", [False, True])
def test_a_million_draws(point):
    """Against the closed form; a beta that is off by a hundredth is seen, and so is the target's own distribution."""
    p, q = families(5)["broad"]
    drawn = torch.nn.functional.one_hot(q.argmax(), 5).double() if point else q
    values, drift = committed(SSD(0.2), p, q, point=point)
    distribution = closed_form(p, drawn, 0.2)
    assert chi_square(values, distribution) > PASS
    assert chi_square(values, closed_form(p, drawn, 0.19)) < FAIL
    assert chi_square(values, p) < FAIL
    assert drift == pytest.approx(distance(distribution, p), rel=0.02)


# --- the meter --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", BETAS)
def test_what_it_costs_is_what_it_gains(beta):
    for p, q in many(SIZE, 4):
        assert identity_error(SSD(beta), p, q) < TINY
        assert point_error(SSD(beta), p) < TINY


def test_the_meter_over_several_positions():
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(SSD(0.2), target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter), SSD(0.2), most=4, length=3)
    assert truth > SEEN
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)


class ResidualIsP(SSD):
    """After a refusal, draw from p: the published residual forgotten."""

    def replacement(self, p, q, x):
        return p


class Scales(SSD):
    """min(1, p/q) times 1 + beta."""

    def accept_prob(self, p, q, x):
        return (Token().accept_prob(p, q, x) * (1 + self.beta)).clamp(max=1)


@pytest.mark.parametrize("mutant", [ResidualIsP, Scales])
def test_planted_faults_leave_the_closed_form(mutant):
    def worst(kind):
        distributions = [
            (kind(0.3).output_distribution(Categorical.of(p), Categorical.of(q)).probs(), closed_form(p, q, 0.3)) for p, q in many(SIZE, 2)
        ]
        return max(distance(*both) for both in distributions)

    assert worst(SSD) < TINY
    assert worst(mutant) > SEEN


# --- identities and edges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_beta_0_is_the_token_rule_bit_for_bit(kind):
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact = Token()(draft, scored, noise)
    for rule in (SSD(0.0), SSD(0.5, budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    verdict = SSD(0.5)(draft, scored, noise)
    assert (verdict.accepted >= exact.accepted).all()
    assert (verdict.accepted > exact.accepted).any()
    assert verdict.drift.isfinite().all()
    assert (0.5 * verdict.judged + 1e-6 >= verdict.drift).all()


def test_one_value_is_no_choice():
    one = torch.ones(1, dtype=torch.float64)
    values, drift = committed(SSD(0.4), one, one, rows=10)
    assert (values == 0).all()
    assert drift == 0


def test_beta_1_accepts_everything():
    p, q = families(SIZE)["top-k disjoint"]
    assert distance(SSD(1.0).output_distribution(Categorical.of(p), Categorical.of(q)).probs(), q) < TINY


# --- trees ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pick", [None, top])
def test_in_trees_a_node_is_what_it_is_by_hand(pick):
    shape = StaticTree(Template.branching((3,))) if pick is None else StaticTree(Template.branching((3,)), top)
    for seed in range(3):
        target, drafter = pair(4, 3, seed, zeros=0.2)
        p, q = target.table.probs[1], drafter.table.probs[1]
        outcomes = round_outcomes(target, ModelDrafter(drafter, shape), ssd_tree(0.3), most=2, length=1)
        distribution, drift = outcomes.distribution(outcomes.values[:, 0], 4), (outcomes.weights * outcomes.extra["drift"]).sum().item()
        ranked = [value for value in q.argsort(descending=True, stable=True).tolist() if q[value] > 0]
        own, cost = node(SSD(0.3), p, q if pick is None else None, 3 if pick is None else ranked[:3])
        assert (distribution - own).abs().max() < TINY
        assert drift == pytest.approx(cost, abs=TINY)
        assert drift >= distance(distribution, p) - TINY
        exact = first_value_distribution(target, ModelDrafter(drafter, shape), ssd_tree(0.0))
        assert (exact - p).abs().max() < TINY


def test_by_name():
    assert build("ssd", ACCEPT, "accept rule", {"beta": 0.2, "budget": 3.0}) == SSD(0.2, 3.0)
    assert build("ssd-tree", ACCEPT, "accept rule") == relaxed(SSD())
    assert SSD().exactness == ssd_tree().exactness == LOSSY


@pytest.mark.parametrize("make", [lambda: SSD(-0.1), lambda: SSD(1.1), lambda: SSD(float("nan")), lambda: SSD(0.1, budget=-1)])
def test_bad_knobs_are_refused_in_one_line(make):
    with pytest.raises(ValueError, match=r"beta is|budget is") as caught:
        make()
    assert "\n" not in str(caught.value)
