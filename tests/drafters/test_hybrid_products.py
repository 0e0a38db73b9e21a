"""Sources of drafts x trees over models with states, as `test_products` runs them over Llama: the tokens of plain decoding.

Sources that keep states of their own, or run a part of the target's layers, are run in every tree; those that read the target's hidden
states are run in a third of the trees, so that every tree has a third of them. Other families than Qwen3-Next are run in that way, too.
"""
# ruff: noqa: F811  parameters of the tests are the imported fixtures

import pytest
import torch

import mmspec
from tests.drafters.cascades import perturbed
from tests.drafters.sources import GROWN, OWN_FORM, TREES
from tests.drafters.test_products import (  # noqa: F401
    INPUTS,
    NEW,
    TEMPERATURES,
    check_own_form,
    check_trees,
    decoded,
    in_turn,
    plain,
    target,
    world,
)
from tests.drafters.test_products_options import OPTIONS
from tests.hybrids import of_sizes

REFUSED = ("swift", "similar-layers")
"""What runs the newest values again."""
OTHERS = ("itself", "near", "early-exit-2", "kangaroo", "windowed", "layer-skip", "mtp", "eagle1", "dspark")
"""What is tested over more families than one."""
EVERY = [name for name in GROWN if name not in REFUSED]
WITH_STATES = ("itself", "near", "early-exit-1", "early-exit-2", "early-exit-3", "kangaroo", "eesd", "layer-skip", "windowed", "pard")
"""What is run in every tree: it advances states by itself."""
CASES = [("Qwen3-Next", name, number, name in WITH_STATES) for number, name in enumerate(EVERY)]
CASES += [(family, name, number, False) for family in ("Granite-MoE-hybrid", "RecurrentGemma") for number, name in enumerate(OTHERS)]


@pytest.fixture(scope="module")
def family(request):
    return getattr(request, "param", "Qwen3-Next")


@pytest.fixture(scope="module")
def model(family):
    return of_sizes(family, 50, 3 if family == "Qwen3-Next" else 4)


def test_plain_decoding_is_the_models_own(target, plain):
    for row in range(3):
        own = INPUTS["input_ids"][row][INPUTS["attention_mask"][row].bool()][None]
        found = target.generate(own, do_sample=False, max_new_tokens=NEW)[0, own.shape[1] :].tolist()
        assert plain[0.0][row] == found[: len(plain[0.0][row])]


def turns(number, in_every_tree):
    return [turn for turn in in_turn(number) if in_every_tree or turn[2] is not None]


@pytest.mark.parametrize(("family", "name", "number", "in_every_tree"), CASES, indirect=["family"], scope="module")
def test_what_grows_trees_is_exact(name, number, in_every_tree, world, plain):
    check_trees(world, plain, name, turns(number, in_every_tree))


@pytest.mark.parametrize("family", sorted({case[0] for case in CASES}))
def test_every_family_meets_every_tree_at_both_temperatures_and_every_row_alone(family):
    runs = [turn for case in CASES if case[0] == family for turn in turns(*case[2:])]
    assert {(tree, temperature) for tree, temperature, _ in runs} == {(tree, temperature) for tree in TREES for temperature in TEMPERATURES}
    assert {(tree, row) for tree, _, row in runs if row is not None} == {(tree, row) for tree in TREES for row in range(3)}


@pytest.mark.parametrize("name", [name for name in OWN_FORM if name.removeprefix("name ") not in REFUSED])
def test_what_has_a_form_of_its_own_is_exact(name, world, plain):
    check_own_form(world, plain, name)


@pytest.mark.parametrize(("number", "name"), enumerate(OPTIONS), ids=OPTIONS)
def test_options_change_what_plain_decoding_writes_and_nothing_else(number, name, world):
    options = {"temperature": 0.0} | OPTIONS[name]
    length = options.pop("draft_length", 4)
    temperature = options.pop("temperature")
    expected = decoded(world.big, None, None, temperature, **options).tokens
    for turn, source in enumerate(("near", "early-exit-2", "eagle1", "dflash"), number):
        made = GROWN[source](world, 1.0 if temperature else 0.0)
        tree = ("chain", "opt", "uneven-search")[turn % 3]
        asked = length() if callable(length) else length
        assert decoded(world.big, made, TREES[tree], temperature, draft_length=asked, **options).tokens == expected, (source, tree)


@pytest.mark.parametrize("source", ["near", "early-exit-2", "eagle1"])
def test_chains_that_stop_early_row_by_row(source, world, plain):
    for temperature in (0.0, 1.0):
        made = GROWN[source](world, temperature)
        together = decoded(world.big, made, None, temperature, stop_below=0.5)
        assert together.tokens == plain[temperature]
        assert decoded(world.big, made, None, temperature, [2], stop_below=0.5).rounds[0] == together.rounds[2]


@pytest.mark.parametrize("name", REFUSED)
def test_what_states_do_not_allow_is_refused_in_one_line(name, world):
    with pytest.raises(ValueError, match="keeps recurrent states") as caught:
        mmspec.text.generate(world.big, INPUTS, GROWN[name](world, 0.0), max_new_tokens=4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["Qwen3-Next", "Granite-MoE-hybrid", "RecurrentGemma"], indirect=True, scope="module")
def test_a_drafter_reads_prompts_of_one_token_and_of_several_as_without_a_cache(model):
    """The first token of one row is run behind the columns of the others, whose states have begun."""
    drafter, runs = perturbed(model, 0.02), []
    hook = drafter.register_forward_hook(lambda *given: runs.append(given[-1].logits[:, -1]))
    mmspec.text.generate(model, INPUTS, drafter, max_new_tokens=2, draft_length=3)
    hook.remove()
    for row in range(3):
        own = INPUTS["input_ids"][row][INPUTS["attention_mask"][row].bool()][None]
        torch.testing.assert_close(runs[0][row], drafter(own).logits[0, -1], atol=1e-4, rtol=0)
