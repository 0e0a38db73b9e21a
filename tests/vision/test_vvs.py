"""Draft tokens that are not verified: accepted whatever they are, and what that costs is measured."""

import pytest
import torch

from mmspec.core.rules.lossy.cool_sd import CoolSD
from mmspec.core.rules.lossy.lantern import Lantern, Neighbours
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, sampled
from mmspec.vision import generate
from mmspec.vision.codes.vvs import Unverified
from tests.oracles.relaxed import TINY, identity_error, many, path_drift, same, spread, window
from tests.oracles.tables import pair, round_outcomes
from tests.vision.small_nets import guided_model

SIZE = 12
NEAR = Neighbours.of(torch.randn(SIZE - 2, 4, generator=torch.Generator().manual_seed(0)), 4)
INNER = [Lantern(NEAR, 0.2, 4), CoolSD()]


@pytest.mark.parametrize("inner", INNER, ids=["lantern", "cool-sd"])
@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_what_skipping_costs_is_what_it_gains(inner, place):
    rule = Unverified(inner, levels=2).at(torch.full((SIZE,), place))
    for p, q in many(SIZE, 3):
        assert identity_error(rule, p, q) < TINY
        if place < 2:
            x = torch.arange(SIZE)
            assert (rule.accept_prob(spread(p), spread(q), x)[q > 0] == 1).all()


@pytest.mark.parametrize("inner", INNER, ids=["lantern", "cool-sd"])
def test_nothing_skipped_is_the_rule(inner):
    for seed in range(3):
        draft, scored, noise = window(SIZE, 4, 6, seed=seed)
        assert same(Unverified(inner, levels=0)(draft, scored, noise), inner(draft, scored, noise))


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_the_meter_of_a_round_is_the_distance_at_each_place(levels):
    target, drafter = pair(3, 6, 17, zeros=0.0)
    rule = Unverified(CoolSD(1.5, 0.3, 0.0), levels)
    truth = path_drift(rule, target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(sampled)), rule, most=4, length=3)
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)


def test_every_round_keeps_what_it_skips():
    model, kept = guided_model(), []

    def look(step) -> None:
        kept.extend((min(2, drafted), accepted) for drafted, accepted in zip(step.committed.drafted, step.committed.accepted, strict=True))

    out = generate(model, [0, 1, 2], method="vvs", guidance=2.0, seed=1, on_step=look)
    assert all(accepted >= least for least, accepted in kept)
    assert out.stats.exactness == "lossy"
    relaxed = generate(model, [0, 1, 2], method="lantern-0.2-1000", guidance=2.0, seed=1)
    assert out.stats.row_calls < relaxed.stats.row_calls
    assert out.stats.drift > relaxed.stats.drift


def test_a_budget_ends_the_skipping():
    model, rounds = guided_model(), []
    none = generate(model, [0, 1], method="vvs", drift_budget=0.0, seed=1, on_step=lambda step: rounds.append(step.committed.accepted))
    assert none.stats.drift == 0.0
    assert any(accepted < 2 for row in rounds for accepted in row)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="levels is -1"):
        Unverified(CoolSD(), -1)
    with pytest.raises(ValueError, match="give the budget to Unverified"):
        Unverified(CoolSD(budget=1.0))
    with pytest.raises(ValueError, match="budget is -1"):
        Unverified(CoolSD(), budget=-1.0)
