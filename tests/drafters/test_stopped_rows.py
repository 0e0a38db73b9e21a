"""Searches in which rows stop one by one: a stopped row is drafted for as if it were alone, and no state of a PAD node is ever used."""

from functools import cache

import pytest

import mmspec
from mmspec.core.records import PAD
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.shapes import UNRUN
from mmspec.drafters.trees import search
from mmspec.drafters.trees.search import ExpandRerank
from tests.drafters.cascades import perturbed
from tests.drafters.runs import Inputs, random_prompt
from tests.drafters.test_early_exit import adapter
from tests.drafters.test_search import SHAPES, grown

BATCHES = [random_prompt(5, 9, 7, seed=seed) for seed in (1, 2, 4)]
TREES = ("opt", "dynamic")
MAKE = {
    "exit-1": lambda big: EarlyExit(1),
    "exit-2": lambda big: EarlyExit(2),
    "exit-3": lambda big: EarlyExit(3),
    "kangaroo": adapter,
    "eesd": lambda big: adapter(big, 1, mlp=True),
    "itself": lambda big: big,
    "near": lambda big: perturbed(big, 0.02),
}
EACH_TREE = pytest.mark.parametrize("tree", TREES)


@pytest.fixture(scope="module")
def sources(big):
    return {name: make(big) for name, make in MAKE.items()}


def decoded(model, inputs: Inputs, source, tree, **options) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """The output, and per row what every round brought while the row was going: (accepted, drafted)."""
    rounds = [[] for _ in inputs["input_ids"]]

    def note(step):
        for row, values in enumerate(step.committed.values):
            if values:
                rounds[row].append((step.committed.accepted[row], step.committed.drafted[row]))

    settings = {"max_new_tokens": 16, "draft_length": 8, "tree": tree, "on_step": note} | options
    out = mmspec.text.generate(model, inputs, source, **settings)
    return [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)], rounds


@cache
def plain(model, batch: int, temperature: float = 0.0) -> list[list[int]]:
    """The output of plain decoding of one of `BATCHES`."""
    return decoded(model, BATCHES[batch], None, None, temperature=temperature, seed=3)[0]


def row_of(inputs: Inputs, row: int) -> Inputs:
    return {key: value[row : row + 1] for key, value in inputs.items()}


@EACH_TREE
@pytest.mark.parametrize("name", MAKE)
def test_greedy_output_is_that_of_plain_decoding_and_rows_accept_what_they_accept_alone(big, sources, name, tree):
    """Round by round. Before stopped rows were told apart, a model drafter kept states of PAD nodes and drafted worse from then on."""
    for batch, inputs in enumerate(BATCHES):
        tokens, together = decoded(big, inputs, sources[name], tree)
        assert tokens == plain(big, batch)
        row = (batch + len(tree)) % 3  # the trees begin with different rows
        assert together[row] == decoded(big, row_of(inputs, row), sources[name], tree)[1][0]


@EACH_TREE
@pytest.mark.parametrize("name", MAKE)
def test_sampled_output_is_that_of_plain_sampling(big, sources, name, tree):
    """Over one batch: `tests.drafters.test_products` samples from these sources in these trees, too."""
    assert decoded(big, BATCHES[0], sources[name], tree, temperature=1.0, seed=3)[0] == plain(big, 0, 1.0)


def test_rows_stop_at_different_levels(big, sources):
    """Otherwise the tests above show nothing."""
    for tree in TREES:
        seen = []
        decoded(big, BATCHES[0], sources["near"], tree, on_step=lambda step, seen=seen: seen.append(step.draft.depth().amax(1).tolist()))
        assert any(len(set(depths)) > 1 for depths in seen)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "search"])
def test_every_node_that_ran_has_its_own_column(name):
    """`origin` names a real column for nodes that have children, and never one that is PAD in that row."""
    shape, values, scored = SHAPES[name], list(range(6)), []

    real = ExpandRerank.grow

    def grow(self, score, draft, budget, noise):
        def watch(growing):
            scored.append(growing)
            return score(growing)

        return real(self, watch, draft, budget, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExpandRerank, "grow", grow)
        draft, origin, _ = grown(shape, values)
    last = scored[-1]
    for row in values:
        for column in range(draft.roots, draft.size):
            own = int(origin[row, column - draft.roots])
            if draft.parents[row, column] == PAD or own == UNRUN:
                continue
            assert last.parents[row, own] != PAD
            assert last.nodes[row, own] == draft.nodes[row, column]
        inner = {int(parent) for parent in draft.parents[row] if parent >= draft.roots}
        assert all(origin[row, column - draft.roots] < last.size for column in inner)


# --- mutants ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped_rows_marked_as_run(monkeypatch):
    monkeypatch.setattr(search, "_expanded", lambda columns, chosen, below, runs: columns.scatter(1, chosen, below))


@EACH_TREE
@pytest.mark.usefixtures("stopped_rows_marked_as_run")
def test_mutant_states_of_pad_nodes_give_wrong_tokens(big, sources, tree):
    for name in ("exit-2", "exit-3"):
        assert any(decoded(big, inputs, sources[name], tree)[0] != plain(big, batch) for batch, inputs in enumerate(BATCHES))


@EACH_TREE
@pytest.mark.usefixtures("stopped_rows_marked_as_run")
def test_mutant_states_of_pad_nodes_cost_acceptance(big, sources, tree):
    def accepted(rows):
        return sum(count for row in rows for count, _ in row)

    for name in ("itself", "near"):
        together = sum(accepted(decoded(big, inputs, sources[name], tree)[1]) for inputs in BATCHES)
        alone = sum(accepted(decoded(big, row_of(inputs, row), sources[name], tree)[1]) for inputs in BATCHES for row in range(3))
        assert together < alone


@EACH_TREE
@pytest.mark.usefixtures("stopped_rows_marked_as_run")
def test_mutant_a_stopped_row_has_no_column(tree):
    with pytest.raises(AssertionError):
        test_every_node_that_ran_has_its_own_column(tree)
