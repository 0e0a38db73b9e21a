"""Every source of drafts x every tree over models with states, as `test_products` runs them over Llama: the tokens of plain decoding."""

from itertools import cycle

import pytest

import mmspec
from mmspec.run.registry import SELF_DRAFTING
from tests.drafters.runs import greedy, random_prompt
from tests.drafters.sources import GROWN, OWN_FORM, TREES, World
from tests.drafters.test_products import INPUTS, NEW, TEMPERATURES, check_all, decoded
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
def target(family):
    """A target with end tokens that end the first row early and no other, greedily and sampled."""
    model = of_vocabulary(family, 50)
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


def test_plain_decoding_is_the_models_own(target, plain):
    for row in range(3):
        own = INPUTS["input_ids"][row][INPUTS["attention_mask"][row].bool()][None]
        found = target.generate(own, do_sample=False, max_new_tokens=NEW)[0, own.shape[1] :].tolist()
        assert plain[0.0][row] == found[: len(plain[0.0][row])]


@pytest.mark.parametrize(("family", "name"), EVERY + SOME, indirect=["family"], scope="module")
def test_what_grows_trees_is_exact_in_every_tree(name, world, plain):
    check_all(world, plain, name, GROWN[name], TREES, cycle(range(3)))


@pytest.mark.parametrize("name", OWN_FORM)
def test_what_has_a_form_of_its_own_is_exact(name, world, plain):
    if name.removeprefix("name ") in REFUSED:
        return
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
