"""Training histories that go on by co-occurrence counts: from training events alone, the same whenever asked for."""

import pytest
import torch

from mmspec.recsys import Catalogue
from mmspec.recsys.histories import Data
from mmspec.train.recommender.walks import with_walks

PAST = [[0, 1, 2], [3, 4], [5], [0, 1, 6]]


def data() -> Data:
    catalogue = Catalogue.of_codes(range(10), torch.arange(10)[:, None], 10, 2, before=(1,))
    held, test = [[*items, 7] for items in PAST], [[*items, 7, 8] for items in PAST]
    return Data(catalogue, lambda first, end: [PAST[number % 4] for number in range(first, end)], PAST, held, test)


def test_walks_go_where_training_histories_went():
    found = with_walks(data(), 1.0).users(0, 400)
    after = {(a, b) for items in PAST for place, a in enumerate(items) for b in items[place + 1 :]}
    begun = [items[:end] for items in PAST for end in range(1, len(items) + 1)]
    steps = [(walk[:place], walk[place]) for walk in found for place in range(1, len(walk))]
    assert all(any((earlier, item) in after for earlier in before) or [*before, item] in begun for before, item in steps)
    assert {7, 8, 9}.isdisjoint(item for walk in found for item in walk)  # held out, or in no history
    assert all(len(set(walk)) == len(walk) for walk in found)
    assert [5] in [list(walk) for walk in found]  # nothing follows it
    assert (0, 1, 2, 6) in {tuple(walk) for walk in found}
    assert {tuple(walk) for walk in found} - {tuple(items) for items in PAST}


def test_a_history_is_the_same_whenever_it_is_asked_for():
    mixed = with_walks(data(), 0.5)
    whole = mixed.users(0, 40)
    assert [*mixed.users(0, 17), *mixed.users(17, 40)] == whole
    assert any(list(walk) not in PAST for walk in whole)
    assert with_walks(data(), 0).users(0, 40) == data().users(0, 40)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_chance(share):
    with pytest.raises(ValueError, match="0 to 1"):
        with_walks(data(), share)
