"""Best-first trees: the likeliest paths of all, by enumeration and by a heap in plain Python, and the tokens of plain decoding."""

from heapq import heappop, heappush
from itertools import product
from math import inf, log

import pytest
import torch

import mmspec
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, validate
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import TopKSiblings
from mmspec.core.rules.siblings import Walk
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.trees import best_first
from mmspec.drafters.trees.best_first import BestFirst
from tests.drafters.cascades import perturbed
from tests.drafters.runs import random_prompt, run
from tests.drafters.test_guided import lively
from tests.drafters.test_search import Counted, nodes
from tests.drafters.worlds import cooled
from tests.oracles.tables import Table, TableTarget, exact_error, pair, run_loop

SIZE, LEVELS, ROWS = 4, 5, 3
TABLE = Table.random(SIZE, LEVELS + 2, 5, sharp=0.5)
PROMPTS = random_prompt(5, 9, 1, seed=8)


def grown(shape: BestFirst, length: int = 4096, left: int = LEVELS + 1, rows: tuple[int, ...] = (0, 1, 2), coupled: bool = False):
    """The draft of rows that have committed their number, its columns in the scored draft, and how often the drafter ran."""
    session, pending = Counted(TableTarget(TABLE), len(rows)), TableTarget(TABLE).begin(len(rows))[1]
    pending.nodes[:, 0] = torch.tensor(rows)
    noise = Noise.from_seed(list(rows), len(rows), coupled=coupled)
    draft, origin = shape.grow(session.score, pending, Budget(torch.full((len(rows),), left), length), noise)
    validate(draft)
    assert origin.shape == draft.draft_tokens.shape
    return draft, origin, session.calls


def chances(row: int, levels: int = LEVELS) -> dict[tuple[int, ...], float]:
    """The probability of every path of up to `levels` values after the row's committed value."""
    found = {(): 1.0}
    for level in range(levels):
        for path in product(range(SIZE), repeat=level):
            code = 0
            for value in (row, *path):
                code = code * SIZE + value
            found |= {(*path, value): found[path] * float(TABLE.probs[code, value]) for value in range(SIZE)}
    del found[()]
    return found


def best(paths: dict[tuple[int, ...], float], count: int) -> list[tuple[int, ...]]:
    return sorted(paths, key=lambda path: -paths[path])[:count]


def by_heap(row: int, shape: BestFirst) -> set[tuple[int, ...]]:
    """One row's tree by SpecExec's words: pop the best paths from a heap, a batch a call, until nothing in the best `nodes` is left."""
    paths, known, waiting = chances(row), {}, [(-1.0, ())]
    while True:
        worst = -inf if len(known) < shape.nodes else known[best(known, shape.nodes)[-1]]
        batch = []
        while waiting and len(batch) < (shape.width or 10**6) and -waiting[0][0] >= max(worst, shape.threshold):
            batch.append(heappop(waiting)[1])
        if not batch:
            kept = best(known, shape.nodes)
            return {path for path in kept if known[path] >= shape.threshold or path == kept[0]}
        for parent in batch:
            if len(parent) < min(shape.depth, LEVELS):
                children = best({(*parent, value): paths[(*parent, value)] for value in range(SIZE)}, shape.children)
                known |= {path: paths[path] for path in children}
                for path in children:
                    heappush(waiting, (-paths[path], path))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "by level"])
@pytest.mark.parametrize("count", [1, 2, 7, 40, 200])
def test_without_limits_the_tree_is_the_likeliest_paths(count, mixed):
    draft, _, calls = grown(BestFirst(count, width=None, children=SIZE, mixed=mixed))
    for row in range(ROWS):
        assert nodes(draft, row) == set(best(chances(row), count))
    assert calls <= LEVELS + 1


