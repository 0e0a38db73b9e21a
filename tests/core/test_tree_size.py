"""The size of best-first trees: chosen by measured seconds, from the places of accepted draft tokens."""

from itertools import pairwise

import pytest

from mmspec.core.draft_length.tree_size import SIZES, TreeSize
from mmspec.core.records import Committed

GAINS = {0: 0.6, 1: 0.3, 3: 0.2, 7: 0.2, 15: 0.2, 31: 0.15, 63: 0.15, 127: 0.15, 255: 0.15, 511: 0.1, 1023: 0.1}  # by place in the tree


def outcome(length: int, turn: int) -> Committed:
    """A round in which the draft token at each place of `GAINS` was accepted as often as that says, in turn."""
    places = [place for place, share in GAINS.items() if place < length and int((turn + 1) * share) > int(turn * share)]
    accepted = len(places)
    return Committed([[0] * (accepted + 1)], [accepted], [accepted], [length], [False], [True], [0.0], [0.0], places=[places])


def chosen(seconds, rounds: int = 120, plan: TreeSize | None = None) -> tuple[int, list[int]]:
    """The size chosen most often in the last rounds, and all sizes, where a round of n draft tokens takes `seconds(n)`."""
    session, seen = (plan or TreeSize()).begin(), []
    for turn in range(rounds):
        seen.append(session.length())
        session.observe(seen[-1], outcome(seen[-1], turn), seconds(seen[-1]))
    late = seen[rounds // 2 :]
    return max(set(late), key=late.count), seen


def test_flat_seconds_take_the_largest_tree():
    """Weights on disk: a round takes the same seconds whatever it scores."""
    size, seen = chosen(lambda length: 10.0)
    assert size >= 1024
    assert all(later <= 4 * before for before, later in pairwise(seen) if before)  # costs are not guessed far


@pytest.mark.parametrize(("slope", "least", "most"), [(0.002, 16, 128), (0.02, 4, 64), (0.4, 0, 1)])
def test_dear_columns_take_small_trees(slope, least, most):
    size, _ = chosen(lambda length: 1 + slope * length)
    assert least <= size <= most


def test_a_large_tree_tells_what_smaller_ones_commit():
    session = TreeSize().begin()
    for turn in range(200):
        session.observe(1024, outcome(1024, turn), 1.0)
    for size in SIZES[1:12]:
        mean = 1 + sum(share for place, share in GAINS.items() if place < size)
        assert session.expected(size) == pytest.approx(mean, abs=0.15)


def test_chains_count_by_depth():
    session = TreeSize((0, 1, 2), first=2).begin()
    for _ in range(50):
        session.observe(2, Committed([[0, 0]], [1], [2], [2], [False], [True], [0.0], [0.0]), 1.0)
    assert session.expected(1) == pytest.approx(2.0, abs=0.1)
    assert session.expected(2) == pytest.approx(2.0, abs=0.2)
