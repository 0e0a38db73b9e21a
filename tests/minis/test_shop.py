"""The simulated shop: told by seeds alone, fast enough for jobs, and with something to learn."""

import time

import numpy as np
import pytest

from mmspec.minis.shop import DEPARTMENTS, LONGEST, SIDE, STAY, Shop, examples
from mmspec.recsys.baselines import CoOccurrence
from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.metrics import recall
from mmspec.recsys.semantic_ids import make

SHOP = Shop.of()
ALL = SHOP.histories(20_000)


def test_items_have_distinct_names_and_embeddings():
    assert len(SHOP) == 8 * 12 * SIDE == 3072
    assert len(set(SHOP.names)) == len(SHOP)
    assert len(np.unique(SHOP.embeddings, axis=0)) == len(SHOP)
    assert "scarf, " in SHOP.names[(4 * 12 + 1) * SIDE]


def test_a_seed_says_everything():
    again, other = Shop.of(), Shop.of(1)
    assert again.names == SHOP.names
    assert np.array_equal(again.embeddings, SHOP.embeddings)
    assert other.names != SHOP.names
    assert again.histories(50) == ALL[:50]
    assert SHOP.histories(50, seed=1) != ALL[:50]


def test_a_customer_is_the_same_in_any_company():
    assert SHOP.histories([19_999, 3, 7]) == [ALL[19_999], ALL[3], ALL[7]]
    assert SHOP.histories(range(100, 140)) == ALL[100:140]
    assert SHOP.histories([]) == []


def test_the_array_says_the_same():
    items, lengths = SHOP.draw(30)
    assert [row[:length].tolist() for row, length in zip(items, lengths, strict=True)] == ALL[:30]
    assert all((row[length:] == -1).all() for row, length in zip(items, lengths, strict=True))


def test_lengths_are_those_of_customers():
    lengths = np.array([len(items) for items in ALL])
    assert lengths.min() == 5
    assert lengths.max() == LONGEST
    assert 8 <= np.median(lengths) <= 12
    assert np.quantile(lengths, 0.75) <= 15
    assert all(0 <= item < len(SHOP) for items in ALL[:500] for item in items)


def test_customers_shop_a_department_at_a_time_and_in_order():
    each = len(DEPARTMENTS["camping"].split(","))
    kinds = [np.array(items) // SIDE for items in ALL[:5000]]
    same = np.mean(np.concatenate([k[1:] // each == k[:-1] // each for k in kinds]))
    after = np.mean(np.concatenate([k[1:] == k[:-1] // each * each + (k[:-1] + 1) % each for k in kinds]))
    assert same > STAY - 0.01
    assert after > 0.45
    assert np.mean([len(set(items)) < len(items) for items in ALL[:5000]]) < 0.05


def test_some_things_are_much_more_popular():
    counts = np.sort(np.bincount(np.concatenate(ALL), minlength=len(SHOP)))[::-1]
    assert counts[: len(SHOP) // 5].sum() > 0.45 * counts.sum()


def test_the_last_items_can_be_learnt_but_not_from_popularity():
    past, test = ALL[:18_000], ALL[18_000:]
    contexts, truths = [items[:-1] for items in test], [items[-1:] for items in test]
    popular = recall(CoOccurrence.of(past, 0).recommend(contexts, 10), truths, 10)
    together = recall(CoOccurrence.of(past, 1).recommend(contexts, 10), truths, 10)
    assert popular < 0.06
    assert together > 5 * popular


def test_it_is_fast_enough_for_jobs():
    begun = time.process_time()
    SHOP.draw(range(50_000, 60_000))
    assert 10_000 / (time.process_time() - begun) > 5_000


@pytest.mark.parametrize("seed", [0, 3])
def test_semantic_ids_of_the_shop_are_distinct(seed):
    shop = Shop.of(seed)
    import torch

    codes = make(torch.from_numpy(shop.embeddings))
    assert len(codes.unique(dim=0)) == len(shop)


def test_examples_hold_customers_apart():
    import torch

    data = examples(Catalogue.of_codes(range(len(SHOP)), make(torch.from_numpy(SHOP.embeddings)), 64, 2))
    assert data.users(3, 5) == ALL[3:5]
    assert (len(data.past), len(data.held), len(data.test)) == (50_000, 500, 2000)
    assert not {tuple(items) for items in [*data.held, *data.test] if len(items) > 7} & {tuple(items) for items in data.past}
