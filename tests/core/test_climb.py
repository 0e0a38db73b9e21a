"""Climbing to the window that commits the most values per second, against made-up clocks."""

import pytest

from mmspec.core.draft_length.hill_climb import LADDER, HillClimb, in_flight
from mmspec.core.records import Committed


def committed(values: float, rows: int = 2) -> Committed:
    whole = [[0] * round(values) for _ in range(rows)]
    zeros, floats = [0] * rows, [0.0] * rows
    return Committed(whole, zeros, zeros, zeros, [False] * rows, [True] * rows, floats, floats)


def run(plan: HillClimb, brings, costs, rounds: int = 400) -> list[int]:
    """The lengths chosen when a round of n draft tokens brings `brings(n)` values in `costs(n)` seconds."""
    session, chosen = plan.begin(), []
    for _ in range(rounds):
        length = session.length()
        chosen.append(length)
        session.observe(length, committed(brings(length)), costs(length))
    return chosen


def usual(chosen: list[int]) -> int:
    late = chosen[len(chosen) // 2 :]
    return max(set(late), key=late.count)


@pytest.mark.parametrize("first", [0, 15, 127])
@pytest.mark.parametrize("best", [0, 7, 31, 63, 127])
def test_it_ends_at_the_fastest_rung_from_anywhere(first, best):
    at = LADDER.index(best)
    chosen = run(HillClimb(first=first), lambda n: 100, lambda n: 1.0 + 0.2 * abs(LADDER.index(n) - at))
    assert usual(chosen) == best
    assert chosen[-200:].count(best) > 120, "most rounds are spent there, few looking around"


def test_it_follows_a_change_of_the_clock():
    session, chosen = HillClimb(first=31).begin(), []
    for turn in range(900):
        length, best = session.length(), (LADDER.index(63) if turn < 300 else LADDER.index(7))
        chosen.append(length)
        session.observe(length, committed(100), 1.0 + 0.2 * abs(LADDER.index(length) - best))
    assert usual(chosen[:300]) == 63
    assert usual(chosen[500:]) == 7


def test_noise_below_the_threshold_moves_nothing():
    chosen = run(HillClimb(first=15), lambda n: 100, lambda n: 1.0 - 0.001 * LADDER.index(n))
    assert usual(chosen) == 15


def test_the_prefill_and_warm_up_rounds_do_not_count():
    session = HillClimb(first=15).begin()
    session.observe(15, committed(100), 1e9)  # the prefill
    for turn in range(6):
        session.observe(session.length(), committed(100), 1e9 if turn < 2 else 1.0)
    assert session.rates[LADDER.index(15)] == pytest.approx(100.0)


def test_where_to_start_knows_batch_and_device():
    assert in_flight(1, cuda=True) == 200
    assert in_flight(16, cuda=True) == 12
    assert in_flight(2, cuda=False) == 16
    assert in_flight(10**6, cuda=True) == 1


def test_bad_plans_are_refused():
    for plan in ({"ladder": ()}, {"ladder": (3, 3)}, {"ladder": (-1, 2)}, {"rounds": 2, "warm_up": 2}):
        with pytest.raises(ValueError, match=r"give rising|must count"):
            HillClimb(**plan)
