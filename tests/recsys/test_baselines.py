"""Counting, by hand."""

from mmspec.recsys.baselines import CoOccurrence

PAST = [["a", "b", "c"], ["a", "b", "d"], ["a", "d"], ["e", "a"]]


def test_popularity_leaves_out_what_was_taken():
    found = CoOccurrence.of(PAST, within=0).recommend([["a"], ["e"]], 2)
    assert found[0] == ["b", "d"]
    assert found[1] == ["a", "b"]


def test_what_came_next_comes_first_and_the_popular_fill_up():
    assert CoOccurrence.of(PAST, within=1).recommend([["a"]], 4) == [["b", "d", "c", "e"]]


def test_farther_items_weigh_less():
    """After a, b: c and d came once each right behind b (1 each); d once behind a as well, and twice in two places (1 + 1/2, halved)."""
    counts = CoOccurrence.of(PAST, within=2)
    assert counts.after["a"] == {"b": 2, "c": 0.5, "d": 1.5}
    assert counts.recommend([["a", "b"]], 2) == [["d", "c"]]


def test_an_unknown_item_gets_the_popular():
    assert CoOccurrence.of(PAST, within=1).recommend([["z"]], 1) == [["a"]]
