"""SASRec: causal, learns what follows what, both losses, and the same weights after a kill."""

from dataclasses import replace

import pytest
import torch

from mmspec.recsys import Catalogue
from mmspec.recsys.histories import Data
from mmspec.train.recommender.sasrec import SasRec, SasRecSettings, train_sasrec

CATALOGUE = Catalogue.of({f"i{n}": (2 + n,) for n in range(12)})
USERS = [[f"i{(start + step) % 12}" for step in range(6)] for start in range(12)] * 20
DATA = Data(CATALOGUE, lambda first, end: [USERS[n % 240] for n in range(first, end)], USERS, USERS[:12], USERS[:12])


def test_a_state_does_not_depend_on_later_items():
    torch.manual_seed(0)
    model = SasRec(12, SasRecSettings(hidden_size=16)).eval()
    long, short = torch.tensor([[1, 5, 3, 9]]), torch.tensor([[1, 5, 0, 0]])
    torch.testing.assert_close(model(long)[:, :2], model(short)[:, :2])


@pytest.mark.parametrize(("loss", "negatives"), [("softmax", 0), ("softmax", 8), ("bce", 1)])
def test_it_learns_what_comes_next(tmp_path, loss, negatives):
    settings = SasRecSettings(hidden_size=16, layers=1, steps=120, rows=24, lr=1e-2, loss=loss, negatives=negatives, dropout=0.0)
    model = train_sasrec(DATA, settings, tmp_path)
    found = model.ranked(CATALOGUE, [["i3", "i4"], ["i11"]], 12, unseen=True)
    assert [found[0][0], found[1][0]] == ["i5", "i0"]
    assert (len(found[0]), len(found[1])) == (10, 11)
    assert not {"i3", "i4"} & set(found[0])


def test_a_killed_training_ends_with_the_same_weights(tmp_path, monkeypatch):
    settings = SasRecSettings(hidden_size=16, layers=1, steps=12, rows=6, validations=3)
    whole = train_sasrec(DATA, settings, tmp_path / "whole").state_dict()
    drawn = []

    def users(first, end):
        drawn.append(first)
        if len(drawn) == 10:
            raise KeyboardInterrupt
        return DATA.users(first, end)

    broken = Data(CATALOGUE, users, DATA.past, DATA.held, DATA.test)
    with pytest.raises(KeyboardInterrupt):
        train_sasrec(broken, settings, tmp_path / "part")
    resumed = train_sasrec(DATA, settings, tmp_path / "part").state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="lr"):
        train_sasrec(DATA, SasRecSettings(hidden_size=16, layers=1, steps=12, rows=6, validations=3, lr=0.1), tmp_path / "part")


def test_a_training_of_other_data_is_refused_and_a_new_one_forgets_the_best_state_of_another(tmp_path):
    settings = SasRecSettings(hidden_size=16, layers=1, steps=4, rows=6, validations=2)
    train_sasrec(DATA, settings, tmp_path)
    fewer = [items[1:] for items in USERS]
    other = replace(DATA, users=lambda first, end, fewer=fewer: [fewer[n % 240] for n in range(first, end)])
    renamed = Catalogue.of({f"i{n}": (2 + n,) for n in (*range(1, 12), 0)})
    for data in (other, replace(DATA, catalogue=renamed), replace(DATA, past=fewer)):
        with pytest.raises(ValueError, match=r"checkpoint.pt is of another run: loss\.batch\.data\.\w+"):
            train_sasrec(data, settings, tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    best = torch.load(tmp_path / "best.pt")
    torch.save(best | {"facts": best["facts"] | {"NDCG@10": 9.0}}, tmp_path / "best.pt")
    train_sasrec(DATA, settings, tmp_path)
    assert torch.load(tmp_path / "best.pt")["facts"]["NDCG@10"] <= 1