SHAPES = {
    "one a call": BestFirst(12, width=1, children=SIZE, mixed=True),
    "three a call": BestFirst(30, width=3, children=SIZE, mixed=True),
    "two children": BestFirst(25, width=4, children=2, mixed=True),
    "shallow": BestFirst(25, width=4, depth=2, children=SIZE, mixed=True),
    "threshold": BestFirst(200, width=None, children=SIZE, threshold=0.02, mixed=True),
    "high threshold": BestFirst(30, width=2, children=SIZE, threshold=0.6, mixed=True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_heap_in_plain_python_builds_the_same_tree(name):
    draft, _, _ = grown(SHAPES[name])
    for row in range(ROWS):
        assert nodes(draft, row) == by_heap(row, SHAPES[name])


def test_columns_stand_in_the_order_of_their_probabilities():
    """So the first n draft tokens are the tree of size n: what `TreeSize` counts on."""
    large, _, _ = grown(BestFirst(60, width=None, children=SIZE))
    for size in (1, 5, 20):
        small, _, _ = grown(BestFirst(60, width=None, children=SIZE), length=size)
        assert torch.equal(small.nodes, large.nodes[:, : size + 1])
        assert torch.equal(small.parents, large.parents[:, : size + 1])


def test_a_threshold_takes_a_call_a_level():
    for threshold in (0.3, 0.05, 0.004):
        draft, _, calls = grown(BestFirst(2000, width=None, children=SIZE, threshold=threshold))
        for row in range(ROWS):
            paths = chances(row)
            assert nodes(draft, row) == {path for path in paths if paths[path] >= threshold} | set(best(paths, 1))
        assert calls <= draft.height + 1


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("coupled", [True, False])
def test_a_row_drafts_the_same_alone_and_in_a_batch(mixed, coupled):
    shape = BestFirst(30, width=3, threshold=0.01, mixed=mixed)
    draft, _, _ = grown(shape, coupled=coupled)
    for row in range(ROWS):
        assert nodes(grown(shape, rows=(row,), coupled=coupled)[0], 0) == nodes(draft, row)


def test_budgets_bound_nodes_and_paths():
    for left, deepest in ((1, 0), (2, 1), (4, 3)):
        draft, _, _ = grown(BestFirst(50, width=None, children=SIZE), left=left)
        assert max((len(path) for row in range(ROWS) for path in nodes(draft, row)), default=0) == deepest
    assert grown(BestFirst(50), length=6)[0].size == 7
    assert grown(BestFirst(50).limited(2))[0].height == 2
    assert BestFirst(50, depth=2).limited(4).depth == 2


def test_shared_noise_draws_what_the_target_will_draw():
    """With the target's noise at hand, a drafter equal to its target drafts the target's draws first."""
    target = TableTarget(TABLE)
    plain = run_loop(target, NoDraft(), Coupled(), Noise.from_seed(0, 40), 40, LEVELS, 0).outputs
    noise = Noise.from_seed(0, 40, coupled=True)
    session, pending = target.begin(40)
    draft, _ = BestFirst(6, width=None).grow(session.score, pending, Budget(torch.full((40,), LEVELS), 6), noise)
    assert all(draft.nodes[row, 1] == plain[row][0] for row in range(40))


FEW = pytest.mark.parametrize("shape", [BestFirst(5, width=2), BestFirst(9, threshold=0.2)], ids=["wide", "threshold"])


@FEW
@pytest.mark.parametrize("rule", [Walk(TopKSiblings()), Match()], ids=["topk", "match"])
def test_rules_stay_exact(rule, shape):
    """The form of the tree depends on the drafter's distributions, never on a draw of its own."""
    for seed in (0, 1):
        target, drafter = pair(2, 6, seed)
        once = not isinstance(rule, Match)
        assert exact_error(target, ModelDrafter(drafter, shape), rule, most=3, length=6, once=once) < 1e-9


@FEW
def test_coupled_trees_give_the_tokens_of_plain_sampling(shape):
    target, drafter = pair(4, 8, 1)
    expected = run_loop(target, NoDraft(), Match(), Noise.from_seed(5, 100), 100, 8, 0).outputs
    assert run_loop(target, ModelDrafter(drafter, shape), Coupled(), Noise.from_seed(5, 100), 100, 8, 6).outputs == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 64, 256, 1024])
