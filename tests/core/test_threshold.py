"""The threshold rule: its output distribution by enumeration, its meter, and the rules it equals at its ends."""

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.always_accept import AlwaysAccept, Threshold
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, most_likely_of
from mmspec.drafters.stops import Confidence
from mmspec.run.shapes import draw_for, shape_of
from tests.oracles.tables import first_value_distribution, one_round, pair, run_loop

TINY = 1e-9
RULES = [Threshold(tau, verify) for tau in (0.0, 0.5, 0.9, 1.0) for verify in (False, True)]
ROWS, MOST = 64, 6


def drafting(drafter, rule):
    """A model that drafts as the request path lets it draft for `rule`."""
    return ModelDrafter(drafter, shape_of(None, rule))


def tokens(rule, length=3, seed=1, shape=None):
    target, drafter = pair(3, MOST + 3, seed)
    return run_loop(
        target, ModelDrafter(drafter, shape or shape_of(None, rule)), rule, Noise.from_seed(0, ROWS), ROWS, MOST, length
    ).outputs


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_output_distribution_is_the_enumerated_distribution(rule):
    for seed in range(6):
        target, drafter = pair(3, 3, seed, zeros=0.3)
        p, q = (each.table.distribution(torch.tensor(1)) for each in (target, drafter))
        found = first_value_distribution(target, drafting(drafter, rule), rule)
        assert (found - rule.output_distribution(p, q).probs()).abs().max() < TINY


def test_drafts_end_below_the_threshold_unless_the_rest_is_verified():
    assert shape_of(None, Threshold(0.7)) == Chain(most_likely_of, Confidence(0.7))
    assert shape_of(None, Threshold(0.7, verify=True)) == Chain(most_likely_of)
    assert draw_for(Greedy()) is most_likely
    with pytest.raises(ValueError, match="judges chains only"):
        shape_of((2, 1), Threshold())


def test_at_zero_all_is_kept_and_at_one_nothing_unsure():
    differ = 0
    for seed in range(4):
        greedy = tokens(Greedy(), seed=seed)
        unchecked = tokens(Threshold(0.0), seed=seed)
        assert unchecked == tokens(AlwaysAccept(best=True), seed=seed, shape=Chain(most_likely))
        for rule in (Threshold(1.0, verify=True), Threshold(1.0), Threshold(0.0, budget=0.0)):
            assert tokens(rule, seed=seed) == greedy
        differ += unchecked != greedy
    assert differ


def test_drift_counts_kept_tokens_that_greedy_decoding_would_not_choose():
    """Every row's own count, from the target's table along the tokens that were kept."""
    seen = 0
    for seed in range(20):
        target, drafter = pair(3, 5, seed)
        draft, verdict = one_round(target, drafting(drafter, Threshold(0.0)), Threshold(0.0), Noise.from_seed(0, 1), 1, 4, 2)
        assert verdict.accepted.tolist() == [2]
        code, departures = torch.tensor(1), 0
        for place in range(2):
            token = draft.draft_tokens[0, place]
            departures += int(target.table.distribution(code).mode() != token)
            code = target.table.step(code[None], token[None])[0]
        assert verdict.drift.tolist() == [departures]
        seen += departures
    assert seen > 3


def test_what_is_refused():
    for tau in (-0.1, 1.5, float("nan"), True, "high"):
        with pytest.raises(ValueError, match="tau is"):
            Threshold(tau)
    with pytest.raises(ValueError, match="budget is -1"):
        Threshold(budget=-1)
    target, drafter = pair(3, 5, 0)
    with pytest.raises(ValueError, match="reads the drafter's probabilities"):
        one_round(target, ModelDrafter(drafter, Chain(most_likely)), Threshold(), Noise.from_seed(0, 1), 1, 4, 2)
