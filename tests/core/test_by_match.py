"""Draft length by match: bounded loss whatever the drafter does, and more than a fixed length gains where text is copied."""

import random
from collections import Counter
from itertools import pairwise
from statistics import median

import pytest
import torch

from mmspec.core import control as core_control
from mmspec.core.control import Fixed, ReadsMatches
from mmspec.core.draft_length.acceptance import AcceptanceByMatch, match_class
from mmspec.core.draft_length.by_match import ByMatch, MatchRecord
from mmspec.core.draft_length.cost_curve import CostCurve
from mmspec.core.records import Budget, Committed

STEEP, FLAT, CONVEX = (
    lambda columns: 1 + 0.4 * (columns - 1),
    lambda columns: 1 + 0.005 * columns,
    lambda columns: 1 + 0.02 * columns**1.4,
)
CURVES = {"steep": STEEP, "flat": FLAT, "convex": CONVEX}


def none(pick, state):
    return pick.choice([0, 1, 1, 2, 3, 5]), 0


def low(pick, state):
    match = pick.choice([0, 1, 1, 2, 3])
    return match, int(pick.random() < 0.1)


def bursts(pick, state):
    """Sections of 20 tokens that are copied, and 40 of new text between them."""
    place = state["tokens"] % 60
    return (0 if pick.random() < 0.4 else pick.choice([1, 1, 2]), 0) if place < 40 else (place - 38, 60 - place)


def high(pick, state):
    return 25, 40 if pick.random() < 0.95 else 1


def lying(pick, state):
    """Long matches, and every draft token wrong."""
    return pick.choice([4, 7, 12, 30]), 0


WORLDS = {world.__name__: world for world in (none, low, bursts, high, lying)}


def outcome(accepted, drafted, rows=1):
    judged = min(accepted + 1, drafted)
    return Committed(
        [[0] * (accepted + 1)] * rows, [accepted] * rows, [judged] * rows, [drafted] * rows, [False] * rows, [True] * rows,
        [0.0] * rows, [0.0] * rows,
    )  # fmt: skip


def simulate(control, world, cost, tokens, seed=0, noise=0.0):
    """Return seconds for `tokens` tokens; a plain round takes `cost(1)`."""
    pick, session, state, seconds, first = random.Random(seed), control.begin(), {"tokens": 0}, 0.0, True
    lengths = []
    while state["tokens"] < tokens:
        match, right = world(pick, state)
        if isinstance(session, ReadsMatches):
            session.read_matches([match])
        length = session.length()
        drafted = min(length, tokens - state["tokens"] - 1) if match else 0
        accepted = min(drafted, right)
        spent = cost(1 + drafted)
        seconds += spent
        session.observe(length, outcome(accepted, drafted), spent * (1 + noise * pick.random() ** 4) + 20 * first)
        state["tokens"] += accepted + 1
        first = False
        lengths.append(length)
    return seconds, lengths


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("tokens", [64, 128, 1000])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("world", WORLDS)
def test_the_loss_against_plain_decoding_is_at_most_3_percent(world, curve, tokens, noise):
    cost = CURVES[curve]
    record = MatchRecord()
    for seed in range(4 if tokens < 1000 else 2):
        for control in (ByMatch(), ByMatch(record=record)):
            seconds, _ = simulate(control, WORLDS[world], cost, tokens, seed, noise)
            trial = cost(4) - cost(1)  # the first round's cost is not measured, since it holds the prompt's
            loan = 1.0 if world == "lying" else 0.0  # what a match that is likely to be accepted may lose once
            assert seconds <= (1.03 * tokens + loan) * cost(1) + trial


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("world", "gain"), [("bursts", 1.05), ("low", 1.05), ("none", 1.05)])
def test_it_beats_ten_draft_tokens_a_match(world, gain, curve):
    """A fixed length of 10 whenever there is a match, as transformers' prompt lookup."""
    cost = CURVES[curve]
    ratios = [
        simulate(Fixed(10), WORLDS[world], cost, 300, seed)[0] / simulate(ByMatch(), WORLDS[world], cost, 300, seed)[0] for seed in range(9)
    ]
    assert median(ratios) > (gain if curve != "flat" else 0.9)


@pytest.mark.parametrize("curve", ["flat", "convex"])
def test_copied_text_is_drafted_at_length(curve):
    plain = 300 * CURVES[curve](1)
    seconds, lengths = simulate(ByMatch(), high, CURVES[curve], 300)
    assert plain / seconds > 3
    assert max(lengths) > 10


