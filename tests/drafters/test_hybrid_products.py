"""Every source of drafts x every tree over models with states, as `test_products` runs them over Llama: the tokens of plain decoding."""
# ruff: noqa: F811  parameters of the tests are the imported fixtures

from itertools import cycle

import pytest

import mmspec
from mmspec.run.registry import SELF_DRAFTING
from tests.drafters.sources import GROWN, OWN_FORM, TREES
from tests.drafters.test_products import INPUTS, NEW, check_all, decoded, plain, target, world  # noqa: F401
from tests.drafters.test_products_options import OPTIONS
from tests.hybrids import of_vocabulary

REFUSED = ("swift", "similar-layers")
"""What runs the newest values again."""
OTHERS = ("itself", "near", "early-exit-2", "kangaroo", "windowed", "layer-skip", "mtp", "eagle1", "dspark")
"""What is tested over more families than one."""
EVERY = [("Qwen3-Next", name) for name in GROWN if name not in REFUSED]
SOME = [(family, name) for family in ("Granite-MoE-hybrid", "RecurrentGemma") for name in OTHERS]


@pytest.fixture(scope="module")
def family(request):
    return getattr(request, "param", "Qwen3-Next")


@pytest.fixture(scope="module")
def model(family):
    return of_vocabulary(family, 50)


def test_plain_decoding_is_the_models_own(target, plain):
    for row in range(3):
        own = INPUTS["input_ids"][row][INPUTS["attention_mask"][row].bool()][None]
        found = target.generate(own, do_sample=False, max_new_tokens=NEW)[0, own.shape[1] :].tolist()
        assert plain[0.0][row] == found[: len(plain[0.0][row])]


@pytest.mark.parametrize(("family", "name"), EVERY + SOME, indirect=["family"], scope="module")
def test_what_grows_trees_is_exact_in_every_tree(name, world, plain):
    check_all(world, plain, name, GROWN[name], TREES, cycle(range(3)))


@pytest.mark.parametrize("name", [name for name in OWN_FORM if name.removeprefix("name ") not in REFUSED])
def test_what_has_a_form_of_its_own_is_exact(name, world, plain):
    trees = ("opt", "chain") if name.removeprefix("name ") in SELF_DRAFTING else ("chain",)
    check_all(world, plain, name, OWN_FORM[name], trees, cycle(range(3)))


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_what_plain_decoding_writes_and_nothing_else(name, world):
    options = {"temperature": 0.0} | OPTIONS[name]
    length = options.pop("draft_length", 4)
    temperature = options.pop("temperature")
    expected = decoded(world.big, None, None, temperature, **options).tokens
    for source in ("near", "early-exit-2", "eagle1", "dflash"):
        made = GROWN[source](world, 1.0 if temperature else 0.0)
        for tree in ("chain", "opt", "uneven-search"):
            asked = length() if callable(length) else length
            assert decoded(world.big, made, TREES[tree], temperature, draft_length=asked, **options).tokens == expected, (source, tree)


@pytest.mark.parametrize("source", ["near", "early-exit-2", "eagle1"])
def test_chains_that_stop_early_row_by_row(source, world):
    for temperature in (0.0, 1.0):
        made = GROWN[source](world, temperature)
        expected = decoded(world.big, None, None, temperature).tokens
        together = decoded(world.big, made, None, temperature, stop_below=0.5)
        assert together.tokens == expected
        assert decoded(world.big, made, None, temperature, [2], stop_below=0.5).rounds[0] == together.rounds[2]


@pytest.mark.parametrize("name", REFUSED)
def test_what_states_do_not_allow_is_refused_in_one_line(name, world):
    with pytest.raises(ValueError, match="keeps recurrent states") as caught:
        mmspec.text.generate(world.big, INPUTS, GROWN[name](world, 0.0), max_new_tokens=4)
    assert "\n" not in str(caught.value)
