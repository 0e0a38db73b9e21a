"""Relaxed rules in trees: the distributions of a node, what the meter says of them, and budgets draft token by draft token."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY
from mmspec.core.rules.lossy.cool_sd import CoolSD, cool_tree
from mmspec.core.rules.lossy.ensemble import Ensemble
from mmspec.core.rules.lossy.grouped import Grouped, grouped_tree
from mmspec.core.rules.lossy.lantern import Lantern, LanternPlus, Neighbours, lantern_plus_tree, lantern_tree
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.sibling_rules import TopKSiblings, WithoutReplacement
from mmspec.core.rules.siblings import Relaxed, Walk, relaxed
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.relaxed import SEEN, TINY, distance, finished, node, same, window
from tests.oracles.tables import Table, TableTarget, first_value_distribution, one_round, pair, round_outcomes

POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0], [2.5, 0.5]])
NEAR, NEAR3 = Neighbours.of(POINTS, 2), Neighbours.of(POINTS[:3], 2)
RULES = [Lantern(NEAR, 0.3, 2), LanternPlus(NEAR, 4.0, 2), Grouped(POINTS, 3, 0.6, 1.5), CoolSD(1.6, 0.4, 0.0)]
SMALL = [Lantern(NEAR3, 0.4, 2), Grouped(POINTS[:3], 3, 0.6, 2.5), CoolSD(1.6, 0.4, 0.0)]  # for three values
CHEAPER = [Ensemble(0.5), Lenience(0.5)]  # any ratio rule will do

WIDE, WIDE_TOP = StaticTree(Template.branching((3,))), StaticTree(Template.branching((3,)), top)
DEEP, DEEP_TOP = StaticTree(Template.branching((2, 2))), StaticTree(Template.branching((2, 2)), top)


def name(value) -> str:
    return type(getattr(value, "rule", value)).__name__


# --- one node ---------------------------------------------------------------------------------------------------------


def at_a_node(rule, shape, seed: int):
    """The enumerated distribution of the first value and the mean drift, and both by hand."""
    target, drafter = pair(4, 3, seed, zeros=0.2)
    p, q = target.table.probs[1], drafter.table.probs[1]
    outcomes = round_outcomes(target, ModelDrafter(drafter, shape), relaxed(rule), most=2, length=1)
    drawn = shape.pick is not top
    values = [v for v in q.argsort(descending=True, stable=True).tolist() if q[v] > 0]
    by_hand = node(rule.at(torch.zeros(())), p, q if drawn else None, 3 if drawn else values[:3])
    distribution = outcomes.distribution(outcomes.values[:, 0], 4)
    return distribution, (outcomes.weights * outcomes.extra["drift"]).sum().item(), by_hand, distance(distribution, p)


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("shape", [WIDE, WIDE_TOP], ids=["drawn", "top"])
def test_a_node_is_what_it_is_by_hand_and_the_drift_bounds_its_distance(rule, shape):
    """The sum of the excess over the candidates tried is never less than the distance."""
    most = 0.0
    for seed in range(4):
        distribution, drift, (own, cost), spent = at_a_node(rule, shape, seed)
        assert (distribution - own).abs().max() < TINY
        assert drift == pytest.approx(cost, abs=TINY)
        assert drift >= spent - TINY
        most = max(most, spent)
    assert most > SEEN


@pytest.mark.parametrize("shape", [WIDE, WIDE_TOP], ids=["drawn", "top"])
def test_the_bound_is_one_in_trees(shape):
    """With several candidates the distance may be less: what a later one bends may mend what an earlier one bent."""
    gaps = [drift - spent for _, drift, _, spent in (at_a_node(CoolSD(1.6, 0.4, 0.0), shape, seed) for seed in range(4))]
    assert max(gaps) > SEEN


@pytest.mark.parametrize("rule", CHEAPER, ids=name)
def test_other_ratio_rules_go_down_trees_too(rule):
    for shape in (WIDE, WIDE_TOP):
        for seed in range(3):
            target, drafter = pair(4, 3, seed, zeros=0.2)
            outcomes = round_outcomes(target, ModelDrafter(drafter, shape), relaxed(rule), most=2, length=1)
            drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
            assert drift >= distance(outcomes.distribution(outcomes.values[:, 0], 4), target.table.probs[1]) - TINY


def shortfall(siblings, shape) -> float:
    """How far the mean drift of some node falls below the distance."""
    worst = 0.0
    for seed in range(4):
        target, drafter = pair(4, 3, seed, zeros=0.2)
        outcomes = round_outcomes(target, ModelDrafter(drafter, shape), Walk(siblings), most=2, length=1)
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        worst = max(worst, distance(outcomes.distribution(outcomes.values[:, 0], 4), target.table.probs[1]) - drift)
    return worst


class KeepsP(Relaxed):
    """A refused candidate leaves p as it was."""

    def at(self, level, spent):
        return KeepsP(super().at(level, spent).rule)

    def refuse(self, p, q, x, index, count):
        return p, super().refuse(p, q, x, index, count)[1]


class KeepsQ(Relaxed):
    """A refused candidate stays in q, though it cannot be drawn again."""

    def at(self, level, spent):
        return KeepsQ(super().at(level, spent).rule)

    def refuse(self, p, q, x, index, count):
        return super().refuse(p, q, x, index, count)[0], q


class HalfTheExcess(Relaxed):
    """A meter that counts half."""

    def at(self, level, spent):
        return HalfTheExcess(super().at(level, spent).rule)

    def excess(self, p, q, x, chance):
        return 0.5 * super().excess(p, q, x, chance)


@pytest.mark.parametrize(
    ("mutant", "shape"), [(KeepsP, WIDE), (KeepsP, WIDE_TOP), (KeepsQ, WIDE), (HalfTheExcess, Chain(most_likely))], ids=name
)
def test_planted_faults_break_the_bound(mutant, shape):
    """With rules that relax nothing, so that every bit of distance is the fault's own; and with one that does."""
    rule = Lantern(NEAR, 0.3, 2) if mutant is HalfTheExcess else Lantern(NEAR, 0.0, 2)
    assert shortfall(Relaxed(rule), shape) < TINY
    assert shortfall(mutant(rule), shape) > SEEN


