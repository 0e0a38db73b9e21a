"""The gate: what a drafter may lose is bounded whatever it does, and one that pays is let through. A simulated world with its own clock."""

import random

import pytest

from mmspec.core.control import Charged, Fixed
from mmspec.core.draft_length.break_even import BreakEven, DrafterAccounting, expected_saving
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.records import Committed
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.run.draft_length import control_of
from mmspec.text import generate
from tests.core.test_control import World, committed
from tests.drafters.runs import greedy, random_prompt

PROMPT = 5.0


class Request:
    """Rounds of one request whose plain round takes a second; `outcome(length)` -> (accepted draft tokens, seconds of the round)."""

    def __init__(self, control, outcome, start=0.0):
        self.session, self.outcome, self.start = control.begin(), outcome, start
        self.lengths, self.values, self.seconds, self.begun = [], 0, 0.0, False

    def round(self):
        length = self.session.length()
        accepted, seconds = self.outcome(length)
        if length and not self.begun:
            self.begun, seconds = True, seconds + self.start
            if isinstance(self.session, Charged):
                self.session.charge(self.start)
        self.seconds += seconds
        self.session.observe(length, committed([accepted], length), seconds + PROMPT * (not self.lengths))
        self.values += accepted + 1
        self.lengths.append(length)

    def run(self, rounds):
        for _ in range(rounds):
            self.round()
        return self

    def until(self, values):
        while self.values < values:
            self.round()
        return self


def steady(accepted, draft_token, check=0.0):
    """Every round of draft tokens has `accepted` right ones; a draft token costs `draft_token` seconds to make and `check` to score."""
    return lambda length: (min(length, accepted), 1 + length * (draft_token + check))


@pytest.mark.parametrize("seed", range(20))
def test_what_drafting_loses_is_bounded_whatever_it_does(seed):
    """Random worlds whose drafters turn slow, blind and good again."""
    pick = random.Random(seed)
    share, head = pick.choice([0.0, 0.02, 0.1]), pick.choice([0.0, 1.0, 3.0])
    mood, worst = [0, 0.0], [0.0]

    def outcome(length):
        if pick.random() < 0.03:
            mood[:] = [pick.randint(0, 4), pick.choice([0.0, 0.1, 1.0, 3.0])]
        accepted, seconds = min(length, mood[0]), 1 + length * mood[1] * pick.uniform(0.5, 1)
        worst.append(seconds - accepted - 1)
        return accepted, seconds

    inner = pick.choice([Fixed(4), Throughput()])
    request = Request(BreakEven(inner, share, head), outcome, start=pick.choice([0.0, 20.0])).run(pick.choice([5, 60, 600]))
    plain = request.lengths.count(0)
    first = worst[1]  # the first round's own cost cannot be told from the prompt's
    assert request.seconds - request.values <= head + share * plain + request.start + max(0.0, first) + max(worst) + 1e-9


def test_a_blind_slow_drafter_is_stopped_at_once():
    """It costs a plain round a draft token: 4 values a round are lost, once with the prompt and once more. Then a trial's price is saved
    up."""
    request = Request(BreakEven(Fixed(4)), steady(0, 1.0)).run(400)
    assert request.lengths[:4] == [4, 0, 4, 0]
    trials = [number for number, length in enumerate(request.lengths) if length]
    assert trials == [0, 2, 123, 124, 285, 286]  # -1.95 values are left and 4 are wanted: 119 rounds of 0.05; then 80 for every trial
    assert request.seconds < 1.1 * request.values


def test_a_cheap_blind_drafter_gets_the_trials_it_can_afford():
    request = Request(BreakEven(Fixed(4)), steady(0, 0.1)).run(60)
    assert request.lengths[:8] == [4, 0, 4, 4, 4, 4, 4, 4]  # 0.4 lost a round
    assert request.lengths[8:20] == [0] * 12
    assert request.seconds - request.values < 2 + 0.05 * 60 + 2 * 0.4


@pytest.mark.parametrize(("accepted", "draft_token"), [(1, 0.1), (2, 0.3), (4, 0.9)])
def test_one_that_pays_is_never_stopped(accepted, draft_token):
    """Plain rounds are for measuring only: the second, and then ever fewer."""
    request = Request(BreakEven(Fixed(4)), steady(accepted, draft_token)).run(500)
    assert [number for number, length in enumerate(request.lengths) if not length] == [1, 34, 99, 228, 485]


def test_bad_luck_does_not_stop_one_that_pays():
    """Its draft tokens are right 8 times in 10: runs of rounds without one come and go."""
    kept = []
    for seed in range(40):
        world = World(0.8, 0.1, seed=seed)
        world.run(BreakEven(Fixed(4)).begin(), 150)
        kept.append(sum(map(bool, world.lengths)) / 150)
    assert sum(kept) / 40 > 0.95


