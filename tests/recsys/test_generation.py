"""What `recommend` refuses, each in one clear line."""

import re

import pytest
import torch

from mmspec import recsys
from mmspec.bench.operations import operations
from mmspec.recsys import Catalogue, recommend
from tests.beam_world import VOCAB, make, shop, users

SHOP = shop()
HISTORIES = users(SHOP, 3)


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"k": 0}, "k is 0: give a whole number of at least 1"),
        ({"k": 2.0}, "k is 2.0"),
        ({"catalogue": None}, "catalogue is missing: pass catalogue=Catalogue.read(path)"),
        ({"mode": "fast"}, "unknown method 'fast'; valid: plain, strict"),
        ({"width": 4, "drafter": "itself"}, "width is 4 and k 5"),
        ({"drafter": "lookup"}, "drafter is 'lookup': give None, a transformers model, or a source of distributions"),
        ({"drafter": 7}, "drafter is 7"),
        ({"drafter": "t5"}, "must both be decoder-only, or both encoder-decoder"),
        ({"draft_length": "long", "drafter": "itself"}, "draft_length is 'long'"),
        ({"draft_length": True, "drafter": "itself"}, "draft_length is True"),
        ({"draft_length": -1, "drafter": "itself"}, "draft_length is -1"),
        ({"allowed": torch.ones(7, dtype=torch.bool)}, "allowed has shape (7,): give [260], or [3, 260]"),
        ({"allowed": torch.ones(2, 260, dtype=torch.bool)}, "allowed has shape (2, 260): give [260], or [3, 260]"),
        ({"allowed": ["item3"]}, "allowed is ['item3']: give a bool mask"),
        ({"histories": []}, "histories is []: give at least one"),
        ({"histories": [["item1"], []]}, "history 1: history is empty"),
        ({"histories": [["item1"], ["nothing"]]}, "history 1: item 'nothing' is not in the catalogue"),
        ({"histories": {"ids": torch.ones(1, 2).long()}}, "histories has no input_ids (it has ids)"),
        ({"histories": {"input_ids": torch.ones(0, 2).long()}}, "the batch is empty"),
        (
            {"histories": {"input_ids": torch.ones(2, 2).long(), "attention_mask": torch.tensor([[1, 1], [0, 0]])}},
            "prompt 1 is empty",
        ),
        ({"catalogue": Catalogue.of({"item0": [VOCAB, 3]}), "histories": [["item0"]]}, f"use token {VOCAB}, but the model has {VOCAB}"),
        ({"seed": [1, 2]}, "seed has 2 entries for 3 rows"),
    ],
)
def test_what_is_refused(model, changes, word):
    changes = {"histories": HISTORIES, "k": 5, "catalogue": SHOP} | changes
    changes["drafter"] = {"itself": model, "t5": make("t5") if changes.get("drafter") == "t5" else None}.get(
        changes.get("drafter"), changes.get("drafter")
    )
    with pytest.raises(ValueError, match=re.escape(word)) as caught:
        recommend(model, **changes)
    assert "\n" not in str(caught.value)


def test_histories_too_long_for_the_model():
    model = make()
    model.config.max_position_embeddings = 12
    with pytest.raises(ValueError, match="exceed the model's 12 positions: show fewer items"):
        recommend(model, [list(SHOP.items[:5])], k=5, catalogue=SHOP)


def test_a_drafter_without_the_catalogues_tokens(model):
    small = make()
    small.config.vocab_size = 10
    with pytest.raises(ValueError, match="the drafter has 10 tokens, fewer than the catalogue's paths use"):
        recommend(model, HISTORIES, k=5, catalogue=SHOP, drafter=small)


@pytest.mark.parametrize("drafted", [False, True])
def test_weights_that_are_no_numbers(drafted, model):
    """Named by row; a drafter's would only cost calls."""
    broken = make()
    broken.lm_head.weight.data[:] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN or infinity in row 0 at output position 0"):
        recommend(broken, HISTORIES, k=5, catalogue=SHOP, drafter=model if drafted else None)


def test_what_a_call_returns(model):
    seen = []
    out = recommend(model, HISTORIES, k=5, catalogue=SHOP, drafter=make(seed=3), on_step=seen.append)
    assert isinstance(out, recsys.Recommendations)
    assert [len(items) for items in out.items] == [len(scores) for scores in out.scores] == out.counts.tolist() == [5] * 3
    assert out.paths.shape == (3, 5, SHOP.levels)
    assert out.stats.target_calls == len(seen)
    assert out.stats.exactness == "token-exact"
    assert out.stats.tokens == 3 * SHOP.levels
    for items, paths in zip(out.items, out.paths.tolist(), strict=True):
        assert [SHOP.paths[SHOP.row(item)].tolist() for item in items] == paths


def test_plain_search_leaves_no_tensors_of_inference_mode(model):
    """They could not be used with gradients later."""
    out = recommend(model, HISTORIES, k=5, catalogue=SHOP, method="plain")
    tables = [part for found in SHOP.trie.tables.values() for part in (found.state, found.token)]
    assert tables
    assert not any(part.is_inference() for part in (out.tokens, out.lengths, *tables, *model.parameters(), *model.buffers()))


def test_a_plain_search_asks_few_operations_beside_the_forwards(model):
    """Of one user: a bound on what a round does besides the model."""
    ids = torch.ones(1, 6, dtype=torch.long)
    each = operations(lambda: model(input_ids=ids, use_cache=True)).total
    whole = operations(lambda: recommend(model, HISTORIES[:1], k=5, catalogue=SHOP, method="plain")).total
    assert whole <= SHOP.levels * (each + 150)
