"""The draft length follows the throughput, in a simulated world with its own clock."""

import random
from dataclasses import replace

import pytest

from mmspec.core.control import Fixed
from mmspec.core.draft_length.thompson import Thompson
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.records import Committed


def committed(accepted: list[int], drafted: int) -> Committed:
    rows = len(accepted)
    return Committed(
        values=[[0] * (a + 1) for a in accepted],
        accepted=accepted,
        judged=[min(a + 1, drafted) for a in accepted],
        drafted=[drafted] * rows,
        ended=[False] * rows,
        healthy=[True] * rows,
        drift=[0.0] * rows,
        expected=[0.0] * rows,
    )


class World:
    """Draft tokens are right with `chance`; a round costs `target` seconds and each draft token `draft_token` and `check` more, with
    noise."""

    def __init__(self, chance: float, draft_token: float, *, target: float = 1.0, check: float = 0.0, rows: int = 1, seed: int = 0):
        self.chance, self.draft_token, self.target, self.check, self.rows = chance, draft_token, target, check, rows
        self.random = random.Random(seed)
        self.tokens, self.clock, self.lengths = 0, 0.0, []

    def round(self, session) -> None:
        length = session.length()
        accepted = []
        for _ in range(self.rows):
            run = 0
            while run < length and self.random.random() < self.chance:
                run += 1
            accepted.append(run)
        seconds = (self.target + length * (self.draft_token + self.check)) * self.random.uniform(0.95, 1.05)
        seconds += 5.0 if not self.lengths else 0.0  # the first round holds the prefill
        session.observe(length, committed(accepted, length), seconds)
        self.tokens += sum(accepted) + self.rows
        self.clock += seconds
        self.lengths.append(length)

    def run(self, session, rounds: int) -> list[int]:
        before = len(self.lengths)
        for _ in range(rounds):
            self.round(session)
        return self.lengths[before:]

    def rate(self, length: int) -> float:
        """True values a second and row at a fixed length."""
        values = sum(self.chance**i for i in range(length + 1))
        return values / (self.target + length * (self.draft_token + self.check))

    def best(self, lengths) -> int:
        return max(lengths, key=self.rate)


LENGTHS = Throughput().lengths


def committed_rate(world: World, lengths: list[int]) -> float:
    """Mean true rate of the lengths chosen, relative to the best fixed one."""
    values = sum(sum(world.chance**i for i in range(n + 1)) for n in lengths)
    seconds = sum(world.target + n * (world.draft_token + world.check) for n in lengths)
    return values / seconds / world.rate(world.best(LENGTHS))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("chance", "draft_token", "check"),
    [(0.95, 0.02, 0.0), (0.9, 0.05, 0.0), (0.7, 0.05, 0.01), (0.5, 0.1, 0.0), (0.3, 0.1, 0.05), (0.8, 0.3, 0.0)],
)
def test_near_the_best_fixed_length(chance, draft_token, check, rows):
    for seed in range(3):
        world = World(chance, draft_token, check=check, rows=rows, seed=seed)
        session = Throughput().begin()
        world.run(session, 100)
        assert committed_rate(world, world.run(session, 200)) > 0.85


def test_long_drafts_when_draft_tokens_are_right_and_cheap():
    world = World(0.98, 0.01)
    chosen = world.run(Throughput().begin(), 150)
    assert sum(chosen[-50:]) / 50 >= 8


@pytest.mark.parametrize(("chance", "draft_token", "check"), [(0.0, 0.1, 0.0), (0.1, 0.5, 0.0), (0.3, 1.0, 0.0), (0.2, 0.0, 0.6)])
def test_zero_when_drafting_costs_more_than_it_saves(chance, draft_token, check):
    """A drafter never makes things slower: all but a few trials are plain rounds."""
    world = World(chance, draft_token, check=check)
    chosen = world.run(Throughput().begin(), 300)
    assert chosen[50:].count(0) >= 0.95 * 250
    plain = 300 * world.target
    drafted = sum(world.target + n * (draft_token + check) for n in chosen)
    values = sum(sum(chance**i for i in range(n + 1)) for n in chosen)
    assert values / drafted > 0.9 * 300 / plain


def test_lengths_fall_when_acceptance_falls():
    world = World(0.95, 0.05)
    session = Throughput().begin()
    assert sum(world.run(session, 100)[-30:]) / 30 >= 6
    world.chance = 0.1
    world.run(session, 130)
    assert sum(world.run(session, 40)) / 40 <= 2


def test_lengths_rise_when_acceptance_rises():
    world = World(0.3, 0.1)
    session = Throughput().begin()
    assert sum(world.run(session, 100)[-30:]) / 30 <= 2
    world.chance = 0.95
    world.run(session, 60)
    assert sum(world.run(session, 40)) / 40 >= 5


