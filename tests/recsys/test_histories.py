"""Batches to learn from: whole items, aligned labels, and the same ones for the same turn."""

import json

import pytest
import torch

from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.histories import Data, batches, beauty

CATALOGUE = Catalogue.of_codes(range(9), torch.tensor([[a, b] for a in range(3) for b in range(3)]), 3, 2, before=(1,), most=4)
USERS = [[n % 9, (n + 1) % 9, (n + 2) % 9, *range(n % 7)] for n in range(500)]
DATA = Data(CATALOGUE, lambda first, end: USERS[first:end], USERS, USERS, USERS)


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_rows_are_windows_of_histories(drop):
    batch = batches(DATA, 6, drop)
    items = {tuple(path): item for item, path in enumerate(CATALOGUE.paths.tolist())}
    for turn in range(9):
        some = batch(turn)
        assert some["input_ids"].shape[0] == 6
        assert some["input_ids"].shape[1] <= 1 + 2 * 5
        for ids, mask, labels in zip(some["input_ids"], some["attention_mask"], some["labels"], strict=True):
            count = int(mask.sum())
            line = ids[:count].tolist()
            assert ids[count:].tolist() == [0] * (len(ids) - count)
            assert labels.tolist() == [*line, *[-100] * (len(ids) - count)]
            assert line[0] == 1
            found = [items[path] for path in zip(line[1::2], line[2::2], strict=True)]
            assert 2 <= len(found) <= 5
            assert any(is_part(found, user, whole=not drop) for user in USERS[turn // 8 * 48 : turn // 8 * 48 + 48])


def is_part(found: list[int], user: list[int], whole: bool) -> bool:
    """Is `found` in `user`, in order, and without gaps where `whole`?"""
    if whole:
        return any(user[start : start + len(found)] == found for start in range(len(user)))
    rest = iter(user)
    return all(item in rest for item in found)


def test_a_turn_gives_the_same_batch_whenever_it_is_asked():
    there, back = batches(DATA, 6, 0.3), batches(DATA, 6, 0.3)
    forward = [there(turn)["input_ids"] for turn in range(10)]
    backward = [back(turn)["input_ids"] for turn in reversed(range(10))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))
    assert len({tuple(ids.flatten().tolist()) for ids in forward}) == 10


def test_a_catalogue_that_writes_behind_histories_is_refused():
    data = Data(Catalogue.of({0: (1, 2)}, after=(5,)), DATA.users, USERS, USERS, USERS)
    with pytest.raises(ValueError, match="behind a history"):
        batches(data, 2)


def test_beauty_leaves_one_out_and_every_pass_has_an_order_of_its_own(tmp_path):
    users = {str(n): [n, n + 1, n + 2, n + 3, n + 4] for n in range(6)}
    (tmp_path / "inter.json").write_text(json.dumps(users))
    (tmp_path / "index_rqvae.json").write_text(json.dumps({str(n): [n, 255, 0, n] for n in range(10)}))
    data = beauty(tmp_path, held=4, before=(1,))
    assert data.catalogue.tokens([3]) == [1, 2 + 3, 2 + 256 + 255, 2 + 512, 2 + 768 + 3]
    assert data.test == list(users.values())
    assert data.past == [items[:3] for items in users.values()]
    assert len(data.held) == 4
    assert all(len(items) == 4 for items in data.held)
    passes = [sorted(map(tuple, data.users(6 * n, 6 * n + 6))) for n in range(3)]
    assert passes == [sorted(map(tuple, data.past))] * 3
    assert data.users(0, 6) != data.users(6, 12)