@pytest.mark.parametrize("draft_token", [0.05, 0.3])
def test_one_that_gets_good_late_is_found(draft_token):
    good = [0]
    request = Request(BreakEven(Fixed(4)), lambda length: (min(length, good[0]), 1 + length * draft_token)).run(100)
    assert request.lengths[-1] == 0 or draft_token < 0.1
    good[0], price = 4, 4 * draft_token
    found = request.run(round(2 * price / 0.05) + 1).lengths[100:]
    assert found[-1] == 4
    assert request.run(30).lengths[-30:] == [4] * 30 or found.count(4) > 3


def test_one_that_slows_down_is_stopped():
    """A drafter whose cache grows: its draft tokens cost ever more, its acceptance stays."""
    spent = [0.1]

    def outcome(length):
        spent[0] += 0.01
        return min(length, 2), 1 + length * spent[0]

    request = Request(BreakEven(Fixed(4)), outcome).run(150)  # worth it while a draft token costs less than half a round: to the 40th
    assert all(request.lengths[2:34])
    assert sum(map(bool, request.lengths[60:])) < 10


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_beside_the_throughput_alone(noise):
    """With the gate, drafters that lose lose less; those that gain gain as before. Short answers, 40 requests each."""

    def mean_seconds(control, chance, draft_token):
        total = 0.0
        for seed in range(40):
            pick = random.Random(seed)

            def outcome(length, pick=pick):
                run = 0
                while run < length and pick.random() < chance:
                    run += 1
                return run, (1 + length * (draft_token + 0.02)) * pick.uniform(1 - noise, 1 + noise)

            total += Request(control, outcome).until(48).seconds
        return total / 40

    for chance, draft_token, most in ((0.0, 1.0, 0.92), (0.0, 0.3, 1.01), (0.6, 0.1, 1.04), (0.85, 0.1, 1.02), (0.9, 0.02, 1.01)):
        assert mean_seconds(BreakEven(), chance, draft_token) < most * mean_seconds(Throughput(), chance, draft_token)


# --- requests that share books ----------------------------------------------------------------------------------------


def test_a_start_that_is_not_earned_back_is_not_made_again():
    """40 values of start, 10 gained in a short answer: the second request still tries, later ones do not, until they have saved for it."""
    control = BreakEven(Fixed(4), books=DrafterAccounting())
    starts = [Request(control, steady(1, 0.0), start=40.0).until(20).begun for _ in range(150)]
    assert starts[:3] == [True, True, False]
    assert 1 <= sum(starts[3:]) <= 4  # 0.05 of 20 values a request: 70 of them for a start
    fine = BreakEven(Fixed(4), books=DrafterAccounting())
    assert all(Request(fine, steady(1, 0.0), start=4.0).until(20).begun for _ in range(60))


def test_a_request_that_knows_measures_nothing():
    control = BreakEven(Fixed(4), books=DrafterAccounting())
    first, second = (Request(control, steady(3, 0.1)).run(20).lengths for _ in range(2))
    assert (first.count(0), second.count(0)) == (1, 0)
    choosing = BreakEven(Throughput(), books=DrafterAccounting())
    chosen = [Request(choosing, steady(9, 0.01)).run(8).lengths for _ in range(3)]
    assert chosen[0][:3] == [4, 0, 4]
    assert min(chosen[2]) >= 8


def test_a_blind_drafter_is_not_begun_by_the_next_request():
    books = DrafterAccounting()
    lengths = [Request(BreakEven(Fixed(4), books=books), steady(0, 1.0), start=8.0).run(10).lengths for _ in range(5)]
    assert sum(map(bool, lengths[0])) == 2
    assert not any(map(any, lengths[1:]))


def test_requests_do_not_share_what_is_not_given_to_them():
    control = BreakEven(Fixed(4))
    assert len({tuple(Request(control, steady(0, 1.0)).run(10).lengths) for _ in range(3)}) == 1


def test_what_draft_tokens_are_expected_to_save_worked_out_by_hand():
    """Free and always right: 17 values in a round of 1 + 16 * 0.08. Half of them right at 0.02: two draft tokens, 1.75 values in 1.2."""
    assert expected_saving(1.0, 0.0) == pytest.approx(1 - 2.28 / 17)
    assert expected_saving(0.5, 0.02) == pytest.approx(1 - 1.2 / 1.75)
    assert expected_saving(0.0, 0.0) == expected_saving(0.9, 5.0) == 0.0