@pytest.mark.parametrize("rule", SMALL, ids=name)
@pytest.mark.parametrize("shape", [DEEP, DEEP_TOP], ids=["drawn", "top"])
def test_drift_bounds_the_distance_of_whole_rounds(rule, shape):
    target, drafter = pair(3, 5, 1, zeros=0.0)
    outcomes = round_outcomes(target, ModelDrafter(drafter, shape), relaxed(rule), most=3, length=2)
    mass = torch.zeros(1, dtype=torch.float64)
    for level in range(1, 4):
        mass = target.table.extend(mass, level - 1)
        here = (outcomes.values >= 0).sum(1) == level
        codes = (outcomes.values[here, :level] * 3 ** torch.arange(level - 1, -1, -1)).sum(1)
        mass = mass.index_add(0, codes, outcomes.weights[here])
    drift, spent = (outcomes.weights * outcomes.extra["drift"]).sum().item(), distance(mass, target.table.joint(3))
    assert SEEN < spent <= drift + TINY


# --- chains -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*SMALL, *CHEAPER], ids=name)
@pytest.mark.parametrize("draw", [sampled, most_likely])
@pytest.mark.parametrize("budget", [None, 0.05])
def test_walk_on_chains_is_the_chain_rule(rule, draw, budget):
    """The same distribution of what is committed, what is judged and what it costs, budget and places included."""
    target, drafter = pair(3, 6, 7)
    rule, distributions = replace(rule, budget=budget), []
    for judge in (rule, relaxed(rule)):
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), judge, most=3, length=2)
        meters = [(outcomes.extra[key] * 1e6).round() for key in ("drift", "expected")]
        key = torch.stack([*outcomes.values.double().unbind(1), outcomes.extra["accepted"], outcomes.extra["judged"], *meters], 1)
        found: dict[tuple, float] = {}
        for line, weight in zip(key.tolist(), outcomes.weights.tolist(), strict=True):
            found[tuple(line)] = found.get(tuple(line), 0.0) + weight
        distributions.append(found)
    assert set(distributions[0]) == set(distributions[1])
    assert max(abs(distributions[0][outcome] - distributions[1][outcome]) for outcome in distributions[0]) < TINY
    assert max(outcome[-2] for outcome in distributions[0]) > 0


