"""What is not to be recommended is not: items of the user's own history, and items of a shared path that are not allowed."""

import pytest

from mmspec.recsys import recommend
from tests.recsys import shops

HISTORIES = [[100], [101, 102, 103], [159, 100, 130, 131, 132, 133, 134, 135], list(range(100, 159))]


@pytest.fixture(scope="module")
def model():
    return shops.llama(layers=2)


def shared(catalogue) -> tuple:
    """Two items of one path."""
    leaf = catalogue.leaf.tolist()
    number = next(n for n, value in enumerate(leaf) if value in leaf[:n])
    return catalogue.items[leaf.index(leaf[number])], catalogue.items[number]


def test_the_rest_in_the_order_it_had(model):
    """With all items asked for, `unseen` is the whole list without the history's items, scores included."""
    catalogue = shops.catalogue()
    every = recommend(model, HISTORIES, k=60, catalogue=catalogue)
    fresh = recommend(model, HISTORIES, k=60, catalogue=catalogue, unseen=True)
    for row, history in enumerate(HISTORIES):
        pairs = zip(every.items[row], every.scores[row], strict=True)
        left = [(item, round(score, 4)) for item, score in pairs if item not in history]
        assert len(every.items[row]) == 60
        assert list(zip(fresh.items[row], (round(score, 4) for score in fresh.scores[row]), strict=True)) == left
    assert fresh.items[3] == [159]


@pytest.mark.parametrize("k", [1, 3, 10])
def test_k_items_are_found_where_there_are_so_many(model, k):
    found = recommend(model, HISTORIES[:3], k=k, catalogue=shops.catalogue(), unseen=True, drafter=shops.llama(seed=1))
    for history, items in zip(HISTORIES, found.items, strict=False):
        assert len(set(items)) == k
        assert not set(items) & set(history)


def test_only_the_item_itself_is_left_out_of_a_shared_path(model):
    catalogue = shops.catalogue()
    first, second = shared(catalogue)
    one = recommend(model, [[first]], k=60, catalogue=catalogue, unseen=True).items[0]
    assert first not in one
    assert second in one
    both = recommend(model, [[first, second]], k=60, catalogue=catalogue, unseen=True).items[0]
    assert not {first, second} & set(both)
    mask = catalogue.mask([second, 140])
    assert set(recommend(model, [[first]], k=60, catalogue=catalogue, allowed=mask).items[0]) == {second, 140}


def test_with_what_is_allowed(model):
    catalogue = shops.catalogue()
    stock = catalogue.mask(range(100, 110))
    found = recommend(model, HISTORIES, k=20, catalogue=catalogue, allowed=stock, unseen=True)
    assert [len(items) for items in found.items] == [9, 7, 9, 0]
    assert found.items[3] == found.scores[3] == []
    rows = stock.expand(4, -1)
    assert recommend(model, HISTORIES, k=20, catalogue=catalogue, allowed=rows, unseen=True).items == found.items
    assert bool(stock.sum() == 10)  # left as it was


def test_prompts_have_no_items(model):
    catalogue = shops.catalogue()
    with pytest.raises(ValueError, match="unseen needs the histories' items"):
        recommend(model, catalogue.inputs(HISTORIES), k=3, catalogue=catalogue, unseen=True)
    with pytest.raises(ValueError, match="item 7 is not in the catalogue"):
        recommend(model, [[7]], k=3, catalogue=catalogue, unseen=True)