# --- starts that are put off ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "step", "values", "begun"),
    [
        *((40.0, 0.1, 60, False), (10.0, 0.1, 60, True), (10.0, 0.1, 16, False), (10.0, 0.1, 17, True)),
        *((1.9, 1.0, 0, True), (2.1, 1.0, 200, False), (2.1, 0.1, 2, False)),
    ],
)
def test_a_start_is_made_where_it_is_expected_to_pay(seconds, step, values, begun):
    """At most 2 values and 0.54 of those still expected after two plain rounds, whose seconds tell what the start costs in values."""
    assert expected_saving(0.85, 0.1) == pytest.approx(0.542, abs=0.001)
    assert expected_saving(0.85, 1.0) == 0.0
    request = Request(BreakEven(Fixed(4)), steady(3, 0.1), start=seconds)
    request.session.expect_start(seconds, step, values)
    request.run(60)
    assert request.begun is begun
    assert request.lengths[:3] == ([0, 0, 4] if begun else [0, 0, 0])
    assert begun or not any(request.lengths)


def test_a_start_that_was_measured_is_believed_more_than_its_estimate():
    control = BreakEven(Fixed(4), books=DrafterAccounting())
    begun = []
    for _ in range(3):
        request = Request(control, steady(9, 0.0), start=30.0)
        request.session.expect_start(5.0, 0.1, 50)
        begun.append(request.until(50).begun)
    assert begun == [True, False, False]
    request = Request(control, steady(9, 0.0), start=30.0)
    request.session.expect_start(5.0, 0.1, 90)  # 2 + 0.54 * 90 values
    assert request.round() or request.lengths == [4]


def test_a_wrong_estimate_costs_no_more_than_the_start():
    request = Request(BreakEven(Fixed(4)), steady(0, 1.0), start=30.0)
    request.session.expect_start(0.1, 0.1, 100)
    request.run(100)
    assert request.lengths[:3] == [0, 0, 4]
    assert request.seconds - request.values <= 2 + 30 + 4 + 0.05 * 100


# --- in the loop ------------------------------------------------------------------------------------------------------


class Recorded:
    """A control whose sessions' lengths are written down, and whose rounds seem to take what `cost` says."""

    def __init__(self, control, cost):
        self.control, self.cost, self.lengths = control, cost, []

    def begin(self):
        self.session = self.control.begin()
        return self

    def length(self):
        self.lengths.append(self.session.length())
        return self.lengths[-1]

    def charge(self, seconds):
        self.session.charge(9.0)

    def observe(self, length, committed, seconds):
        self.session.observe(length, committed, self.cost(length))


@pytest.mark.parametrize("draft_token", [0.01, 0.4, 5.0])
def test_no_token_depends_on_the_gate(big, small, draft_token):
    inputs, expected, books = random_prompt(5, 9, 7, seed=1), None, DrafterAccounting()
    expected = greedy(big, inputs, 24)
    for drafter in (small, big, "lookup"):
        for control in (Fixed(3), Throughput()):
            gate = Recorded(BreakEven(control, books=books), lambda length: 1 + length * draft_token)
            out = generate(big, inputs, drafter, max_new_tokens=24, draft_length=gate)
            assert out.sequences.tolist() == expected
            assert out.stats.drafted == 0 or any(gate.lengths)
    assert draft_token < 1 or books.starts.closed or books.rounds.closed


def test_a_drafter_behind_a_shut_gate_never_reads(big, small):
    books, inputs = DrafterAccounting(), random_prompt(5, 9, 7, seed=1)
    calls = []
    handle = small.register_forward_pre_hook(lambda module, args: calls.append(1))
    try:
        for _ in range(3):
            calls.clear()
            gate = Recorded(BreakEven(Fixed(3), books=books), lambda length: 1 + length * 5.0)
            out = generate(big, inputs, small, max_new_tokens=12, draft_length=gate)
    finally:
        handle.remove()
    assert not calls
    assert out.sequences.tolist() == greedy(big, inputs, 12)


def test_auto_stands_behind_the_gate():
    assert control_of("auto", ModelDrafter(None)) == BreakEven(Throughput())


def test_wrong_settings_are_said_in_one_line():
    for wrong in ({"acceptance": -0.1}, {"acceptance": 1.5}, {"acceptance": float("nan")}):
        with pytest.raises(ValueError, match="give a probability, 0 to 1"):
            BreakEven(**wrong)
    for wrong in ({"share": 1.0}, {"share": -0.1}, {"head": -1.0}):
        with pytest.raises(ValueError, match="give a share from 0 to below 1, and 0 or more values"):
            BreakEven(**wrong)


def test_rows_that_have_ended_say_nothing():
    session = BreakEven(Fixed(4)).begin()
    none = Committed([[], []], [0, 0], [0, 0], [0, 0], [True, True], [True, True], [0.0, 0.0], [0.0, 0.0])
    for length in (4, 0, 4):
        session.observe(length, none, 1.0)
    assert session.gate.balance == 2.0