def test_trials_are_short_and_lengths_grow_by_success():
    """With matches of one token, of which all draft tokens are right."""
    _, lengths = simulate(ByMatch(), lambda pick, state: (1, 99), FLAT, 200)
    drafted = [length for length in lengths if length]
    assert drafted[0] <= 3
    assert all(after <= max(3, 2 * before) for before, after in pairwise(drafted))
    assert max(drafted) > 10


def test_a_round_without_a_match_is_plain():
    session = ByMatch().begin()
    for matches in ([0], [0, None], [None]):
        session.read_matches(matches)
        assert session.length() == 0


def test_a_long_match_is_used_after_short_ones_have_failed():
    session = ByMatch().begin()
    for _ in range(40):
        session.read_matches([2])
        length = session.length()
        session.observe(length, outcome(0, length), STEEP(1 + length))
    assert length == 0
    session.read_matches([40])
    assert session.length() > 0


def test_rows_without_a_match_commit_one_value():
    """Draft tokens of one row of eight do not pay where every column costs."""
    session = ByMatch().begin()
    session.read_matches([30])
    assert session.length() > 0
    session.read_matches([30, *[0] * 31])
    assert session._rate(Counter([7]), 32, 1) < 1
    assert session.length() == 0


class Rows:
    """Two rows of which one has matches, of which two draft tokens are accepted, and the other none: drafter and stopping criteria."""

    def __init__(self, tokens):
        self.tokens, self.outputs = tokens, [[], []]

    def matches(self, pending):
        return [None if len(values) >= self.tokens else match for values, match in zip(self.outputs, (6, 0), strict=True)]

    def budget(self, length):
        return Budget(torch.tensor([self.tokens]), length, length)


@pytest.mark.parametrize("lead", [16, 10**6])
def test_a_batch_ends_with_its_slowest_row(lead, monkeypatch):
    monkeypatch.setattr(core_control, "_LEAD", lead)
    rows, session, seconds = Rows(64), ByMatch().begin(), 0.0
    while any(len(values) < 64 for values in rows.outputs):
        length = core_control.next_length(session, rows, None, rows)
        accepted = [min(2, length), 0]
        new = [[0] * min(number + 1, 64 - len(values)) for number, values in zip(accepted, rows.outputs, strict=True)]
        drafted, cost = [length if values else 0 for values in new], 1 + 0.15 * length
        seconds += cost
        done = Committed(new, accepted, [min(3, length), 0], drafted, [not v for v in new], [True] * 2, [0.0] * 2, [0.0] * 2)
        rows.outputs = [values + more for values, more in zip(rows.outputs, new, strict=True)]
        session.observe(length, done, cost)
    assert (seconds < 64 * 1.06) == (lead == 16), seconds


def test_one_slow_round_does_not_change_a_cost():
    curve = CostCurve()
    curve.add(1, 1.0)
    for seconds in (1.2, 9.0, 1.2, 1.2, 9.0):
        curve.add(3, seconds)
    assert curve.at(3) == pytest.approx(1.2)
    assert 1 < curve.at(2) < 1.2 < curve.at(5)
    assert CostCurve().at(4) == pytest.approx(1.24)
    slow = CostCurve()
    slow.add(1, 1.0)
    slow.add(3, 50.0)
    assert slow.at(3) < 2  # a single measurement


def test_acceptance_follows_what_is_seen():
    fresh = AcceptanceByMatch()
    assert fresh.values(match_class(1), 3) < fresh.values(match_class(5), 3) < fresh.values(match_class(50), 3) < 4
    for _ in range(40):
        fresh.add(match_class(1), 3, 3)
        fresh.add(match_class(50), 0, 1)
    assert fresh.values(match_class(1), 3) > 3.3
    assert fresh.values(match_class(50), 3) < 1.7
    later = AcceptanceByMatch(fresh.known)
    assert later.values(match_class(1), 3) > 3.3
    assert match_class(None) == 0


def test_what_is_known_is_used_from_the_first_round():
    record = MatchRecord()
    simulate(ByMatch(record=record), high, CONVEX, 300)
    _, lengths = simulate(ByMatch(record=record), high, CONVEX, 300)
    assert lengths[0] >= 10
    assert 0 not in lengths[:20]
    assert record.ratios


def test_settings_are_checked():
    for wrong in ({"share": 1.0}, {"head": -1.0}, {"lengths": (3, 2)}, {"lengths": (0, 1)}, {"lengths": ()}):
        with pytest.raises(ValueError, match="give "):
            ByMatch(**wrong)
