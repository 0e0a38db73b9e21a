"""Membership rules: the emitted distribution is the closed form, and the drift is its distance to the target's, exactly."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.membership import Membership, RatioToMax, membership_tree
from mmspec.core.rules.siblings import relaxed
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.run.registry import ACCEPT, build
from tests.oracles.relaxed import SEEN, TINY, committed, distance, families, finished, many, path_drift, same, spread, window
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import TableTarget, first_value_distribution, pair, round_outcomes, run_loop

SIZE = 12
RULES = [Membership(1), Membership(3), Membership(SIZE), Membership(5, (0, 7), 2), Membership(2, (3,), 0), RatioToMax(0.3), RatioToMax(1.0)]


def ranked(p: torch.Tensor) -> list[int]:
    """Possible values, the most likely first, equals by number."""
    return [v for v in sorted(range(len(p)), key=lambda v: (-p[v].item(), v)) if p[v] > 0]


def closed_form(rule, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Written down without the engine: q on what passes, the rest of its mass on the replacement."""
    order, inside, instead = ranked(p), torch.zeros(len(p), dtype=torch.bool), p.clone()
    if isinstance(rule, Membership):
        inside[[v for v in order[: rule.k] if v not in rule.guard]] = True
        inside[[v for v in order[: rule.guard_k] if v in rule.guard]] = True
        instead[[v for v in range(len(p)) if v not in order[: rule.k]]] = 0
    else:
        inside = (p >= rule.c * p.max()) & (p > 0)
    kept = torch.where(inside, q, 0)
    return kept + (1 - kept.sum()) * instead / instead.sum()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_emitted_distribution_is_the_closed_form(rule):
    for p, q in many(SIZE, 4):
        distribution = rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (distribution - closed_form(rule, p, q)).abs().max() < TINY
        cost = rule.excess(spread(p), spread(q), torch.arange(SIZE))
        assert (cost - distance(distribution, p)).abs().max() < TINY


SMALL = [Membership(1), Membership(2), Membership(2, (0,), 1), RatioToMax(0.5)]


@pytest.mark.parametrize("rule", SMALL, ids=repr)
@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_the_code_that_runs_emits_it_and_its_meter_is_the_distance(rule, draw):
    for seed in range(4):
        target, drafter = pair(3, 3, seed, zeros=0.3)
        p, q = target.table.probs[1], drafter.table.probs[1]
        q = q if draw is sampled else torch.nn.functional.one_hot(q.argmax(), 3).double()
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), rule, most=2, length=1)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), rule)
        assert (distribution - closed_form(rule, p, q)).abs().max() < TINY
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, p), abs=TINY)


@pytest.mark.parametrize(
    ("rule", "off"), [(Membership(2), Membership(3)), (Membership(3, (0, 1), 1), Membership(3)), (RatioToMax(0.6), RatioToMax(0.4))]
)
def test_a_million_draws(rule, off):
    p, q = families(5, 1)["broad"]
    values, drift = committed(rule, p, q)
    distribution = closed_form(rule, p, q)
    assert chi_square(values, distribution) > PASS
    assert distance(distribution, closed_form(off, p, q)) > SEEN
    assert chi_square(values, closed_form(off, p, q)) < FAIL
    assert drift == pytest.approx(distance(distribution, p), abs=1e-6)


@pytest.mark.parametrize("rule", SMALL, ids=repr)
def test_the_meter_over_several_positions(rule):
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(rule, target.table.probs, drafter.table.probs, 3, 2)
    outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=3, length=2)
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)


# --- mutants ----------------------------------------------------------------------------------------------------------


class OneMore(Membership):
    """Rank at most k counted from 0."""

    def members(self, p):
        return Membership(self.k + 1).members(p)


class Unrestricted(Membership):
    """What fails is drawn from all of p."""

    def instead(self, p):
        return p


class Unguarded(Membership):
    """The guard forgotten."""

    def members(self, p):
        return Membership(self.k).members(p)


