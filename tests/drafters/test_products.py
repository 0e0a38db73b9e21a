"""Every source of drafts x every tree in a ragged batch whose rows end in every way: the tokens of plain decoding.

The rows of the batch end one by one: the first by an end token, the second by a `stops` function, the third by max_new_tokens.
In every third of these runs, one of the rows also runs alone: it must write the same, and every round must draft and accept what it did
in the batch. Greedy and coupled runs, and the rows alone, take turns so that every pair of (source, tree, temperature, row alone) is run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import pytest
import torch

import mmspec
from mmspec.drafters.checkpoints.nets import NETS
from mmspec.drafters.heads.viterbi import JointPath
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.run.registry import DRAFTERS, SELF_DRAFTING
from mmspec.run.shapes import SEARCHES
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt
from tests.drafters.sources import GROWN, IN_CHECKPOINTS, NAMED, OWN_FORM, TREES, World

NEW, LENGTH, HALT, TEMPERATURE, SEED = 9, 4, 6, 1.0, 7
INPUTS = random_prompt(5, 9, 1, seed=8)  # the last row has nothing before its pending token
TEMPERATURES = (0.0, TEMPERATURE)


@dataclass(frozen=True)
class Outcome:
    """What a generation committed, and per row what each of its rounds brought: (drafted, accepted)."""

    tokens: list[list[int]]
    rounds: list[list[tuple[int, int]]]


def decoded(model: Any, source: Any, tree: Any, temperature: float, rows: Sequence[int] = (0, 1, 2), **options: Any) -> Outcome:
    """The chosen rows of `INPUTS`; row 1 is stopped by a function after `HALT` tokens."""
    rounds: list[list[tuple[int, int]]] = [[] for _ in rows]

    def note(step: Any) -> None:
        for row, values in enumerate(step.committed.values):
            if values:
                rounds[row].append((step.committed.drafted[row], step.committed.accepted[row]))

    inputs = {key: value[list(rows)] for key, value in INPUTS.items()}
    settings = {
        "max_new_tokens": NEW,
        "temperature": temperature,
        "seed": [SEED + row for row in rows],
        "draft_length": getattr(tree, "nodes", LENGTH),
    } | options
    stop = [lambda row, values: rows[row] == 1 and len(values) >= HALT]
    out = mmspec.text.generate(model, inputs, source, tree=tree, stops=stop, on_step=note, **settings)
    return Outcome([ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)], rounds)


@pytest.fixture(scope="module")
def model():
    """The model that `target` gives end tokens."""
    return llama(3, seed=0)


@pytest.fixture(scope="module")
def target(model):
    """`model` with end tokens that end the first row early and no other, greedily and sampled."""
    outputs = [decoded(model, None, None, temperature).tokens for temperature in TEMPERATURES]
    others = {token for rows in outputs for row in rows[1:] for token in row} | {t for rows in outputs for t in rows[0][:4]}
    model.generation_config.eos_token_id = [next(t for t in rows[0] if t not in others) for rows in outputs]
    return model


@pytest.fixture(scope="module")
def world(target, small, tmp_path_factory):
    noise = random_prompt(40, 40, seed=2)["input_ids"].tolist()
    return World(target, small, greedy(target, INPUTS) + noise, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def plain(target):
    """Per temperature, the output of plain decoding: each row alone."""
    return {temperature: [decoded(target, None, None, temperature, [row]).tokens[0] for row in range(3)] for temperature in TEMPERATURES}


def test_the_rows_end_in_three_ways(target, plain):
    for temperature in TEMPERATURES:
        first, second, third = plain[temperature]
        assert 4 < len(first) < NEW
        assert first[-1] in target.generation_config.eos_token_id
        assert len(second) == HALT
        assert len(third) == NEW


def check(world: World, plain: Any, name: str, source: Any, tree: str, temperature: float, alone: int | None = None) -> None:
    """The batch, and one row of it alone."""
    together = decoded(world.big, source, TREES[tree], temperature)
    assert together.tokens == plain[temperature], f"{name}, {tree}, temperature {temperature}: wrong tokens"
    if alone is not None:
        single = decoded(world.big, source, TREES[tree], temperature, [alone])
        assert single.tokens[0] == plain[temperature][alone], f"{name}, {tree}, temperature {temperature}, row {alone} alone: wrong tokens"
        assert single.rounds[0] == together.rounds[alone], (
            f"{name}, {tree}, temperature {temperature}, row {alone}: other drafts than alone"
        )


def in_turn(shift: int) -> Iterator[tuple[str, float, int | None]]:
    """Every tree, with the temperature and the row that runs alone of the source of number `shift`."""
    for number, tree in enumerate(TREES, shift):
        yield tree, TEMPERATURES[number % 2], (number // 3 + shift) % 3 if number % 3 == 0 else None


def check_trees(world: World, plain: Any, name: str, turns: Iterable[tuple[str, float, int | None]]) -> None:
    sources = {temperature: GROWN[name](world, temperature) for temperature in TEMPERATURES}
    for tree, temperature, alone in turns:
        check(world, plain, name, sources[temperature], tree, temperature, alone)


def check_own_form(world: World, plain: Any, name: str) -> None:
    """Chains at both temperatures, one of them with a row alone."""
    turn = list(OWN_FORM).index(name)
    for number, temperature in enumerate(TEMPERATURES, turn):
        check(world, plain, name, OWN_FORM[name](world, temperature), "chain", temperature, turn // 2 % 3 if number % 2 == 0 else None)


def test_every_pair_of_factors_is_run():
    runs = [(name, *turn) for shift, name in enumerate(GROWN) for turn in in_turn(shift)]
    factors = (GROWN, TREES, TEMPERATURES, range(3))
    for (one, left), (other, right) in combinations(enumerate(factors), 2):
        missing = set(product(left, right)) - {(run[one], run[other]) for run in runs}
        assert not missing


@pytest.mark.parametrize("name", GROWN)
def test_what_grows_trees_is_exact_in_every_tree(name, world, plain):
    check_trees(world, plain, name, in_turn(list(GROWN).index(name)))


@pytest.mark.parametrize("name", OWN_FORM)
def test_what_has_a_form_of_its_own_is_exact_and_takes_no_tree(name, world, plain):
    check_own_form(world, plain, name)
    if name.removeprefix("name ") in SELF_DRAFTING:  # names for what is tested above
        check(world, plain, name, OWN_FORM[name](world, TEMPERATURE), "opt", TEMPERATURE)
        return
    for tree in (tree for tree in TREES.values() if tree is not None):
        with pytest.raises(ValueError, match=r"^drafter .* takes no tree: leave tree out, or draft with a model") as caught:
            decoded(world.big, OWN_FORM[name](world, 0.0), tree, 0.0)
        assert "\n" not in str(caught.value)


def test_a_path_that_replaces_what_was_scored_is_run_whole(world):
    """A model that drafts for itself accepts all of the likeliest path, in each round: it has run every value it drafted, in order."""
    shape = JointPath(Bigrams.count([torch.arange(3, 40)], 50), k=4, omega=0.0)
    for rows in ([0], [1], [2], [0, 1, 2]):
        out = decoded(world.big, world.big, shape, 0.0, rows)
        assert all(accepted == drafted or number + 1 == len(row) for row in out.rounds for number, (drafted, accepted) in enumerate(row))


def test_no_source_and_no_tree_is_forgotten(world):
    kinds = {getattr(make(world, 0.0), "kind", None) for make in GROWN.values()}
    assert set(NETS) - kinds == {"hivis", "vispec"}  # these need pictures
    assert {f"name {name}" for name in DRAFTERS if name not in IN_CHECKPOINTS} <= set(OWN_FORM)
    assert {"comb", *SEARCHES} <= set(NAMED)
