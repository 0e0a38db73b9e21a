"""Every source of drafts whose rows can join and leave x trees x requests that arrive later: the tokens of each request alone."""

import pytest

from mmspec.core.noise import Noise
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.rows import rounds
from mmspec.drafters.retrieval.host import HostSession
from mmspec.models.slot_cache import SlotCache
from mmspec.serving.scheduler import Scheduler
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt
from tests.drafters.sources import GROWN, NAMED, OWN_FORM, World
from tests.serving.traffic import Asked, scheduler_for, serve

FIXED = {  # what keeps states of the whole batch
    *("name lookahead", "lookahead", "lookahead-drawn"),
    *("cascade", "cascade-of-the-target", "relay", "relay-of-models"),
}
TREES = dict(zip(GROWN, [NAMED[list(NAMED)[place % len(NAMED)]] for place in range(len(GROWN))], strict=True))


def stopped(row, values):
    return len(values) >= 4


ASKED = [
    Asked([7, 9, 7, 9, 7], {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}),
    Asked([5], {"max_new_tokens": 5}),
    Asked([11, 12, 11, 12, 30, 31, 11], {"max_new_tokens": 8, "temperature": 0.7, "top_k": 9, "seed": 5, "stops": (stopped,)}, arrives=2),
    Asked([20, 21, 22], {"max_new_tokens": 10, "repetition_penalty": 1.3}, arrives=3),
    Asked([9] * 12, {"max_new_tokens": 6, "temperature": 1.0, "top_p": 0.8, "seed": 8}, arrives=4),
    Asked([4, 4], {"max_new_tokens": 1}, arrives=5),
]


@pytest.fixture(scope="module")
def target():
    return llama(3, seed=0)


@pytest.fixture(scope="module")
def world(target, small, tmp_path_factory):
    texts = greedy(target, random_prompt(5, 9, 1, seed=8)) + random_prompt(40, 40, seed=2)["input_ids"].tolist()
    return World(target, small, texts, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def plain(target):
    return [each.alone(target) for each in ASKED]


def tokens(target, source, tree=None, **options):
    scheduler, waiting = scheduler_for(target, source, max_rows=3, piece=6, tree=tree, draft_length=3, **options)
    handles = serve(scheduler, waiting, ASKED, most=300)
    return [handle.result(0).tokens[0].tolist() for handle in handles], scheduler.counts


@pytest.mark.parametrize("name", GROWN)
def test_what_grows_trees_gives_every_request_its_tokens(name, world, target, plain):
    found, counts = tokens(target, GROWN[name](world, 1.0), TREES[name])
    assert found == plain
    assert counts.drafted > 0
    assert counts.restarted == 0


@pytest.mark.parametrize("name", [name for name in OWN_FORM if name not in FIXED and name != "name mtp"])
def test_what_has_a_form_of_its_own_gives_every_request_its_tokens(name, world, target, plain):
    found, counts = tokens(target, OWN_FORM[name](world, 1.0))
    assert found == plain
    assert counts.restarted == 0


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_keeps_states_of_the_batch_is_refused_in_one_line(name, world, target):
    with pytest.raises(ValueError, match=r"^the drafter \(\w+\) keeps states of the whole batch") as caught:
        scheduler_for(target, OWN_FORM[name](world, 1.0))
    assert "\n" not in str(caught.value)


def test_a_greedy_engine(target, world, plain):
    greedy_ones = [each for each in ASKED if not each.options.get("temperature")]
    scheduler, waiting = scheduler_for(target, world.small, max_rows=2, accept="greedy", draft_length=2)
    handles = serve(scheduler, waiting, greedy_ones)
    assert [handle.tokens for handle in handles] == [each.alone(target) for each in greedy_ones]
    with pytest.raises(ValueError, match="accepts greedily"):
        serve(scheduler, waiting, [ASKED[0]])


# --- planted bugs are found -------------------------------------------------------------------------------------------


def test_mutant_rows_that_leave_keep_their_texts(target, plain, monkeypatch):
    """A lookup drafter whose rows are not renumbered only drafts worse: the tokens stay right."""
    monkeypatch.setattr(HostSession, "take_rows", lambda self, rows: setattr(self, "rows", self.rows[: len(rows)]))
    monkeypatch.setattr(HostSession, "ended", property(lambda self: [False] * len(self.rows), lambda self, ended: None), raising=False)
    found, _ = tokens(target, "lookup")
    assert found == plain


def rotated(rows, count):
    return [(row + 1) % count for row in rows]


MUTANTS = {  # each part gives its rows another row's state when some leave
    "noise": (Noise, "take_rows", lambda own: lambda self, rows: own(self, rotated(rows, len(self.seeds)))),
    "pending": (rounds, "pending_rows", lambda own: lambda pending, rows: own(pending, rotated(rows, len(pending.start)))),
    "cache": (SlotCache, "take_rows", lambda own: lambda self, rows: own(self, range(len(rows)))),
    "processors": (RowPipelines, "take_rows", lambda own: lambda self, rows: own(self, rotated(rows, len(self.rows)))),
}


@pytest.mark.parametrize("part", MUTANTS)
def test_mutant_a_part_whose_rows_are_mixed_up_gives_wrong_tokens(part, target, plain, monkeypatch):
    where, name, change = MUTANTS[part]
    monkeypatch.setattr(where, name, change(getattr(where, name)))
    found, _ = tokens(target, None)
    assert found != plain


def test_the_rows_of_these_requests_do_change_places(target, monkeypatch):
    """Else the mutants above would prove nothing."""
    moves = []
    own = Scheduler._leave

    def noted(self):
        before = [] if self.running is None else list(self.running.handles)
        own(self)
        if self.running is not None and before[: len(self.running.handles)] != self.running.handles:
            moves.append(len(before))

    monkeypatch.setattr(Scheduler, "_leave", noted)
    tokens(target, None)
    assert moves
