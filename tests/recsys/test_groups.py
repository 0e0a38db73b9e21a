"""Boosts, quotas and caps: the best list that keeps the rules, found by trying all of them."""

import random
from itertools import combinations

import pytest

from mmspec.recsys import GroupRules, recommend
from tests.beam_world import make, shop, users


def best(ranked, rules: GroupRules, k: int):
    """The largest sum of boosted scores over all subsets that keep caps and quotas, among those of the most items."""
    boosted = [(item, score + rules.boosts.get(rules.groups.get(item), 0.0)) for item, score in ranked]
    for size in range(min(k, len(boosted)), -1, -1):
        fits = []
        for some in combinations(boosted, size):
            kinds = [rules.groups.get(item) for item, _ in some]
            there = [rules.groups.get(item) for item, _ in boosted]
            most = {kind: rules.caps.get(kind, rules.cap) for kind in set(kinds) - {None}}
            capped = all(bound is None or kinds.count(kind) <= bound for kind, bound in most.items())
            if capped and all(kinds.count(kind) >= min(least, there.count(kind)) for kind, least in rules.quotas.items()):
                fits.append(sum(score for _, score in some))
        if fits:
            return size, max(fits)
    raise AssertionError("the empty list always fits")


def test_the_best_list_that_keeps_the_rules():
    draw = random.Random(0)
    for _ in range(300):
        groups = {item: draw.choice("abc") for item in range(9) if draw.random() < 0.8} | {90: "a", 91: "b", 92: "c"}
        boosts = {group: draw.uniform(-1, 1) for group in "abc" if draw.random() < 0.5}
        quotas = {group: draw.randint(0, 1) for group in "abc" if draw.random() < 0.5}
        caps = {group: draw.randint(1, 3) for group in "abc" if draw.random() < 0.5}
        rules = GroupRules(groups, boosts, quotas, caps, draw.choice((None, 1, 2)))
        ranked = sorted(((item, draw.gauss(0, 1)) for item in range(9)), key=lambda one: -one[1])
        k = draw.randint(3, 6)
        found = rules.choose(ranked, k)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        size, total = best(ranked, rules, k)
        assert len(found) == size
        assert sum(score for _, score in found) == pytest.approx(total)


def test_lists_of_recommend_keep_them():
    model, catalogue = make(), shop()
    histories, groups = users(catalogue, 5), {item: number % 7 for number, item in enumerate(shop().items)}
    plain = recommend(model, histories, k=40, catalogue=catalogue)
    same = recommend(model, histories, k=10, beams=40, catalogue=catalogue, rules=GroupRules(groups))
    assert same.items == [line[:10] for line in plain.items]
    mixed = recommend(model, histories, k=10, beams=40, catalogue=catalogue, rules=GroupRules(groups, cap=2, quotas={3: 1}))
    for row, line in enumerate(mixed.items):
        kinds = [groups[item] for item in line]
        assert max(map(kinds.count, kinds)) <= 2
        assert 3 in kinds or 3 not in [groups[item] for item in plain.items[row]]
        assert set(line) <= set(plain.items[row])
        assert len(line) == 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"boosts": {"z": 1.0}}, "boosts names group 'z', which no item has"),
        ({"caps": {"a": -1}}, "caps of 'a' is -1: give a whole number from 0"),
        ({"quotas": {"a": 1.5}}, "quotas of 'a' is 1.5"),
        ({"boosts": {"a": float("nan")}}, "boost of 'a' is nan"),
        ({"cap": 0}, "cap is 0"),
        ({"quotas": {"a": 3}, "cap": 2}, "quota of 'a' is 3 and its cap 2"),
    ],
)
def test_rules_that_cannot_be_kept(given, words):
    with pytest.raises(ValueError, match=words):
        GroupRules({1: "a"}, **given)


def test_more_quotas_than_items():
    with pytest.raises(ValueError, match="quotas add up to 3, and lists have 2 items"):
        GroupRules({1: "a"}, quotas={"a": 3}).choose([(1, 0.0)], 2)