@pytest.mark.parametrize("mutant", [OneMore, Unrestricted, Unguarded])
def test_planted_faults_leave_the_closed_form(mutant):
    def worst(kind):
        rule = kind(4, (0, 1, 2), 1)
        distributions = [
            (rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), closed_form(rule, p, q)) for p, q in many(SIZE, 2)
        ]
        return max(distance(*both) for both in distributions)

    assert worst(Membership) < TINY
    assert worst(mutant) > SEEN


# --- identities and edges ---------------------------------------------------------------------------------------------


def test_every_value_a_member_gives_the_drafters_distribution():
    """k = V is no exact setting: what is possible passes, and keeps the distribution it was drawn from."""
    p, q = families(SIZE)["broad"]
    assert distance(Membership(SIZE).output_distribution(Categorical.of(p), Categorical.of(q)).probs(), q) < TINY


@pytest.mark.parametrize("rule", [Membership(2), Membership(50, (1,)), RatioToMax(0.5)], ids=repr)
def test_at_temperature_0_it_is_greedy_decoding(rule):
    target, drafter = pair(3, 9, 1)
    greedy = TableTarget(target.table.greedy())
    out = run_loop(greedy, ModelDrafter(drafter), rule, Noise.from_seed(0, 64), 64, 6, 3).outputs
    assert out == run_loop(greedy, ModelDrafter(drafter), Greedy(), Noise.from_seed(0, 64), 64, 6, 3).outputs


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_a_spent_budget_is_the_token_rule_bit_for_bit(kind):
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact = Token()(draft, scored, noise)
    for rule in (Membership(8, budget=0), RatioToMax(0.2, budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    assert Membership(8)(draft, scored, noise).drift.isfinite().all()


def test_equally_likely_values_rank_by_number():
    p = torch.tensor([0.1, 0.3, 0.3, 0.3, 0.0], dtype=torch.float64)
    assert Membership(2).members(Categorical.of(p)).tolist() == [False, True, True, False, False]
    assert Membership(9).members(Categorical.of(p)).tolist() == [True, True, True, True, False]
    assert RatioToMax(1.0).members(Categorical.of(p)).tolist() == [False, True, True, True, False]


def test_one_value_is_no_choice():
    one = torch.ones(1, dtype=torch.float64)
    for rule in (Membership(1), RatioToMax(0.5)):
        values, drift = committed(rule, one, one, rows=10)
        assert (values == 0).all()
        assert drift == 0


@pytest.mark.parametrize("rule", [Membership(2), RatioToMax(0.5)], ids=repr)
@pytest.mark.parametrize("shape", [StaticTree(Template.branching((2, 1))), StaticTree(Template.branching((3,)), top)], ids=["drawn", "top"])
def test_in_trees_the_drift_is_a_bound(rule, shape):
    for seed in range(3):
        target, drafter = pair(3, 4, seed, zeros=0.2)
        outcomes = round_outcomes(target, ModelDrafter(drafter, shape), relaxed(rule), most=3, length=2)
        distribution = outcomes.distribution(outcomes.values[:, 0], 3)
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift >= distance(distribution, target.table.probs[1]) - TINY


def test_by_name():
    assert build("membership", ACCEPT, "accept rule", {"k": 20, "guard": (5,), "guard_k": 3}) == Membership(20, (5,), 3)
    assert build("membership-tree", ACCEPT, "accept rule") == membership_tree() == relaxed(Membership())
    assert build("ratio-to-max", ACCEPT, "accept rule", {"c": 0.5}) == RatioToMax(0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Membership(0), "k and guard_k are 0, 1"),
        (lambda: Membership(3, guard_k=-1), "k and guard_k are 3, -1"),
        (lambda: Membership(budget=-1), "budget is -1"),
        (lambda: RatioToMax(0), "c is 0"),
        (lambda: RatioToMax(1.5), "c is 1.5"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
