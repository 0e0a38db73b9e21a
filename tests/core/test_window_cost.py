"""The window by measured cost, against made-up clocks: near the best fixed window where one pays, and a bounded loss where none does."""

import random
from collections.abc import Callable
from statistics import mean

import pytest

from mmspec.core.draft_length.window_cost import LADDER, WindowCost, in_flight
from tests.core.test_control import committed

PROMPT = 7.0
Curve = Callable[[int], float]


def filled(brings: Curve, length: int, age: int) -> float:
    """Values of a window's round number `age` at this length: one in the first, half of what was missing with every further one."""
    return 1 + (brings(length) - 1) * (1 - 0.5**age)


def run(plan: WindowCost, brings: Curve, costs: Curve, values: float, rows: int = 2, seed: int = 0) -> tuple[float, list[int]]:
    """Seconds for `values` values a row, without the prompt's round, and the lengths chosen; fractions of values are drawn."""
    session, pick, chosen, seconds, done, age = plan.begin(), random.Random(seed), [], 0.0, 0.0, 0
    while done < values:
        length = session.length()
        age = age + 1 if chosen and chosen[-1] == length else 0
        chosen.append(length)
        wanted = filled(brings, length, age)
        each = [min(length, int(wanted - 1 + pick.random())) for _ in range(rows)]
        cost = costs(length)
        session.observe(length, committed(each, length), cost + PROMPT * (len(chosen) == 1))
        seconds += cost if len(chosen) > 1 else 0.0
        done += mean(each) + 1 if len(chosen) > 1 else 0.0
    return seconds, chosen


def power(base: float, grows: float) -> Curve:
    return lambda length: min(length + 1, base * (length + 1) ** grows)


def linear(column: float) -> Curve:
    return lambda length: 1 + column * length


@pytest.mark.parametrize("first", [3, 15, 127])
@pytest.mark.parametrize("column", [0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("grows", [0.3, 0.5])
def test_it_is_near_the_best_fixed_window(first, column, grows):
    brings, costs = power(1.0, grows), linear(column)
    best = max(brings(n) / costs(n) for n in LADDER)
    seconds, _ = run(WindowCost(first=first, head=20), brings, costs, 2000)
    assert 2000 / seconds > 0.85 * best
    if best > 1.3:
        assert 2000 / seconds > 1.1


@pytest.mark.parametrize("column", [0.05, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_windows_that_do_not_pay_are_left(column, rows):
    """The picture of a batch whose columns cost more than they bring: at most `head`, `share` and one round more than plain decoding."""
    plan, brings, costs = WindowCost(first=15), power(1.0, 0.25 if column > 0.1 else 0.1), linear(column)
    seconds, chosen = run(plan, brings, costs, 400, rows)
    assert seconds <= 400 * (1 + plan.share) + plan.head + max(costs(length) for length in chosen)
    assert chosen[-100:].count(0) > 60


@pytest.mark.parametrize("seed", range(30))
def test_what_windows_lose_is_bounded_whatever_they_do(seed):
    """Random worlds that turn slow, blind and good again: every second above plain decoding's comes out of the allowance."""
    pick = random.Random(seed)
    plan = WindowCost(first=pick.choice([3, 15, 63]), share=pick.choice([0.0, 0.02, 0.1]), head=pick.choice([0.0, 2.0, 6.0]))
    session, lost, plain, worst, world = plan.begin(), 0.0, 0, 0.0, (0.5, 0.01)
    for number in range(600):
        if number % 40 == 0:
            world = (pick.choice([0.0, 0.3, 0.6]), pick.choice([0.005, 0.05, 0.5]))
        length = session.length()
        drafts = min(length, int((length + 1) ** world[0] * pick.random() * 2))
        cost = 1 + world[1] * length
        session.observe(length, committed([drafts], length), cost)
        if number:
            lost, plain = lost + cost - 1 - drafts, plain + (length == 0)
        worst = max(worst, cost - 1)
        assert lost <= plan.head + plan.share * plain + worst + 1e-9


def test_a_window_is_found_again_when_the_clock_changes():
    plan = WindowCost(first=15, head=10, share=0.1)
    session, chosen = plan.begin(), []
    for number in range(3000):
        length = session.length()
        column = 1.0 if number < 300 else 0.005
        chosen.append(length)
        session.observe(length, committed([min(length, 4)], length), 1 + column * length)
    assert chosen[200:300].count(0) > 80
    assert 0 not in chosen[-100:]


def test_the_same_clock_gives_the_same_lengths():
    runs = [run(WindowCost(), power(1.0, 0.4), linear(0.02), 300, seed=1)[1] for _ in range(2)]
    assert runs[0] == runs[1]


def test_what_does_not_fit_is_refused():
    for ladder in ((), (3, 7), (0, 7, 3), (0, 3, 3)):
        with pytest.raises(ValueError, match="rising numbers of draft tokens"):
            WindowCost(ladder=ladder)
    with pytest.raises(ValueError, match="rounds is 0"):
        WindowCost(rounds=0)
    with pytest.raises(ValueError, match="share is 1"):
        WindowCost(share=1.0)
    with pytest.raises(ValueError, match="head -1"):
        WindowCost(head=-1.0)


def test_the_first_window_shares_what_a_machine_takes_at_once():
    assert in_flight(1, True) == 200
    assert in_flight(16, True) == 12
    assert in_flight(2, False) == 16
    assert in_flight(1000, False) == 1
