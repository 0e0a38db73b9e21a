"""Coarse-grained acceptance: the group has the target's distribution, the token the closed form, and the meter is the distance between."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Scored
from mmspec.core.rules.base import DISTRIBUTION_EXACT, GROUP_EXACT, LOSSY
from mmspec.core.rules.block import Block
from mmspec.core.rules.groups import Groups
from mmspec.core.rules.lossy.pcg import PCG, pcg_tree
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.relaxed import SEEN, TINY, committed, distance, families, finished, many, path_drift, same, spread, window
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import exact_error, first_value_distribution, pair, round_outcomes

SIZE = 20
POINTS = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0))
GROUPS = {
    "cosine": Groups.by_cosine(POINTS, 0.4, (SIZE - 1,)),
    "distance": Groups.by_distance(POINTS, 1.5),
    "nearest": Groups.nearest(POINTS, 3),  # not symmetric
    "partition": Groups.partition(torch.arange(SIZE) % 6),
}
THREE = Groups.by_distance(torch.tensor([[0.0], [0.6], [1.1]]), 0.7)  # 0-1, 1-2: they overlap
APART = Groups.partition(torch.tensor([0, 1, 0]))


def shares(groups: Groups) -> torch.Tensor:
    """w(k, t), [K, V]."""
    inside = groups.members.to_dense().double()
    return inside / inside.sum(0)


def by_hand(groups: Groups, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The published procedure, group by group: mass [K, V] of (group, token) accepted, and replaced."""
    w = shares(groups)
    coarse_p, coarse_q = w @ p, w @ q
    taken = torch.where(coarse_q > 0, torch.minimum(coarse_p, coarse_q) / coarse_q.clamp_min(1e-300), 0)
    rest = torch.where(coarse_p > 0, (coarse_p - coarse_q).clamp(min=0) / coarse_p.clamp_min(1e-300), 0)
    return taken[:, None] * w * q, rest[:, None] * w * p


@pytest.mark.parametrize("name", GROUPS)
def test_the_groups_distribution_is_the_targets_and_the_tokens_the_closed_form(name):
    groups, most = GROUPS[name], 0.0
    for p, q in many(SIZE, 4):
        accepted, replaced = by_hand(groups, p, q)
        assert ((accepted + replaced).sum(1) - shares(groups) @ p).abs().max() < TINY
        distribution = PCG(groups).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (distribution - (accepted + replaced).sum(0)).abs().max() < TINY
        cost = PCG(groups).excess(spread(p), spread(q), torch.arange(SIZE))
        assert (cost - distance(distribution, p)).abs().max() < TINY
        most = max(most, distance(distribution, p))
    assert most > 0.1


def test_groups_that_do_not_overlap_keep_their_distribution_among_the_tokens():
    """Then a token's group can be read off, and it is the target's, exactly."""
    groups = GROUPS["partition"]
    for p, q in many(SIZE, 4):
        distribution = PCG(groups).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (groups.coarse(distribution) - groups.coarse(p)).abs().max() < TINY


@pytest.mark.parametrize("draw", [sampled, most_likely])
@pytest.mark.parametrize("groups", [THREE, APART], ids=["overlapping", "apart"])
def test_the_code_that_runs_emits_it(draw, groups):
    for seed in range(4):
        target, drafter = pair(3, 3, seed, zeros=0.2)
        p, q = target.table.probs[1], drafter.table.probs[1]
        q = q if draw is sampled else torch.nn.functional.one_hot(q.argmax(), 3).double()
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), PCG(groups), most=2, length=1)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), PCG(groups))
        assert (distribution - torch.stack(by_hand(groups, p, q)).sum((0, 1))).abs().max() < TINY
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, p), abs=TINY)


