"""Look-ahead in the trie: the items of plain search, a forward less for every level whose descendants fit, forced codes for nothing."""

from typing import Any

import pytest
import torch

from mmspec.core.beams.trie import NOWHERE
from mmspec.drafters.model import descendants
from mmspec.drafters.model.descendants import Descendants
from mmspec.recsys import Catalogue, recommend
from mmspec.recsys import search as recsys_search
from tests.beam_world import CODES, make, shop, users

SHOP = shop(90)
USERS = users(SHOP, 5, seed=2)


def by_levels(model, history, k, spare, catalogue=SHOP):
    """Calls of a search of one user, from the beams that plain search keeps: a level is drafted if its descendants fit."""
    trie, beams = catalogue.trie, [[0]]
    plain = recommend(model, [history], k=k, catalogue=catalogue, method="plain", on_step=lambda step: beams.append(kept(step, k)))
    calls, level = 0, 0
    while level < trie.levels:
        calls, states = calls + 1, beams[level]
        for ahead in range(level, trie.levels):
            level = ahead + 1
            children = trie.children(torch.tensor([states]), ahead)
            states = children.state[children.valid].tolist()
            if level == trie.levels or len(states) > k + spare:
                break
    return calls, plain.items[0]


def kept(step, k):
    return [state for state in step.verdict.pending.aux.state[0, -k:].tolist() if state != NOWHERE]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_level_whose_descendants_fit_costs_no_forward(family, monkeypatch):
    monkeypatch.setattr(descendants, "_LEAST", 1)
    model, calls = make(family), []
    for spare in (1, 6, 30, 400):
        monkeypatch.setattr(recsys_search, "SPARE", spare)
        calls.append(0)
        for k in (1, 4, 10):
            for history in USERS[:3]:
                right, items = by_levels(model, history, k, spare)
                found = recommend(model, [history], k=k, catalogue=SHOP)
                assert found.items == [items]
                assert found.stats.target_calls == right
                calls[-1] += right
    assert calls == sorted(set(calls), reverse=True)  # each of them saves more
    assert calls[-1] == 9  # all that is left is drafted in the first round


def test_the_columns_to_spare_are_those_of_the_whole_batch(monkeypatch):
    monkeypatch.setattr(recsys_search, "SPARE", 200)
    model, sizes = make(), []
    found = recommend(model, USERS, k=4, catalogue=SHOP, on_step=lambda step: sizes.extend(step.draft.aux.layers))
    assert sizes
    assert 4 < max(sizes) <= 4 + 200 // len(USERS)
    monkeypatch.setattr(recsys_search, "SPARE", 150)  # 30 a row: too few
    sizes.clear()
    recommend(model, USERS, k=4, catalogue=SHOP, on_step=lambda step: sizes.extend(step.draft.aux.layers))
    assert max(sizes, default=0) <= 4
    assert found.items == recommend(model, USERS, k=4, catalogue=SHOP, method="plain").items


def test_forced_codes_cost_no_forward():
    """Every item ends in codes that nothing else begins with: one forward finds the first code, and the beams know the rest."""
    items = torch.arange(CODES)[:, None]
    chains = Catalogue.of_codes([f"item{number}" for number in range(CODES)], items.repeat(1, 4), CODES, 2, before=(1,))
    columns = {}
    for method in ("plain", "strict"):
        steps: list[Any] = []
        found = recommend(make(), [["item3"]], k=CODES, catalogue=chains, method=method, on_step=steps.append)
        columns[method] = found.items, found.stats.target_calls, max(step.draft.size for step in steps)
    assert columns["strict"][0] == columns["plain"][0]
    assert columns["strict"][1:] == (1, columns["plain"][2])  # as many columns, all in one forward


def test_what_cannot_look_ahead_does_not(monkeypatch):
    """Plain search, and the modes whose rule reads how draft tokens were drawn."""
    monkeypatch.setattr(Descendants, "begin", lambda *_: pytest.fail("looked ahead"))
    for method in ("plain", "sample", "relaxed"):
        recommend(make(), USERS, k=4, catalogue=SHOP, method=method, temperature=1.0)
    for method in ("strict", "coupled"):
        with pytest.raises(pytest.fail.Exception, match="looked ahead"):
            recommend(make(), USERS, k=4, catalogue=SHOP, method=method)
