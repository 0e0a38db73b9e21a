"""The cost model ends up with the faster way, in a simulated world with its own clock, and what is recommended does not depend on it."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from mmspec.core.records import Committed
from mmspec.recsys import CostModel, ItemNGram, recommend
from mmspec.recsys.cost import FADE, Fading, Held, SearchSize, Size
from tests import beam_world as world


@dataclass
class World:
    """A round costs `fixed` seconds, `column` for each column of the batch and `level` for each level drafted, with noise. The draft tokens
    of level l hold with chance `held[l]`, in every row for itself; the last level is never drafted."""

    held: tuple[float, ...]
    fixed: float = 0.010
    column: float = 1e-5
    level: float = 0.001
    search: SearchSize = field(default_factory=lambda: SearchSize(rows=1, prompt=80, k=10, width=40, levels=4))
    noise: float = 0.05
    seed: int = 0

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.calls: list[bool] = []
        self.seconds: list[float] = []

    def run(self, model: CostModel, calls: int) -> list[bool]:
        before = len(self.calls)
        for _ in range(calls):
            self.one(model.at(self.search).begin())
        return self.calls[before:]

    def one(self, session) -> None:
        done, total = [0] * self.search.rows, 0.0
        for turn in range(self.search.levels):
            length = session.length()
            drafted = min(length, self.search.levels - 1 - turn)
            seconds = self.fixed + self.column * self.search.columns(turn, drafted) + self.level * drafted
            seconds *= self.random.uniform(1 - self.noise, 1 + self.noise)
            lines = [self.row(start, drafted) for start in done]
            done = [start + len(values) for start, (values, _, _) in zip(done, lines, strict=True)]
            ended = [committed == self.search.levels for committed in done]
            values, accepted, was_drafted = ([line[part] for line in lines] for part in range(3))
            zeros = [0.0] * len(done)
            session.observe(length, Committed(values, accepted, accepted, was_drafted, ended, [True] * len(done), zeros, zeros), seconds)
            total += seconds
            if all(ended):
                break
        assert all(ended)
        self.calls.append(length > 0)
        self.seconds.append(total)

    def row(self, start: int, drafted: int) -> tuple[list[int], int, int]:
        """Levels committed, draft tokens accepted and levels drafted in one row's round."""
        last = self.search.levels
        if start == last:
            return [], 0, 0
        level = start
        while level < min(start + drafted, last - 1) and self.random.random() < self.held[level]:
            level += 1
        return list(range(start, level + 1)), level - start, min(drafted, last - 1 - start)

    def best(self) -> bool:
        """Is drafting faster? By trying both often."""
        trial = World(self.held, self.fixed, self.column, self.level, self.search, 0.0, seed=99)
        for levels in [0] * 200 + [self.search.levels - 1] * 200:
            trial.one(_Always(levels))
        return sum(trial.seconds[200:]) < sum(trial.seconds[:200])


@dataclass
class _Always:
    levels: int

    def length(self) -> int:
        return self.levels

    def observe(self, *told) -> None:
        pass


