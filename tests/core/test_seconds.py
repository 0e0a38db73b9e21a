"""Where the seconds go, in a world with its own clock; and a drafter that nobody asks for a draft token reads nothing."""

import pytest

from mmspec.core import stats as engine
from mmspec.core.control import Fixed
from mmspec.core.decode import decode, generate
from mmspec.core.noise import Noise
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stats import PHASES
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.text import generate as text
from tests.drafters.runs import greedy, random_prompt
from tests.oracles.tables import Table, TableSession, TableTarget

TABLE = Table.random(4, 9, 0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(engine, "perf_counter", clock := Clock())
    return clock


class Slow(TableTarget):
    """A target whose encoder, prompt, scored columns and commits take their time: 1000, 100, 1 and 0.01 times `pace` seconds."""

    def __init__(self, clock, pace=1.0):
        super().__init__(TABLE)
        self.__dict__ |= {"clock": clock, "pace": pace, "begun": 0}

    def begin(self, prompt):
        self.__dict__["begun"] += 1
        self.clock.now += 1000 * self.pace
        return SlowSession(self, prompt), super().begin(prompt)[1]


class SlowSession(TableSession):
    fresh = True

    def score(self, draft):
        self.target.clock.now += self.target.pace * (draft.size - self.scored + 100 * self.fresh)
        self.fresh = False
        return super().score(draft)

    def commit(self, keep, most):
        self.target.clock.now += 0.01 * self.target.pace
        super().commit(keep, most)


class Turns:
    """The given draft lengths in turn, the last for ever; what the drafter's start was charged at."""

    def __init__(self, *lengths):
        self.lengths, self.charged = list(lengths), []

    def begin(self):
        return self

    def length(self):
        return self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def charge(self, seconds):
        self.charged.append(seconds)

    def observe(self, length, committed, seconds):
        pass


def drafting(target):
    return ModelDrafter(target, Chain(most_likely))


def steps_of(target, drafter, control, most=9, rows=1):
    return list(
        decode(target, drafter, Greedy(), rows, stopping=DefaultStopping(rows, most), noise=Noise.from_seed(0, rows), control=control)
    )


def test_every_second_has_one_place(clock):
    """The drafter is the target at a tenth of the pace: all draft tokens are right, and every figure follows by hand."""
    first, second = steps_of(Slow(clock), drafting(Slow(clock, 0.1)), Fixed(4), most=10)
    # the drafter runs a place for a value that waits, the pending token, and 3 draft tokens after it: the last one is never run
    assert {name: round(s, 6) for name, s in first.seconds.items()} == {
        "encode": 1000,
        "draft_prefill": 100 + 10 + 0.1 * 5,
        "prefill": 100 + 5,
        "accept": 0,
        "commit": 0.01,
        "draft": 0.001,
        "other": 0,
        "total": 1215.511,
    }
    assert {name: round(s, 6) for name, s in second.seconds.items()} == {
        "draft": 0.1 * 5 + 0.001,
        "score": 5,
        "accept": 0,
        "commit": 0.01,
        "other": 0,
        "total": 5.511,
    }


def committed(steps, rows):
    return [[value for step in steps for value in step.committed.values[row]] for row in range(rows)]


@pytest.mark.parametrize("lengths", [(3,), (0,), (0, 0, 3), (2, 0, 5, 1)])
def test_the_parts_add_up(clock, lengths):
    out = generate(
        Slow(clock),
        drafting(Slow(clock, 0.1)),
        Greedy(),
        2,
        stopping=DefaultStopping(2, 9),
        noise=Noise.from_seed(0, 2),
        control=Turns(*lengths),
    )
    seconds = out.stats.seconds
    assert tuple(seconds) == PHASES
    assert sum(seconds.values()) - seconds["total"] == pytest.approx(seconds["total"])
    assert seconds["total"] == pytest.approx(clock.now)


def test_without_a_drafter_it_costs_nothing(clock):
    found = [step.seconds for step in steps_of(Slow(clock), NoDraft(), Fixed(0), most=3)]
    assert [s.get("draft_prefill", 0) + s.get("draft", 0) for s in found] == [0, 0, 0]
    assert [round(s.get("prefill", 0), 6) for s in found] == [101, 0, 0]
    assert [round(s.get("score", 0), 6) for s in found] == [0, 1, 1]


def test_a_drafter_reads_nothing_before_its_first_draft_token(clock):
    """And what it then costs is told from what a round of it costs."""
    small, control = Slow(clock, 0.1), Turns(0, 0, 3, 3)
    begun, found = [], []
    for step in decode(
        Slow(clock), drafting(small), Greedy(), 1, stopping=DefaultStopping(1, 9), noise=Noise.from_seed(0, 1), control=control
    ):
        begun.append(small.begun)
        found.append(step.seconds)
    assert begun == [0, 0, 1, 1]  # the third round brings 3 draft tokens and one more
    waiting = 2  # values the drafter has not run: they are fed together
    started = 100 + 10 + 0.1 * (waiting + 3)
    assert [s.get("draft_prefill", 0) for s in found] == pytest.approx([0, 0, started, 0])
    assert control.charged == pytest.approx([started])
    never = Slow(clock, 0.1)
    steps_of(Slow(clock), drafting(never), Fixed(0))
    assert never.begun == 0


@pytest.mark.parametrize("lengths", [(0, 4), (0, 0, 0, 2), (0, 1, 0, 0, 5)])
def test_a_drafter_that_begins_late_draft_tokens_as_well(clock, lengths):
    """The target drafts for itself: one wrong position or value at its late start, and a draft token would be refused."""
    rows = 3
    steps = steps_of(Slow(clock), drafting(Slow(clock)), Turns(*lengths), most=12, rows=rows)
    assert sum(map(sum, (step.committed.drafted for step in steps))) == sum(map(sum, (step.committed.accepted for step in steps))) > 0
    plain = steps_of(Slow(clock), NoDraft(), Fixed(0), most=12, rows=rows)
    assert committed(steps, rows) == committed(plain, rows)


def test_a_transformers_drafter_begins_late(big, small):
    """Prompts of their own lengths, padded on the left, and real caches."""
    inputs = random_prompt(5, 9, 7, seed=1)
    for drafter in (big, small):
        out = text(big, inputs, drafter, max_new_tokens=12, draft_length=Turns(0, 0, 3))
        assert out.sequences.tolist() == greedy(big, inputs, 12)
        assert drafter is small or out.stats.drafted == out.stats.accepted > 0
