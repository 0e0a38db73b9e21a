"""Options of the public call x sources x trees in a ragged batch: the tokens of plain decoding with the same options."""

from itertools import cycle, islice

import pytest

from mmspec.core.draft_length.thompson import Thompson
from mmspec.core.processors.sequence import NoRepeatNGram
from tests.drafters.sources import GROWN, TREES
from tests.drafters.test_contract import Varied
from tests.drafters.test_products import decoded, model, plain, target, world  # noqa: F401  the target whose rows end in three ways

OPTIONS = {
    "one-token": {"max_new_tokens": 1},
    "two-tokens": {"max_new_tokens": 2},
    "varied-length": {"draft_length": Varied},
    "thompson": {"draft_length": Thompson},
    "auto": {"draft_length": "auto"},
    "temperature-per-row": {"temperature": [0.0, 0.7, 1.3]},
    "truncated": {"temperature": 1.0, "top_k": 3, "top_p": 0.8},
    "one-value": {"temperature": 1.0, "top_k": 1},
    "repetition-penalty": {"repetition_penalty": 1.3},
    "repetition-penalty-sampled": {"temperature": 1.0, "repetition_penalty": 1.3, "seed": [9, 1, 5]},
    "no-repeated-pairs": {"processors": [NoRepeatNGram(2)]},
}
SOURCES = ("near", "smaller-vocabulary", "early-exit-2", "kangaroo", "swift", "hydra", "ctc", "eagle1", "mask-tokens")


@pytest.mark.parametrize(("number", "name"), enumerate(OPTIONS), ids=OPTIONS)
def test_options_change_what_plain_decoding_writes_and_nothing_else(number, name, world):  # noqa: F811
    """Two trees a source, so that every pair of option, source and tree is run."""
    options = {"temperature": 0.0} | OPTIONS[name]
    length = options.pop("draft_length", 4)
    temperature = options.pop("temperature")
    expected = decoded(world.big, None, None, temperature, **options).tokens
    trees = [tree for tree in TREES if tree != "joint-path"]
    trees = cycle(trees[number:] + trees[:number])
    for source in SOURCES:
        made = GROWN[source](world, 1.0 if temperature else 0.0)
        for tree in islice(trees, 2):
            asked = length() if callable(length) else length
            found = decoded(world.big, made, TREES[tree], temperature, draft_length=asked, **options).tokens
            assert found == expected, f"{name}, {source}, {tree}: wrong tokens"


@pytest.mark.parametrize(("number", "source"), enumerate(SOURCES), ids=SOURCES)
def test_chains_that_stop_early_row_by_row(number, source, world, plain):  # noqa: F811
    for turn, temperature in enumerate((0.0, 1.0)):
        made = GROWN[source](world, temperature)
        threshold = (0.3, 0.7)[(number + turn) % 2]
        together = decoded(world.big, made, None, temperature, stop_below=threshold)
        assert together.tokens == plain[temperature]
        alone = decoded(world.big, made, None, temperature, [2], stop_below=threshold)
        assert alone.rounds[0] == together.rounds[2]