CASES = {
    "memory-bound, good drafter": (World((0.9, 0.9, 0.9)), True),
    "memory-bound, useless drafter": (World((0.0, 0.0, 0.0)), False),
    "every column costs": (World((0.9, 0.9, 0.9), column=1e-3), False),
    "drafting costs": (World((0.9, 0.9, 0.9), level=0.02), False),
    "a batch that fills the machine": (World((0.8, 0.8, 0.8), search=SearchSize(64, 80, 10, 40, 4)), False),
    "a batch that does not": (World((0.95, 0.95, 0.95), column=1e-7, search=SearchSize(8, 80, 10, 40, 4)), True),
    "three levels": (World((0.9, 0.9), search=SearchSize(2, 60, 5, 20, 3)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_it_ends_up_with_the_faster_way(name):
    drawn, drafts = CASES[name]
    assert drawn.best() is drafts
    for seed in range(3):
        place = World(drawn.held, drawn.fixed, drawn.column, drawn.level, drawn.search, seed=seed)
        model = CostModel()
        place.run(model, 40)
        assert place.run(model, 60).count(drafts) >= 55
        assert ("drafting" if drafts else "plain") in model.choice.why


def test_what_trying_costs_is_bounded():
    """A drafter that makes a search many times slower is tried at the beginning, and then ever more rarely."""
    place = World((0.0, 0.0, 0.0), level=0.2)
    place.run(CostModel(), 1000)
    assert 2 <= place.calls.count(True) <= 6
    plain = World((0.0, 0.0, 0.0), level=0.2)
    for _ in range(1000):
        plain.one(_Always(0))
    assert sum(place.seconds[4:]) < 1.1 * sum(plain.seconds[4:])


def test_the_slower_way_is_tried_again_at_growing_intervals():
    place = World((0.0, 0.0, 0.0), level=0.0, column=1e-5)
    calls = place.run(CostModel(), 500)
    tried = [call for call in range(4, 500) if calls[call]]
    gaps = [after - before for before, after in pairwise(tried)]
    assert 3 <= len(tried) <= 8
    assert all(after > 1.5 * before for before, after in pairwise(gaps))


def test_it_follows_a_change():
    place, model = World((0.0, 0.0, 0.0)), CostModel()
    assert place.run(model, 60)[20:].count(False) >= 37
    place.held = (0.95, 0.95, 0.95)  # the drafter was trained
    place.run(model, 150)
    assert place.run(model, 50).count(True) >= 46
    place.column = 2e-3  # and now the machine is busy
    place.run(model, 60)
    assert place.run(model, 50).count(False) >= 46


def test_one_user_and_many_are_told_apart():
    """The same drafter on the same machine: worth it for one user, not for 64; a new size is measured anew."""
    one = World((0.85, 0.85, 0.85))
    many = World((0.85, 0.85, 0.85), search=SearchSize(64, 80, 10, 40, 4))
    assert one.best()
    assert not many.best()
    model = CostModel()
    for _ in range(40):
        one.run(model, 1)
        many.run(model, 1)
    assert one.run(model, 30).count(True) >= 27
    assert "at 1 user" in model.choice.why
    assert many.run(model, 30).count(False) >= 27
    assert "at 64 users" in model.choice.why
    assert set(model.sizes) == {1, 7}


def test_the_line_is_found_again():
    place = World((0.6, 0.6, 0.6), fixed=0.02, column=3e-5, level=0.004, noise=0.0)
    model = CostModel()
    place.run(model, 30)
    size = model.sizes[1]
    assert size.line().tolist() == pytest.approx([0.02, 3e-5, 0.004], rel=1e-6)
    assert all(abs(size.held.share(level) - 0.6) < 0.45 for level in range(3))
    for drafts in (False, True):
        trial = World(place.held, place.fixed, place.column, place.level, noise=0.0, seed=5)
        for _ in range(3000):
            trial.one(_Always(3 * drafts))
        known = Size(8)
        known.ways, known.held = size.ways, Held(levels={level: Fading(0.6e6, 1e6) for level in range(3)})
        assert known._by_line(place.search, drafts) == pytest.approx(sum(trial.seconds) / 3000, rel=0.02)


def test_no_part_of_the_line_is_negative():
    size = Size(8)
    for columns, seconds in ((10, 0.5), (100, 0.4), (1000, 0.3)):
        size.ways[False].rounds.append(((1.0, columns, 0), seconds))
    assert (size.line() >= 0).all()
    assert float(size.line() @ (1, 100, 0)) == pytest.approx(0.4, rel=0.3)


@pytest.mark.parametrize("rows", [1, 8])
def test_rounds_by_enumeration(rows):
    """How long a batch goes on, against simulating its rows."""
    shares, draw = (0.8, 0.5, 0.9), random.Random(0)
    held = Held(levels={level: Fading(share * 1e9, 1e9) for level, share in enumerate(shares)})
    counts = [0] * 4
    for _ in range(20000):
        rounds = 0
        for _ in range(rows):
            done = own = 0
            while done < 4:
                while done < 3 and draw.random() < shares[done]:
                    done += 1
                done, own = done + 1, own + 1
            rounds = max(rounds, own)
        for turn in range(rounds):
            counts[turn] += 1
    going = held.going(SearchSize(rows=rows, levels=4))
    assert going == pytest.approx([count / 20000 for count in counts], abs=0.015)
    assert going[0] == 1


def test_what_was_seen_fades():
    mean = Fading()
    mean.add(1.0, 1)
    mean.add(0.0, 3)
    assert mean.mean(0, 0) == pytest.approx(FADE**2 / (1 + FADE**2))
    assert mean.mean(0.5, 1e9) == pytest.approx(0.5)


def test_a_search_that_broke_off_leaves_no_trace():
    place, model = World((0.9, 0.9, 0.9)), CostModel()
    place.run(model, 20)
    line = model.sizes[1].ways[True].beside.weight
    broken = model.at(place.search).begin()
    broken.length()
    assert model.sizes[1].ways[True].beside.weight == line
    place.run(model, 30)
    assert model.choice.levels == 3


def test_nothing_was_searched_yet():
    assert CostModel().choice.why == "nothing was searched yet"
    with pytest.raises(ValueError, match="patience is 0"):
        CostModel(patience=0)


def test_what_is_recommended_does_not_depend_on_it():
    catalogue = world.shop()
    users, model = world.users(catalogue, 5), world.make()
    drafter, control = ItemNGram.of(catalogue, world.users(catalogue, 100, seed=3)), CostModel(patience=1)
    plain, levels = recommend(model, users, k=5, catalogue=catalogue), set()
    for _ in range(8):
        found = recommend(model, users, k=5, catalogue=catalogue, drafter=drafter, draft_length=control)
        levels.add(control.choice.levels)
        assert found.items == plain.items
        assert (found.stats.drafted > 0) is (control.choice.levels > 0)
        assert "at 5 users" in control.choice.why
    assert levels == {0, 3}