# --- exact settings and budgets ---------------------------------------------------------------------------------------

EXACT = [
    lantern_tree(NEAR, 0.0, 2),
    lantern_plus_tree(NEAR, 1.0, 2),
    grouped_tree(POINTS, 1),
    cool_tree(1.0, 0.0, 0.0),
    lantern_tree(NEAR, 0.4, 2, budget=0),
    lantern_plus_tree(NEAR, 4.0, 2, budget=0),
    grouped_tree(POINTS, 2, 0.6, 1.5, budget=0),
    cool_tree(budget=0),
    relaxed(Lenience(0.5, budget=0)),
]


@pytest.mark.parametrize("shape", [DEEP, DEEP_TOP, ExpandRerank(2, 3, 6)], ids=["drawn", "top", "search"])
def test_exact_settings_are_the_exact_tree_rule_bit_for_bit(shape):
    rows = 500
    target, drafter = (TableTarget(Table.random(4, 6, seed), torch.float32) for seed in (1, 2))
    noise, exact = Noise.from_seed(0, rows), Walk(WithoutReplacement() if shape is DEEP else TopKSiblings())
    draft, goal = one_round(target, ModelDrafter(drafter, shape), exact, noise, rows, 4, 3)
    assert (draft.q is None) == (shape is not DEEP)
    for rule in EXACT:
        _, verdict = one_round(target, ModelDrafter(drafter, shape), rule, noise, rows, 4, 3)
        assert same(verdict, goal)
        assert (verdict.drift == 0).all()
    for rule in RULES:
        _, verdict = one_round(target, ModelDrafter(drafter, shape), relaxed(rule), noise, rows, 4, 3)
        assert not same(verdict, goal)


def test_facts():
    for rule in EXACT:
        assert (rule.exactness, rule.trees, rule.coupled, rule.uses_q) == (LOSSY, True, False, True)
    assert Walk(TopKSiblings()).exactness == DISTRIBUTION_EXACT
    p, q = (Categorical.of(distribution.probs[1]) for distribution in (Table.random(4, 2, 0), Table.random(4, 2, 1)))
    assert torch.equal(relaxed(RULES[0]).output_distribution(p, q).scores, RULES[0].output_distribution(p, q).scores)
    target, drafter = pair(3, 5, 0)
    with pytest.raises(ValueError, match="Lantern judges chains, but this draft branches"):
        round_outcomes(target, ModelDrafter(drafter, DEEP), SMALL[0], most=3, length=2)


