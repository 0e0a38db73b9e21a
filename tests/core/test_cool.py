"""Cool-SD: weights by place, the published closed form of what they cost, and the cost equal to the gain."""

import math

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.base import LOSSY
from mmspec.core.rules.lossy.cool_sd import CoolSD
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled
from mmspec.run.registry import ACCEPT, build
from tests.oracles.relaxed import SEEN, TINY, distance, families, finished, identity_error, many, path_drift, point_error, same, window
from tests.oracles.tables import first_value_distribution, one_round, pair, round_outcomes

SIZE = 12
RULES = [CoolSD(), CoolSD(1.5, 0.3, 0.0), CoolSD(1.05, 0.0, 0.0), CoolSD(50.0, 0.7, 0.0)]
EXACT = CoolSD(1.0, 0.0, 0.0)


def test_weights_fall_to_one_and_stop():
    places = torch.arange(8, dtype=torch.float64)
    for rule in RULES:
        said = [max(1.0, rule.delta * math.exp(-rule.nu * i - rule.mu)) for i in range(8)]
        assert rule.weight(places).tolist() == pytest.approx(said)
    first, second, third, *rest = CoolSD().weight(places).tolist()
    assert (round(first, 1), round(second, 1), third, set(rest)) == (2.8, 1.4, 1.0, {1.0})
    free = [CoolSD().delta * math.exp(-0.7 * i + 0.95) for i in range(5)]
    assert sum(free) / 5 == pytest.approx(1.1, rel=0.01)  # what mu is for


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_what_it_costs_is_what_it_gains_and_the_closed_form(rule, place):
    placed = rule.at(torch.full((SIZE,), place))
    weight = max(1.0, rule.delta * math.exp(-rule.nu * place - rule.mu))
    for p, q in many(SIZE, 3):
        assert identity_error(placed, p, q) < TINY
        assert point_error(placed, p) < TINY
        closed = torch.minimum((weight - 1) * p, q - p).clamp(min=0).sum().item()
        assert distance(placed.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), p) == pytest.approx(closed, abs=TINY)


@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_output_distribution_is_the_enumerated_distribution(draw):
    for seed in range(3):
        target, drafter = pair(3, 3, seed, zeros=0.2)
        p, q = (world.table.distribution(torch.tensor(1)) for world in (target, drafter))
        q = q if draw is sampled else Categorical.point(q.mode(), 3, torch.float64)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), CoolSD())
        assert (distribution - CoolSD().output_distribution(p, q).probs()).abs().max() < TINY


def meter_error(rule) -> float:
    """Mean drift of a round of three draft tokens against the distance at each place: a check of the places, too."""
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(CoolSD(2.0, 0.3, 0.0), target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=4, length=3)
    return abs((outcomes.weights * outcomes.extra["drift"]).sum().item() - truth)


class OneStepLate(CoolSD):
    """Places counted from 1."""

    def at(self, place):
        return super().at(place + 1)


class NeverCools(CoolSD):
    """The same weight everywhere."""

    def at(self, place):
        return super().at(torch.zeros_like(place))


def test_the_meter_over_several_positions():
    """Exact by enumeration, and within 5 % over 50 000 rows with the real noise; wrong places are seen."""
    rule = CoolSD(2.0, 0.3, 0.0)
    assert meter_error(rule) < TINY
    assert meter_error(OneStepLate(2.0, 0.3, 0.0)) > SEEN
    assert meter_error(NeverCools(2.0, 0.3, 0.0)) > SEEN
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(rule, target.table.probs, drafter.table.probs, 3, 3)
    rows = 50_000
    _, verdict = one_round(target, ModelDrafter(drafter), rule, Noise.from_seed(0, rows), rows, 4, 3)
    assert truth > 0.05
    assert verdict.drift.mean().item() == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_weights_of_one_are_the_token_rule_bit_for_bit(kind):
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact = Token()(draft, scored, noise)
    for rule in (EXACT, CoolSD(0.2, 0.7, 0.0), CoolSD(2.0, 0.7, 0.8), CoolSD(budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    verdict = CoolSD(3.0)(draft, scored, noise)
    assert not same(verdict, exact)
    assert (verdict.accepted >= exact.accepted).all()


class Unclamped(CoolSD):
    """Published weights, below 1 at late places."""

    def weight(self, place):
        return self.delta * (-self.nu * place - self.mu).exp()


class ResidualIsP(CoolSD):
    """After a refusal, draw from p."""

    def at(self, place):
        rule = super().at(place)

        class Placed(type(rule)):
            def replacement(self, p, q, x):
                return p

        return Placed(rule.budget, self, place)


@pytest.mark.parametrize("mutant", [Unclamped, ResidualIsP])
def test_planted_faults_break_the_identity(mutant):
    def worst(kind):
        return max(identity_error(kind().at(torch.full((SIZE,), 3)), p, q) for p, q in families(SIZE).values())

    assert worst(CoolSD) < TINY
    assert worst(mutant) > SEEN


def test_names():
    assert build("cool-sd", ACCEPT, "accept rule", {"delta": 2.0, "budget": 1.0}) == CoolSD(2.0, budget=1.0)
    tree = build("cool-sd-tree", ACCEPT, "accept rule")
    assert (tree.exactness, tree.trees, tree.siblings.rule) == (LOSSY, True, CoolSD())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CoolSD(0), "delta and nu are 0"),
        (lambda: CoolSD(1.1, -1), "delta and nu are 1.1, -1"),
        (lambda: CoolSD(budget=-1), "budget is -1"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
