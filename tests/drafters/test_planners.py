"""Planners find the best tree there is, and what they promise is what the loop then does."""

import json
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import TopKSiblings, WithoutReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, Comb, draw_without_replacement, sampled, top
from mmspec.drafters.trees.calibration import Calibration, measure_costs
from mmspec.drafters.trees.planners import expected_length, sequoia, sparse_tree
from mmspec.drafters.trees.static import StaticTree, Template
from tests.drafters.worlds import play, ranked, rates_without_replacement, world
from tests.names import named

FLAT, PEAKED = [0.25] * 4, [0.85, 0.08, 0.04, 0.02]
VARIED = [[0.7, 0.15, 0.1], [0.5, 0.3, 0.05], [0.9, 0.02, 0.01], [0.4, 0.35, 0.2]]


def trees(most: int, ranks: int, depth: int) -> list[Template]:
    """Every template of up to `most` nodes."""
    found, grown = [], {frozenset([(0,)])}
    for _ in range(most):
        found += [Template(tuple(tree)) for tree in grown]
        more = set()
        for tree in grown:
            for path in tree:
                for new in ((*path, 0), (*path[:-1], path[-1] + 1)):
                    if len(new) <= depth and new[-1] < ranks:
                        more.add(tree | {new})
        grown = more - grown
    return found


TREES = trees(7, 3, 4)


def test_the_brute_force_sees_every_tree():
    sizes = [tree.size for tree in TREES]
    assert [sizes.count(size) for size in (1, 2, 3)] == [1, 2, 5]  # ordered forests: the Catalan numbers
    assert sizes.count(4) == 14 - 1  # four siblings are one too many
    assert len({tree.paths for tree in TREES}) == len(TREES)


# --- the best tree ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [VARIED, FLAT, PEAKED[:3], [[0.5, 0.5], [0.5, 0.5, 0.0]], [[0.3]]], ids=str)
@pytest.mark.parametrize("nodes", [1, 2, 4, 7])
def test_planners_find_the_best_of_all_trees(table, nodes):
    best = max(expected_length(tree, table) for tree in TREES if tree.size <= nodes)
    narrow = [row[:3] for row in table] if isinstance(table[0], list) else table[:3]
    assert expected_length(sparse_tree(narrow, nodes), table) >= best - 1e-12
    template, length = sequoia(narrow, nodes, 4, 0.0, lambda size: 1.0)
    assert length == pytest.approx(best, abs=1e-12)
    assert expected_length(template, table) == pytest.approx(length, abs=1e-12)
    assert template.size <= nodes