def test_zero_is_left_again_when_draft_tokens_become_right():
    world = World(0.0, 0.2)
    session = Throughput().begin()
    assert world.run(session, 60)[-20:].count(0) >= 18
    world.chance = 0.95
    world.run(session, 200)
    assert committed_rate(world, world.run(session, 100)) > 0.8


def test_lengths_follow_the_cost_of_checking():
    """A batch that fills the machine makes every node cost: the same acceptance calls for shorter drafts."""
    means = []
    for check in (0.0, 0.3):
        world = World(0.8, 0.02, check=check, rows=4)
        chosen = world.run(Throughput().begin(), 150)
        means.append(sum(chosen[-50:]) / 50)
    assert means[0] >= means[1] + 2


def test_the_prefill_is_no_rounds_cost():
    session = Throughput().begin()
    session.length()
    session.observe(4, committed([4], 4), 100.0)
    assert not session.seconds


def test_only_planned_lengths_are_asked_for():
    for chance in (0.0, 0.5, 0.99):
        world = World(chance, 0.05)
        allowed = {0, 2, *LENGTHS}
        assert set(world.run(Throughput().begin(), 200)) <= allowed
    assert set(World(0.99, 0.0).run(Throughput(lengths=(0, 2, 5), first=2).begin(), 100)) <= {0, 1, 2, 5}


def test_draft_tokens_that_were_not_made_bought_nothing():
    """A drafter that has nothing to say is as good as one that is wrong, and a row that has ended says nothing at all."""
    session = Throughput().begin()
    session.observe(4, replace(committed([0, 0], 0), values=[[], []]), 1.0)
    assert sum(session.tries) == 0
    for _ in range(20):
        session.observe(session.length(), committed([0, 0], 0), 1.0 + 0.1 * session.current)
    assert sum(session.hits) == 0
    assert session.length() == 0


@pytest.mark.parametrize("first", [1, 4, 30])
def test_the_first_length_need_not_be_one_of_the_plan(first):
    world = World(0.99, 0.01)
    world.run(Throughput(lengths=(0, 2, 6), first=first).begin(), 40)
    assert world.lengths[-1] == 6


def test_fixed():
    control = Fixed(3).begin()
    control.observe(3, committed([0], 3), 1.0)
    assert control.length() == 3
    with pytest.raises(ValueError, match="draft_length is -1"):
        Fixed(-1)


# --- Thompson sampling ------------------------------------------------------------------------------------------------


def geometric(chance: float, most: int, least: int = 1) -> float:
    """Mean length when every draft token is followed by another with `chance`."""
    return least + sum(chance**n for n in range(1, most - least + 1))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("chance", [0.2, 0.6, 0.9])
def test_thompson_continues_as_often_as_draft_tokens_are_accepted(chance, rows):
    world, session = World(chance, 0.0, rows=rows), Thompson(most=12).begin()
    world.run(session, 2000)
    chosen = world.run(session, 2000)
    posterior = (session.accepted + 1) / (session.accepted + session.rejected + 2)
    assert posterior == pytest.approx(chance, abs=0.02)
    assert sum(chosen) / 2000 == pytest.approx(geometric(chance, 12), rel=0.08)
    assert set(chosen) <= set(range(1, 13))


def test_thompson_draws_from_the_posterior():
    """Before anything is known theta is uniform, and the mean length is that of a fair coin; with equal counts it stays a fair coin."""
    first = [Thompson(most=30, least=0, seed=seed).begin().length() for seed in range(4000)]
    assert sum(first) / 4000 == pytest.approx(1.0, abs=0.08)
    session = Thompson(most=30, least=0).begin()
    session.observe(4, committed([3], 4), 1.0)
    assert (session.accepted, session.rejected) == (3, 1)
    session.observe(4, committed([4], 4), 1.0)  # everything accepted: nothing was rejected
    assert (session.accepted, session.rejected) == (7, 1)


def test_thompson_counts_judged_draft_tokens_only():
    session = Thompson().begin()
    session.observe(4, committed([0, 0], 0), 1.0)  # no draft tokens were made
    session.observe(4, replace(committed([0], 0), values=[[]]), 1.0)  # an ended row
    assert (session.accepted, session.rejected) == (0, 0)


def test_thompson_repeats_itself():
    lengths = [World(0.7, 0.0).run(Thompson(seed=seed).begin(), 50) for seed in (1, 1, 2)]
    assert lengths[0] == lengths[1] != lengths[2]


def test_thompsons_bounds_are_checked():
    with pytest.raises(ValueError, match="least is 3 and most 2"):
        Thompson(most=2, least=3)
    assert Thompson(most=2, least=2).begin().length() == 2