def by_turns(rule, draft, scored, keys, spent: torch.Tensor) -> list[tuple[int, float]]:
    """Accepted draft tokens and drift of every row of a chain, judged one draft token at a time, exactly once the budget is spent."""
    uniform, found = keys.uniform(), []
    for row in range(len(draft.start)):
        accepted, drift = 0, 0.0
        for place in range(int(draft.valid[row, 1:].sum())):
            p = Categorical(scored.p.scores[row, place])
            q = None if draft.q is None else Categorical(draft.q.scores[row, place])
            x, now = draft.draft_tokens[row, place], rule.at(torch.tensor(place))
            exact = spent[row].item() + drift >= rule.budget
            drift += 0.0 if exact else now.excess(p, q, x).item()
            if not uniform[row, place] < (Token() if exact else now).accept_prob(p, q, x):
                break
            accepted += 1
        found.append((accepted, drift))
    return found


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_budgets_are_spent_draft_token_by_draft_token(kind):
    """Chains and walks against a loop over draft tokens; no row overshoots by more than the draft token that spent the last of it."""
    near = Neighbours.of(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), 6)
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    draft, scored, noise = window(12, 5, 60, kind, 3, torch.float64)
    draft = finished(replace(draft, drift=torch.linspace(0, 0.5, 60, dtype=torch.float64)), 7)
    over = 0
    for rule in (Lantern(near, 0.4, 6, 0.4), LanternPlus(near, 4.0, 6, 0.4), Grouped(points, 6, 0.5, 9.0, 0.4), CoolSD(3.0, 0.1, 0.0, 0.4)):
        keys = noise.accept(draft.position()[:, :-1], draft.start)
        for judge, own in ((rule, keys), (relaxed(rule), keys.branch(1)[..., 0])):
            verdict, said = judge(draft, scored, noise), by_turns(rule, draft, scored, own, draft.drift)
            assert verdict.accepted.tolist() == [accepted for accepted, _ in said]
            assert verdict.drift.tolist() == pytest.approx([drift for _, drift in said], abs=TINY)
            worth = rule.excess(Categorical(scored.p.scores[:, :-1]), draft.q, draft.draft_tokens).nan_to_num().amax(-1)
            total = verdict.pending.drift
            assert (total <= torch.maximum(draft.drift, 0.4 + worth) + TINY).all()
            over += int(((total > 0.4) & (draft.drift < 0.4)).sum())
    assert over > 20


@pytest.mark.parametrize("rule", [replace(rule, budget=0.3) for rule in RULES], ids=name)
@pytest.mark.parametrize("shape", [DEEP, DEEP_TOP], ids=["drawn", "top"])
def test_budgets_cap_the_drift_of_every_row(rule, shape):
    """One candidate's excess is at most 1; in whole runs of trees."""
    rows, most = 64, 10
    target = TableTarget(Table.random(4, 5, 5))
    drafter = ModelDrafter(TableTarget(Table.random(4, 5, 6)), shape)

    def spent(rule) -> torch.Tensor:
        total, stopping = torch.zeros(rows, dtype=torch.float64), DefaultStopping(rows, most)
        for step in decode(target, drafter, relaxed(rule), rows, stopping=stopping, noise=Noise.from_seed(0, rows), control=Fixed(2)):
            total += torch.tensor(step.committed.drift, dtype=torch.float64)
            assert (step.verdict.pending.drift.double() - total).abs().max() < 1e-6
        return total

    capped = spent(rule)
    assert spent(replace(rule, budget=None)).max() > capped.max()
    assert 0.3 < capped.max() < 1.3


def test_a_spent_budget_is_exact_from_there_on():
    """Once the first value has cost something, the second follows the target's own conditional, in trees as in chains."""
    seen = 0
    for seed in range(4):
        target, drafter = pair(3, 5, seed, zeros=0.0)
        outcomes = round_outcomes(target, ModelDrafter(drafter, DEEP), relaxed(CoolSD(2.0, 0.0, 0.0, 1e-12)), most=3, length=2)
        values, weights = outcomes.values, outcomes.weights
        for first in range(3):
            here = (values[:, 0] == first) & (values[:, 1] >= 0)
            costs = target.table.probs[1, first] < drafter.table.probs[1, first]  # and a candidate refused before it did, too
            if costs and weights[here].sum() > 1e-6:
                second = torch.zeros(3, dtype=torch.float64).index_add_(0, values[here, 1], weights[here])
                assert (second / second.sum() - target.table.probs[3 + first]).abs().max() < 1e-8
                seen += 1
    assert seen >= 4


def test_first_values_of_chains_keep_their_distribution():
    target, drafter = pair(3, 3, 3)
    for rule in SMALL:
        distribution = first_value_distribution(target, ModelDrafter(drafter), relaxed(rule))
        p, q = (world.table.distribution(torch.tensor(1)) for world in (target, drafter))
        assert (distribution - relaxed(rule).output_distribution(p, q).probs()).abs().max() < TINY