@pytest.mark.parametrize("draft", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("slope", [0.001, 0.05, 0.3])
def test_sequoia_takes_the_size_and_depth_that_cost_least_a_value(draft, slope):
    def seconds(tree: Template) -> float:
        return (tree.depth * draft + 1 + slope * tree.size) / expected_length(tree, VARIED)

    template, length = sequoia(VARIED, 7, 4, draft, lambda size: 1 + slope * size)
    assert seconds(template) == pytest.approx(min(map(seconds, TREES)), abs=1e-12)
    assert length == pytest.approx(expected_length(template, VARIED))
    table = {0: 1.0, 7: 1 + 7 * slope}  # two measured sizes, the line between them
    assert sequoia(VARIED, 7, 4, draft, table)[0] == template


def test_dear_nodes_make_small_trees_and_dear_steps_shallow_ones():
    small, large = (sequoia(PEAKED, 32, 8, 0.01, lambda size, slope=slope: 1 + slope * size)[0] for slope in (0.2, 0.001))
    assert small.size < large.size
    shallow, deep = (sequoia(PEAKED, 32, 8, draft, lambda size: 1 + 0.001 * size)[0] for draft in (0.5, 0.01))
    assert shallow.depth < deep.depth


def test_flat_acceptance_widens_and_peaked_acceptance_deepens():
    for plan in (sparse_tree, lambda table, nodes: sequoia(table, nodes, 12, 0.0, lambda size: 1.0)[0]):
        flat, peaked = plan(FLAT, 12), plan(PEAKED, 12)
        assert [len(level.rank) for level in flat.levels] == [4, 8]
        assert peaked.depth >= 7
        assert len(peaked.levels[0].rank) <= 3
        assert flat.depth < peaked.depth


def test_an_unplannable_table_is_told_in_one_line():
    for plan in (lambda table: sparse_tree(table, 4), lambda table: sequoia(table, 4, 2, 0.0, lambda size: 1.0)):
        for table in ([], [[]], [0.0], [[0.0, 0.5]]):
            with pytest.raises(ValueError, match="is 0 for every draft token"):
                plan(table)
        with pytest.raises(ValueError, match=r"accuracy\[0\]\[1\] is 1.5"):
            plan([[0.5, 1.5]])
    with pytest.raises(ValueError, match="nodes and depth are 0 and 1"):
        sparse_tree(FLAT, 0)
    with pytest.raises(ValueError, match="nodes and depth are 4 and 0"):
        sequoia(FLAT, 4, 0, 0.0, lambda size: 1.0)
    with pytest.raises(ValueError, match="draft_seconds is -1"):
        sequoia(FLAT, 4, 2, -1, lambda size: 1.0)


# --- what is promised is what happens ---------------------------------------------------------------------------------

P, Q = [0.45, 0.2, 0.2, 0.1, 0.05], [0.3, 0.3, 0.1, 0.2, 0.1]
DRAWN = rates_without_replacement(P, Q, 4)
WORLDS = {
    "flat": (Walk(TopKSiblings()), top, ranked(FLAT, 8), FLAT),
    "peaked": (Walk(TopKSiblings()), top, ranked(PEAKED, 8), PEAKED),
    "flat match": (Match(), top, ranked(FLAT, 8), FLAT),
    "drawn": (Walk(WithoutReplacement()), draw_without_replacement, (P, Q), DRAWN),
}


@cache
def calibrated(case):
    rule, pick, (p, q), _ = WORLDS[case]
    return play(*world(p, q), StaticTree(Template.branching((4, 2)), pick), rule, rows=128, most=150, length=2, seed=1)[1]


@cache
def tokens_per_call(case, template):
    rule, pick, (p, q), _ = WORLDS[case]
    shape = StaticTree(template, pick)
    return play(*world(p, q), shape, rule, rows=128, most=150, length=template.depth, seed=1000)[0].tokens_per_call


@pytest.mark.parametrize("plan", ["sparse", "sequoia"])
@pytest.mark.parametrize("case", WORLDS)
def test_the_measured_length_is_the_promised_one(case, plan):
    """Within 3 %, from the true rates and from calibrated ones; and the calibration finds the true rates."""
    rates, calibration = WORLDS[case][-1], calibrated(case)
    for level in calibration.accuracy():
        assert level == pytest.approx(rates[: len(level)], abs=0.02)
    assert calibration.by_rank() == pytest.approx(rates, abs=0.02)
    for table in (rates, calibration.by_rank()):
        template = sparse_tree(table, 12) if plan == "sparse" else sequoia(table, 24, 6, 0.05, lambda size: 1 + 0.02 * size)[0]
        assert tokens_per_call(case, template) == pytest.approx(expected_length(template, table), rel=0.03)


def test_a_wrong_table_is_seen():
    """Power: flat rates taken for peaked ones miss by far more than 3 %."""
    template = sparse_tree(FLAT, 12)
    stats, _ = play(*world(*ranked(PEAKED, 8)), StaticTree(template, top), Match(), length=template.depth)
    assert stats.tokens_per_call > 1.1 * expected_length(template, FLAT)


def test_the_oracle_of_drawn_siblings():
    assert DRAWN[0] == pytest.approx(sum(map(min, P, Q)))
    assert all(before > after for before, after in pairwise(DRAWN))
    assert sum(rates_without_replacement(P, P, 2)) == pytest.approx(1)


# --- calibration ------------------------------------------------------------------------------------------------------


def step(parents, keep, *values):
    committed = SimpleNamespace(values=list(values))
    draft = SimpleNamespace(parents=torch.tensor(parents), size=len(parents[0]), roots=1)
    return SimpleNamespace(draft=draft, verdict=SimpleNamespace(keep=torch.tensor(keep)), committed=committed)


def test_calibration_counts_what_was_judged():
    """Root 0 with draft tokens 1, 2, 3; 4 under 1; 5, 6 under 2."""
    tree = [-1, 0, 0, 0, 1, 2, 2]
    calibration = Calibration()
    calibration(
        step([tree], [[0, 2, 6, -1, -1, -1, -1]], [7, 8, 9])
    )  # the second draft token, its second draft token, then nothing lies below
    assert calibration.hits == [[0, 1, 0], [0, 1]]
    assert calibration.tries == [[1, 1, 1], [1, 1]]
    calibration(step([tree], [[0, 1, -1, -1, -1, -1, -1]], [7, 8]))  # the first draft token, and a miss under it
    assert calibration.hits == [[1, 1, 0], [0, 1]]
    assert calibration.tries == [[2, 2, 2], [2, 1]]
    calibration(step([tree], [[0, -1, -1, -1, -1, -1, -1]], [7]))
    assert calibration.hits == [[1, 1, 0], [0, 1]]
    assert calibration.tries == [[3, 3, 3], [2, 1]]
    assert calibration.accuracy(least=3) == [[1 / 3, 1 / 3, 0], [0, 0]]
    assert calibration.by_rank() == [1 / 5, 2 / 4, 0]


def test_rounds_that_were_cut_are_no_misses():
    tree = [-1, 0, 0, 1, 1]
    for values, tries in (([7], [[1, 1]]), ([7, 8], [[1, 1], [1, 1]])):
        calibration = Calibration()
        calibration(step([tree], [[0, 1, 4, -1, -1]], values))  # two draft tokens survived, the row's room or end value cut them
        assert calibration.tries == tries
        assert calibration.hits == [[1, 0], [0, 1]][: len(tries)]
    calibration = Calibration()
    calibration(step([tree, [-1, 0, 0, -2, -2], [-2] * 5], [[0, -1, -1], [0, 2, -1], [-1] * 3], [7], [7, 8], []))  # no room; finished
    assert (calibration.tries, calibration.hits) == ([[2, 2]], [[0, 1]])


@pytest.mark.parametrize("ends", [(), (3,)])
def test_short_runs_calibrate_as_long_ones_do(ends):
    """Rows of three values, most rounds cut: the rates are the same. Counting the cut as misses would halve them."""
    target, drafter = world(*ranked(PEAKED, 8))
    calibration = Calibration()
    for seed in range(6):
        stopping, noise = DefaultStopping(400, 3, ends), Noise.from_seed(400 * seed, 400)
        shape = StaticTree(Template.branching((2, 2, 1)), top)
        for found in decode(target, ModelDrafter(drafter, shape), Match(), 400, stopping=stopping, noise=noise, control=Fixed(3)):
            calibration(found)
    for level in calibration.accuracy(least=200):
        assert level == pytest.approx(PEAKED[: len(level)], abs=0.03)


@pytest.mark.parametrize("shape", [Comb(3, top), Chain(sampled), StaticTree(Template(((0,), (1,), (0, 0), (0, 0, 0))))], ids=named)
def test_calibration_serves_any_shape(shape):
    stats, calibration = play(*world(P, Q), shape, Coupled(), rows=32, most=40, length=3)
    assert sum(map(sum, calibration.hits)) == stats.accepted
    assert calibration.tries[0][0] <= stats.row_calls
    chance = calibration.hits[0][0] / calibration.tries[0][0]
    assert 0.3 < chance < 1


def test_calibrations_survive_json():
    calibration = play(*world(P, Q), Comb(3, top), Match(), rows=8, most=20, length=3)[1]
    again = Calibration.from_json(json.loads(json.dumps(calibration.to_json())))
    assert again == calibration
    for wrong in (None, {}, {"hits": [[1]], "tries": [[2, 3]]}, {"hits": [[-1]], "tries": [[2]]}, {"hits": 3, "tries": 3}):
        with pytest.raises(ValueError, match="not a calibration"):
            Calibration.from_json(wrong)
    with pytest.raises(ValueError, match="more hits than tries"):
        Calibration.from_json({"hits": [[2]], "tries": [[1]]})


# --- costs ------------------------------------------------------------------------------------------------------------


def test_costs_are_measured_and_leave_the_sessions_as_they_were():
    target, drafter = world(P, Q)
    costs = measure_costs(target, drafter, 2, sizes=(0, 3, 9), repeats=3)
    assert sorted(costs.verify_seconds) == [0, 3, 9]
    assert min(costs.draft_seconds, *costs.verify_seconds.values()) > 0
    assert costs.verify_seconds[9] > costs.verify_seconds[0]
    assert sequoia(DRAWN, 9, 3, costs.draft_seconds, costs.verify_seconds)[1] > 1
    with pytest.raises(ValueError, match="at least 1 repeat"):
        measure_costs(target, drafter, 2, repeats=0)