def test_large_trees_give_the_tokens_of_plain_decoding(big, size, temperature):
    options = {"max_new_tokens": 14, "temperature": temperature, "seed": 3, "stops": [lambda row, ids: row == 1 and len(ids) >= 6]}
    plain = mmspec.text.generate(big, PROMPTS, **options)
    for drafter in (perturbed(big, 0.02), lively(Medusa(32, 5))):
        out = mmspec.text.generate(big, PROMPTS, drafter, tree=BestFirst(size, width=64), draft_length=size, **options)
        assert torch.equal(out.tokens, plain.tokens)
        assert torch.equal(out.lengths, plain.lengths)
        assert out.stats.drafted > 0


def test_larger_trees_take_fewer_calls(big):
    """Also where a drafter's noise is shared: sizes from 1 to 256, greedy and sampled."""
    for temperature in (0.0, 1.0):
        calls = [
            mmspec.text.generate(
                big, PROMPTS, perturbed(big, 0.05), tree="best-first", draft_length=size, max_new_tokens=24, temperature=temperature
            ).stats.target_calls
            for size in (1, 16, 256)
        ]
        assert calls == sorted(calls, reverse=True)
        assert calls[-1] < calls[0]


# --- over rounds ------------------------------------------------------------------------------------------------------


def test_nothing_verified_is_left_after_a_round(big):
    """The walk goes as deep as the tree, so the committed token behind it is no node of the tree: no answer of the target is left over."""
    rounds = []

    def note(step):
        draft, verdict = step.draft, step.verdict
        for row, values in enumerate(step.committed.values):
            if draft.size > 1 and values and not step.committed.ended[row]:
                leaf = int(verdict.keep[row].max())
                children = draft.nodes[row][draft.parents[row] == leaf].tolist()
                rounds.append(values[-1] not in children)

    for temperature in (0.0, 1.0):
        run(big, cooled(big, BestFirst(40), 1.5), PROMPTS, Match() if temperature else None, length=40, temperature=1.0, on_step=note)
    assert len(rounds) > 10
    assert all(rounds)


def test_the_drafter_runs_no_accepted_node_again(big):
    """Accepted nodes that were expanded stay in the drafter's cache; an accepted leaf and the new token are all that a round runs first."""
    first, seen = [], []

    class Watched(BestFirst):
        def grow(self, score, draft, budget, noise):
            first.append(draft.roots)
            return super().grow(score, draft, budget, noise)

    shape = Watched(60, width=8)
    run(big, cooled(big, shape, 1.2), random_prompt(5, seed=2), length=60, on_step=lambda step: seen.append(max(step.committed.accepted)))
    assert max(seen) > 2
    assert set(first) <= {1, 2}


# --- numbers and a mutant ---------------------------------------------------------------------------------------------


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="nodes is 5000: a tree has 1 to 4096 nodes"):
        BestFirst(5000)
    with pytest.raises(ValueError, match="width, depth and children are 0, 64, 32"):
        BestFirst(width=0)
    with pytest.raises(ValueError, match=r"threshold is -0.1: a path probability"):
        BestFirst(threshold=-0.1)
    with pytest.raises(ValueError, match=r"agreement is 1: a probability lies between 0 and below 1"):
        BestFirst(agreement=1)


def test_a_search_that_forgets_waiting_nodes_is_found(monkeypatch):
    real = best_first._Candidates.waiting
    monkeypatch.setattr(best_first._Candidates, "waiting", lambda self, floor, nodes: real(self, floor.clamp_min(log(0.5)), nodes))
    draft, _, _ = grown(SHAPES["three a call"])
    assert any(nodes(draft, row) != by_heap(row, SHAPES["three a call"]) for row in range(ROWS))
