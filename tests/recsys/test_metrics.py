"""Rankings scored by hand."""

from math import log2

import pytest

from mmspec.recsys.metrics import coverage, ndcg, recall


def test_leave_one_out():
    found, truths = [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]], [["a"], ["e"], ["x"]]
    assert recall(found, truths, 1) == pytest.approx(1 / 3)
    assert recall(found, truths, 3) == pytest.approx(2 / 3)
    assert ndcg(found, truths, 1) == pytest.approx(1 / 3)
    assert ndcg(found, truths, 3) == pytest.approx((1 + 1 / log2(3)) / 3)


def test_several_truths():
    """Truths at ranks 1 and 3 of three: gain 1 + 1/2; the best three ranks can do with three truths is 1 + 1/log2(3) + 1/2."""
    assert recall([[1, 2, 3]], [{1, 3, 9}], 3) == pytest.approx(2 / 3)
    assert ndcg([[1, 2, 3]], [{1, 3, 9}], 3) == pytest.approx(1.5 / (1.5 + 1 / log2(3)))


def test_the_ideal_gain_is_capped_by_the_truths():
    """One truth at rank 1 of ten is perfect, and so are two at ranks 1 and 2."""
    assert ndcg([list(range(10))], [[0]], 10) == pytest.approx(1)
    assert ndcg([list(range(10))], [[1, 0]], 10) == pytest.approx(1)
    assert ndcg([list(range(10))], [[1]], 10) == pytest.approx(1 / log2(3))


def test_the_ideal_gain_is_capped_by_k():
    assert ndcg([[5, 6]], [[5, 6, 7, 8]], 2) == pytest.approx(1)


def test_missing_ranks_are_wrong_and_users_without_truths_are_left_out():
    assert recall([[1], []], [[1], [2]], 5) == pytest.approx(0.5)
    assert recall([[1], [2]], [[1], []], 5) == pytest.approx(1)


def test_coverage_counts_what_is_shown():
    assert coverage([[1, 2, 3], [2, 1, 4]], 2, items=8) == pytest.approx(2 / 8)
    assert coverage([[1, 2, 3], [2, 1, 4]], 3, items=8) == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: recall([[1]], [[1]], 0), "k is 0"),
        (lambda: ndcg([[1]], [[1], [2]], 1), "1 rankings and 2 truths"),
        (lambda: recall([[1]], [[]], 1), "no user has a truth"),
        (lambda: coverage([[1]], 1, 0), "items is 0"),
    ],
)
def test_errors_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()
