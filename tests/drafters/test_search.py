"""Searched trees that stop early: the rows' own depths follow the papers' rules, and nothing else changes."""

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, validate
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import TopKSiblings
from mmspec.core.rules.siblings import Walk
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.trees.search import BeamTree, DynamicDepth, ExpandRerank, OptTree
from tests.drafters.runs import greedy, plain, random_prompt, run
from tests.drafters.worlds import cooled, world
from tests.oracles.tables import Table, TableSession, TableTarget, exact_error, pair, run_loop

STOPS = {"opt": OptTree(0.3), "dynamic": DynamicDepth((1, 2), -0.3), "both depths": DynamicDepth((2,), -0.5)}


def moody(size: int = 6) -> TableTarget:
    """Sure after even values, clueless after odd ones: rows of one batch want trees of different depths."""
    generator = torch.Generator().manual_seed(3)
    sure, flat = (
        torch.softmax(temperature * torch.rand(size, size, generator=generator, dtype=torch.float64), -1) for temperature in (30, 0.5)
    )
    even = (torch.arange(size) % 2 == 0)[:, None]
    return TableTarget(Table(torch.where(even, sure, flat)))


class Counted(TableSession):
    calls = 0

    def score(self, draft):
        self.calls += 1
        return super().score(draft)


def grown(shape, values, *, left=99):
    """The draft behind the given last values, and how often the drafter ran."""
    session, (_, pending) = Counted(moody(), len(values)), moody().begin(len(values))
    pending.nodes[:, 0] = torch.tensor(values)
    budget = Budget(torch.full((len(values),), left), shape.depth)
    draft, origin = shape.grow(session.score, pending, budget, Noise.from_seed(0, len(values)))
    validate(draft)
    return draft, origin, session.calls


def nodes(draft, row) -> set[tuple]:
    """The row's draft tokens as paths of values."""
    paths, found = {}, set()
    for column, (parent, value) in enumerate(zip(draft.parents[row].tolist(), draft.nodes[row].tolist(), strict=True)):
        if parent != -2:
            paths[column] = () if column == 0 else (*paths[parent], value)
            found |= {paths[column]}
    return found - {()}


def reference(value: int, shape: ExpandRerank) -> tuple[set[tuple], int]:
    """One row's tree by the papers' words, in plain Python: its nodes and its levels."""
    table = moody().table.probs
    beam, found, before, depth = {(): 1.0}, {}, 0.0, 0

    def best(paths: dict, count: int) -> dict:
        return dict(sorted(paths.items(), key=lambda item: -item[1])[:count])

    while depth < shape.depth:
        level = {}
        for path, chance in beam.items():
            distribution = table[path[-1] if path else value]
            for child in distribution.argsort(descending=True)[: shape.width].tolist():
                level[(*path, child)] = chance * distribution[child].item()
        found, beam, depth = found | level, best(level, shape.width), depth + 1
        length = sum(best(found, shape.nodes).values())
        stop = shape.stop
        if isinstance(stop, OptTree) and length - before <= stop.delta:
            break
        if isinstance(stop, DynamicDepth) and depth in stop.depths and sum(beam.values()) < torch.tensor(stop.threshold).exp():
            break
        before = length
    return set(best(found, shape.nodes)), depth


SHAPES = {
    "search": ExpandRerank(2, 5, 6),
    "opt": ExpandRerank(2, 5, 6, OptTree(0.3)),
    "stingy opt": ExpandRerank(3, 6, 12, OptTree(0.02)),
    "dynamic": ExpandRerank(2, 5, 6, DynamicDepth((1, 3), -0.3)),
    "lenient dynamic": ExpandRerank(3, 6, 9, DynamicDepth((2, 4), -1.5)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_row_gets_the_tree_of_the_papers(name):
    shape = SHAPES[name]
    values = list(range(6))
    draft, _, calls = grown(shape, values)
    expected = [reference(value, shape) for value in values]
    assert [nodes(draft, row) for row in values] == [tree for tree, _ in expected]
    assert calls == draft.height == max(levels for _, levels in expected)
    assert shape.stop is None or len({levels for _, levels in expected}) > 1  # the rows differ, or the test shows nothing


def test_the_sure_go_deeper():
    for name in ("opt", "dynamic"):
        depths = [reference(value, SHAPES[name])[1] for value in range(6)]
        assert max(depths[1::2]) < max(depths[::2]) == 5


def test_the_drafter_rests_when_no_row_goes_on():
    flat = world([0.25] * 4, [0.25] * 4)[1]
    for stop, calls in ((None, 6), (OptTree(0.4), 2), (OptTree(1.1), 1), (DynamicDepth((3,), -0.1), 3), (DynamicDepth((3,), -9.0), 6)):
        session, (_, pending) = Counted(flat, 2), flat.begin(2)
        ExpandRerank(2, 6, 8, stop).grow(session.score, pending, Budget(torch.full((2,), 99), 6), Noise.from_seed(0, 2))
        assert session.calls == calls


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "search"])
def test_a_row_drafts_the_same_alone_and_in_a_batch(name):
    draft, _, _ = grown(SHAPES[name], list(range(6)))
    for value in range(6):
        assert nodes(grown(SHAPES[name], [value])[0], 0) == nodes(draft, value)