def test_the_published_loop_gives_the_same_distribution():
    """Groups drawn, replacements thinned until one stays: 1e6 draws of the procedure against the distribution without any of that."""
    p, q = families(SIZE, 2)["broad"]
    groups, rows, g = GROUPS["cosine"], 1_000_000, torch.Generator().manual_seed(0)
    w = shares(groups)
    coarse_p, coarse_q = w @ p, w @ q

    def some(distribution: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and one of each token's groups."""
        tokens = torch.multinomial(distribution, count, True, generator=g)
        group = torch.empty_like(tokens)
        for token in range(SIZE):
            here = (tokens == token).nonzero()[:, 0]
            if len(here):
                group[here] = torch.multinomial(w[:, token], len(here), True, generator=g)
        return tokens, group

    tokens, group = some(q, rows)
    waiting = (torch.rand(rows, dtype=torch.float64, generator=g) >= (coarse_p / coarse_q)[group]).nonzero()[:, 0]
    while len(waiting):
        again, groups_again = some(p, len(waiting))
        stays = torch.rand(len(waiting), dtype=torch.float64, generator=g) < (1 - coarse_q / coarse_p)[groups_again]
        tokens[waiting[stays]], group[waiting[stays]] = again[stays], groups_again[stays]
        waiting = waiting[~stays]
    distribution = PCG(groups).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
    assert chi_square(tokens, distribution) > PASS
    assert chi_square(tokens, p) < FAIL
    assert chi_square(group, coarse_p) > PASS
    assert chi_square(group, coarse_q) < FAIL


@pytest.mark.parametrize("groups", [THREE, Groups.partition(torch.arange(5) // 2)], ids=["overlapping", "apart"])
def test_a_million_draws(groups):
    p, q = families(groups.values, 1)["broad"]
    values, drift = committed(PCG(groups), p, q)
    distribution = torch.stack(by_hand(groups, p, q)).sum((0, 1))
    assert chi_square(values, distribution) > PASS
    assert chi_square(values, 0.85 * distribution + 0.15 * p) < FAIL
    assert drift == pytest.approx(distance(distribution, p), abs=1e-6)


def test_the_meter_over_several_positions():
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(PCG(THREE), target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter), PCG(THREE), most=4, length=3)
    assert truth > SEEN
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)


# --- a member drawn by the target -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPS)
def test_a_member_drawn_by_the_target_keeps_its_distribution_and_costs_acceptance(name):
    rule, less = PCG(GROUPS[name], "target"), 0.0
    for p, q in many(SIZE, 4):
        distribution = rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (distribution - p).abs().max() < TINY
        chance = (q * rule.accept_prob(spread(p), spread(q), torch.arange(SIZE)).nan_to_num())[q > 0].sum().item()
        assert chance <= torch.minimum(p, q).sum().item() + TINY
        less = max(less, torch.minimum(p, q).sum().item() - chance)
    assert less > 0.1
    assert rule.exactness == DISTRIBUTION_EXACT


def test_with_it_whole_runs_have_the_targets_distribution():
    target, drafter = pair(3, 6, 1, zeros=0.2)
    assert exact_error(target, ModelDrafter(drafter), PCG(THREE, "target"), most=3, length=2) < TINY
    assert exact_error(target, ModelDrafter(drafter), PCG(THREE), most=3, length=2) > SEEN


# --- mutants ----------------------------------------------------------------------------------------------------------


class NotThinned(PCG):
    """After a rejection, draw from p."""

    def replacement(self, p, q, x):
        return p


class OrdinaryResidual(PCG):
    """After a rejection, draw from norm((p - q)+)."""

    def replacement(self, p, q, x):
        return p.residual(q, x)


class WholeMass(PCG):
    """Overlapping groups that each count a token's whole mass: P(k) is no distribution then."""

    def _chances(self, probs, drawn):
        inside = self.groups.members.to_dense().double()
        p, q = probs @ inside.T, drawn @ inside.T
        return self.groups.mean(torch.where(p < q, p / q, 1))


@pytest.mark.parametrize("mutant", [NotThinned, OrdinaryResidual, WholeMass])
def test_planted_faults_leave_the_closed_form(mutant):
    def worst(kind):
        errors = []
        for p, q in many(SIZE, 2):
            distribution = kind(GROUPS["cosine"]).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
            errors.append(distance(distribution, torch.stack(by_hand(GROUPS["cosine"], p, q)).sum((0, 1))))
        return max(errors)

    assert worst(PCG) < TINY
    assert worst(mutant) > SEEN


# --- identities and edges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_without_a_shared_group_it_is_the_token_rule_bit_for_bit(kind):
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact, points = Token()(draft, scored, noise), torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    single, shared = Groups.by_cosine(points, 1.01), Groups.by_cosine(points, 0.2)
    for rule in (PCG(single), PCG(single, "target"), PCG(shared, budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    assert PCG(single).exactness == DISTRIBUTION_EXACT
    verdict = PCG(shared)(draft, scored, noise)
    assert PCG(shared).exactness == GROUP_EXACT == "group-exact"
    assert not same(verdict, exact)
    assert verdict.drift.isfinite().all()
    assert verdict.accepted.sum() > exact.accepted.sum()


def test_one_group_of_all_is_the_drafters_distribution():
    p, q = families(SIZE)["broad"]
    everything = PCG(Groups.partition(torch.zeros(SIZE, dtype=torch.long)))
    assert distance(everything.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), q) < TINY


def test_one_value_is_no_choice():
    one = torch.ones(1, dtype=torch.float64)
    values, drift = committed(PCG(Groups.partition(torch.zeros(1, dtype=torch.long))), one, one, rows=10)
    assert (values == 0).all()
    assert drift == 0


def test_a_draft_token_ruled_out_by_its_group_is_never_kept():
    p, q = families(SIZE)["top-k disjoint"]
    groups = Groups.partition((q > 0).long())  # drafter and target on different groups
    distribution = PCG(groups).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
    assert distance(distribution, p) < TINY


@pytest.mark.parametrize("shape", [StaticTree(Template.branching((2, 1))), StaticTree(Template.branching((3,)), top)], ids=["drawn", "top"])
@pytest.mark.parametrize("groups", [THREE, APART], ids=["overlapping", "apart"])
def test_in_trees_the_drift_is_a_bound_and_groups_apart_keep_their_distribution(shape, groups):
    most = 0.0
    for seed in range(4):
        target, drafter = pair(3, 4, seed, zeros=0.2)
        outcomes = round_outcomes(target, ModelDrafter(drafter, shape), pcg_tree(groups), most=3, length=2)
        distribution, p = outcomes.distribution(outcomes.values[:, 0], 3), target.table.probs[1]
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift >= distance(distribution, p) - TINY
        if groups is APART:
            assert (groups.coarse(distribution) - groups.coarse(p)).abs().max() < TINY
        most = max(most, distance(distribution, p))
    assert most > SEEN
    assert pcg_tree(groups).exactness == LOSSY


def test_chains_only():
    target, drafter = pair(3, 4, 1)
    shape = StaticTree(Template.branching((2,)))
    with pytest.raises(ValueError, match="judges chains, but this draft branches"):
        first_value_distribution(target, ModelDrafter(drafter, shape), PCG(THREE))


def test_it_accepts_more_than_exact_rules_do():
    draft, scored, noise = window(64, 8, 400)
    shared = Groups.by_cosine(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)), 0.3)
    accepted = [rule(draft, scored, noise).accepted.sum().item() for rule in (Token(), Block(), PCG(shared))]
    assert accepted[2] > 1.2 * max(accepted[:2])


def test_rows_do_not_depend_on_their_batch():
    draft, scored, _ = window(32, 6, 8)
    rule = PCG(Groups.by_cosine(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), 0.2))
    whole = rule(draft, scored, Noise.from_seed(0, 8))
    for row in range(8):
        own, q = slice(row, row + 1), Categorical(draft.q.scores[row : row + 1])
        alone = replace(draft, nodes=draft.nodes[own], parents=draft.parents[own], start=draft.start[own], q=q)
        verdict = rule(alone, Scored(Categorical(scored.p.scores[own])), Noise.from_seed(row, 1))
        assert torch.equal(verdict.values, whole.values[own])
        assert torch.equal(verdict.drift, whole.drift[own])


@pytest.mark.parametrize(
    ("make", "words"), [(lambda: PCG(THREE, "both"), "member is 'both'"), (lambda: PCG(THREE, budget=-1), "budget is -1")]
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
