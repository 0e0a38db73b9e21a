"""Mini recsys as it ships: loads, recommends what beam search recommends in about half the calls, and stays small."""

import json

import pytest
import torch

import mmspec
from mmspec.minis import HOME, items, load_recsys
from mmspec.minis.shop import Shop
from mmspec.recsys import metrics, recommend
from mmspec.train.beams import draft_coverage


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("recsys")


@pytest.fixture(scope="module")
def histories():
    """Of customers nobody trained on."""
    return Shop.of().histories(100, seed=2)


def test_what_ships_recommends_in_one_call(mini):
    out = recommend(mini.target, mini.examples[:8], catalogue=mini.catalogue, drafter=mini.drafters["model"])
    assert [len(items) for items in out.items] == [10] * 8
    assert all(mini.catalogue.name(item) for items in out.items for item in items)
    assert set(mini.drafters) == {"model", "head", "retriever"}
    assert mini.processor is mini.catalogue
    assert len(mini.examples) == 64


@pytest.mark.parametrize("name", ["model", "head", "retriever"])
def test_every_drafter_leaves_beam_searchs_items(mini, name):
    plain = recommend(mini.target, mini.examples[:32], k=10, catalogue=mini.catalogue, method="plain")
    fast = recommend(mini.target, mini.examples[:32], k=10, catalogue=mini.catalogue, drafter=mini.drafters[name])
    assert fast.items == plain.items
    assert torch.allclose(torch.tensor(fast.scores), torch.tensor(plain.scores), atol=1e-4)
    assert fast.stats.row_calls < 3 * 32
    assert plain.stats.row_calls == 4 * 32


def test_its_drafter_halves_the_calls(mini, histories):
    found = draft_coverage(mini.target, mini.drafters["model"], mini.catalogue, [items[:-1] for items in histories], 10, 40)
    assert found["calls"] <= 2.2
    assert found["levels"][0] > 0.85


def test_it_has_learnt_what_customers_buy(mini, histories):
    """By chance an item is among ten of 3,072 in one case of 307."""
    found = recommend(
        mini.target, [items[:-1] for items in histories], k=10, catalogue=mini.catalogue, drafter=mini.drafters["model"]
    ).items
    assert metrics.recall(found, [items[-1:] for items in histories], 10) > 0.3


def test_the_examples_are_what_the_shop_says(mini):
    assert mini.examples == [items[:-1] for items in Shop.of().histories(64, seed=2)]
    assert list(mini.catalogue.items) == list(range(3072))
    assert mini.catalogue.names == Shop.of().names


@pytest.fixture(scope="module")
def deep():
    return mmspec.load("recsys-deep")


def test_the_deep_one_recommends_beam_searchs_items(deep, mini):
    assert deep.target.config.num_hidden_layers == 48
    assert list(deep.catalogue.items) == list(mini.catalogue.items)
    assert torch.equal(deep.catalogue.paths, mini.catalogue.paths)
    plain = recommend(deep.target, deep.examples[:16], k=10, catalogue=deep.catalogue, method="plain")
    for drafter in deep.drafters.values():
        fast = recommend(deep.target, deep.examples[:16], k=10, catalogue=deep.catalogue, drafter=drafter)
        assert fast.items == plain.items
        assert fast.stats.row_calls < 3 * 16


def test_the_deep_one_has_learnt_what_customers_buy(deep, histories):
    out = recommend(deep.target, [items[:-1] for items in histories], k=10, catalogue=deep.catalogue, drafter=deep.drafters["model"])
    assert metrics.recall(out.items, [items[-1:] for items in histories], 10) > 0.3
    assert out.stats.row_calls <= 2 * len(histories)


def test_the_deep_one_is_small_and_its_card_tells_what_the_figures_hold(deep):
    folder = HOME / "recsys-deep"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 7e6
    assert deep.card == items.card(json.loads((folder / items.FIGURES).read_text(encoding="utf-8")))
    assert "?" not in deep.card


def test_what_ships_is_small(mini):
    folder = HOME / "recsys"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 7e6
    assert sum(weight.numel() for weight in mini.drafters["model"].parameters()) <= 0.5e6
    assert (folder / "drafters" / "retriever.safetensors").stat().st_size <= 0.5e6


def test_the_card_tells_what_the_figures_hold(mini):
    assert mini.card == items.card(json.loads((HOME / "recsys" / items.FIGURES).read_text(encoding="utf-8")))
    assert all(f"| {name} |" in mini.card for name in ("model", "head", "retriever", "popularity"))
    assert "?" not in mini.card


def test_a_missing_mini_names_its_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"recsys/train_target.py"):
        load_recsys(tmp_path)