def test_room_ends_a_search_as_a_stop_does():
    draft, origin, _ = grown(SHAPES["opt"], [0, 2, 4], left=3)
    assert all(len(path) <= 2 for row in range(3) for path in nodes(draft, row))
    assert origin.shape == draft.draft_tokens.shape


# --- beams ------------------------------------------------------------------------------------------------------------


def beams(value: int, width: int, depth: int) -> set[tuple]:
    """All prefixes of the `width` best paths of a beam search after `value`."""
    table, held = moody().table.probs, {(): 1.0}
    for _ in range(depth):
        longer = {(*path, v): p * float(table[(value, *path)[-1], v]) for path, p in held.items() for v in range(len(table))}
        held = dict(sorted(longer.items(), key=lambda each: -each[1])[:width])
    return {path[: n + 1] for path in held for n in range(depth)}


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (2, 4), (4, 2), (5, 2)])
def test_beams_are_a_tree_of_the_best_paths_of_full_length(width, depth):
    draft, _, calls = grown(BeamTree(width, depth), list(range(6)))
    assert calls == depth
    for value in range(6):
        assert nodes(draft, value) == beams(value, width, depth)
        assert nodes(grown(BeamTree(width, depth), [value])[0], 0) == nodes(draft, value)
    short, _, _ = grown(BeamTree(width, depth), [0, 1], left=3)
    assert [nodes(short, row) for row in range(2)] == [beams(row, width, min(2, depth)) for row in range(2)]


# --- the distribution ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("rule", [Walk(TopKSiblings()), Match()], ids=["topk", "match"])
def test_searches_that_stop_are_exact(rule, stop):
    """Where a search stops depends on the drafter's distributions alone, never on a draw."""
    for seed in (0, 1):
        target, drafter = pair(2, 6, seed)
        shape = ExpandRerank(2, 3, 4, STOPS[stop])
        assert exact_error(target, ModelDrafter(drafter, shape), rule, most=3, length=3, once=not isinstance(rule, Match)) < 1e-9


@pytest.mark.parametrize("stop", STOPS)
def test_coupled_searches_give_the_tokens_of_plain_sampling(stop):
    target, drafter = moody(), moody()
    expected = run_loop(target, NoDraft(), Match(), Noise.from_seed(5, 100), 100, 12, 0).outputs
    shape = ExpandRerank(2, 4, 8, STOPS[stop])
    assert run_loop(target, ModelDrafter(drafter, shape), Coupled(), Noise.from_seed(5, 100), 100, 12, 4).outputs == expected


@pytest.mark.parametrize("stop", STOPS)
def test_models_decode_as_they_would_without(big, stop):
    inputs, shape = random_prompt(5, 9, 7, seed=1), ExpandRerank(3, 6, 10, STOPS[stop])
    out = run(big, cooled(big, shape), inputs, length=6)
    assert out.sequences.tolist() == greedy(big, inputs)
    assert out.stats.accepted > 0
    out = run(big, cooled(big, shape, 1.6), inputs, Match(), length=6, seed=3, temperature=1.0)
    assert out.sequences.tolist() == plain(big, inputs, seed=3)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="delta is -1"):
        OptTree(-1)
    with pytest.raises(ValueError, match="depths is"):
        DynamicDepth(())
    with pytest.raises(ValueError, match="threshold is 1"):
        DynamicDepth((2,), 1)
    with pytest.raises(ValueError, match="width, depth and nodes are 0, 1, 1"):
        ExpandRerank(0, 1, 1)
