"""A row ends exactly where it should: at its first end value, its first stop, or its last bit of room."""

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode, generate
from mmspec.core.noise import Noise
from mmspec.core.records import CONTEXT, PAD, Draft, Scored, Step, Verdict
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import KSeq
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, draw_with_replacement, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.tables import Table, TableTarget, pair

END = 2
ROWS, MOST = 64, 9


def world() -> tuple[TableTarget, TableTarget]:
    return pair(3, 8, 1)


def run(rule, drafter, length, *, ends=(), stops=(), most=MOST, rows=ROWS, seed=0, target=None):
    stopping, steps = DefaultStopping(rows, most, ends, stops), []
    noise = Noise.from_seed(seed, rows)
    for step in decode(target or world()[0], drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(length)):
        steps.append(step)
    return stopping, steps


def drafter(shape):
    return ModelDrafter(world()[1], shape)


CASES = {
    "match chain": (Match(), Chain(most_likely), 4),
    "match tree": (Match(), StaticTree(Template.branching((2, 2)), top), 2),
    "match plain": (Match(), None, 0),
    "self": (Match(), "self", 5),
}


def case(name):
    rule, shape, length = CASES[name]
    if shape == "self":  # a drafter that drafts the greedy path of a target that takes it
        return Greedy(), ModelDrafter(world()[0], Chain(most_likely)), length
    return rule, NoDraft() if shape is None else drafter(shape), length


@pytest.mark.parametrize("name", CASES)
def test_end_values_cut_the_output_where_they_stand(name):
    """With ends, every row is the row without ends cut after its first end value."""
    rule, proposer, length = case(name)
    free, _ = run(rule, proposer, length)
    cut, _ = run(rule, proposer, length, ends=[END])
    for whole, ended in zip(free.outputs, cut.outputs, strict=True):
        expected = whole[: whole.index(END) + 1] if END in whole else whole
        assert ended == expected
    assert not cut.open
    assert cut.remaining == [0] * ROWS
    assert cut.left.tolist() == [0] * ROWS
    assert len({len(row) for row in cut.outputs}) > 3 or name == "self"


@pytest.mark.parametrize("name", CASES)
def test_stops_cut_the_output_where_they_say(name):
    """A host stop after the value at which 0 has been seen twice in a row."""

    def stop(row: int, values: list[int]) -> bool:
        return values[-2:] == [0, 0]

    rule, proposer, length = case(name)
    free, _ = run(rule, proposer, length)
    cut, steps = run(rule, proposer, length, stops=[stop])
    for whole, ended in zip(free.outputs, cut.outputs, strict=True):
        hits = [i for i in range(1, len(whole)) if whole[i - 1 : i + 1] == [0, 0]]
        assert ended == whole[: hits[0] + 1 if hits else None]
    assert cut.remaining == cut.left.tolist() == [0] * ROWS
    assert {len(row) for row in cut.outputs} != {MOST} or name == "self"
    assert_consistent(cut, steps)


def assert_consistent(stopping: DefaultStopping, steps) -> None:
    """What the host was told, what the device holds and what was output are one story."""
    outputs = [[] for _ in stopping.outputs]
    for step in steps:
        committed, verdict = step.committed, step.verdict
        for row, values in enumerate(committed.values):
            assert values == verdict.values[row, : verdict.count[row]].tolist()
            assert committed.accepted[row] == verdict.accepted[row]
            assert committed.judged[row] == verdict.judged[row]
            assert 0 <= committed.accepted[row] <= min(len(values), committed.judged[row]) or not values
            assert committed.ended[row] == (verdict.pending.parents[row, -1] == PAD)
            outputs[row] += values
            assert committed.ended[row] == (len(outputs[row]) == len(stopping.outputs[row]))
    assert outputs == stopping.outputs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ends", [(), (END,), (0, 1)])
def test_host_and_device_agree(name, ends):
    rule, proposer, length = case(name)
    assert_consistent(*run(rule, proposer, length, ends=ends))


def test_stops_are_asked_once_per_value_in_order():
    asked = []

    def stop(row: int, values: list[int]) -> bool:
        asked.append((row, tuple(values)))
        return len(values) == 5

    stopping, _ = run(Match(), drafter(Chain(most_likely)), 3, stops=[stop], rows=4)
    assert sorted(asked) == sorted((row, tuple(out[: i + 1])) for row, out in enumerate(stopping.outputs) for i in range(5))
    assert all(len(out) == 5 for out in stopping.outputs)


def test_ends_and_stops_together_take_the_first():
    stopping, _ = run(Match(), drafter(Chain(most_likely)), 4, ends=[END], stops=[lambda row, values: len(values) == 3])
    free, _ = run(Match(), drafter(Chain(most_likely)), 4)
    for whole, ended in zip(free.outputs, stopping.outputs, strict=True):
        first = whole.index(END) + 1 if END in whole else MOST
        assert ended == whole[: min(first, 3)]


@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 4, 9])
@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Match(), Chain(most_likely)),
        (Token(), Chain(sampled)),
        (Walk(KSeq()), StaticTree(Template.branching((2, 2, 1)), draw_with_replacement)),
    ],
)
def test_room_is_filled_and_never_exceeded(most, length, rule, shape):
    stopping, steps = run(rule, drafter(shape), length, most=most, rows=8)
    assert [len(row) for row in stopping.outputs] == [most] * 8
    for step in steps:
        assert (step.draft.depth().amax(1) <= (most - 1 - step.draft.start).clamp(min=0)).all()


def test_rows_that_ended_commit_nothing_more():
    _, steps = run(Match(), drafter(Chain(most_likely)), 3, ends=[END])
    over = [False] * ROWS
    for step in steps:
        for row in range(ROWS):
            if over[row]:
                assert step.committed.values[row] == []
                assert step.committed.drafted[row] == 0
                assert (step.verdict.keep[row] == -1).all()
            over[row] = over[row] or step.committed.ended[row]
    assert all(over)


def test_several_rows_end_at_once_and_alone():
    alone, _ = run(Match(), drafter(Chain(most_likely)), 4, ends=[END], rows=1, seed=5)
    batch, _ = run(Match(), drafter(Chain(most_likely)), 4, ends=[END], rows=8, seed=2)
    assert batch.outputs[3] == alone.outputs[0]


def test_no_room_is_refused():
    with pytest.raises(ValueError, match="max_new_tokens is 0: ask for at least 1"):
        DefaultStopping(1, 0)


# --- statistics -------------------------------------------------------------------------------------------------------


def judged(values: list[int], accepted: int, of: int, *, ends=()) -> Stats:
    """One row whose chain of `of` draft tokens had its first `accepted` accepted, cut by `ends`."""
    nodes, size = torch.tensor([[1, *values[:accepted], *[0] * (of - accepted)]]), of + 1
    draft = Draft(nodes, torch.tensor([[CONTEXT, *range(of)]]), torch.zeros(1, dtype=torch.long))
    padded = torch.tensor([values + [0] * (size - len(values))])
    count, kept = torch.tensor([accepted + 1]), torch.tensor([accepted])
    pending = Draft.root(padded[:, accepted], draft.start + count)
    seen = kept + (accepted < of)
    verdict = Verdict(torch.arange(size)[None], padded, count, pending, kept, seen, expected=torch.tensor([0.5]))
    stopping = DefaultStopping(1, 20, ends)
    stats = Stats()
    verdict, committed = stopping.commit(draft, Scored(None), verdict)
    stats.add(Step(draft, verdict, committed, {}))
    return stats


def test_draft_tokens_behind_an_end_were_not_rejected():
    stats = judged([1, END, 1, 1, 0], 4, 4, ends=[END])
    assert (stats.tokens, stats.accepted, stats.judged, stats.rejected) == (2, 2, 2, 0)
    stats = judged([1, 1, 0], 2, 4, ends=[END])
    assert (stats.tokens, stats.accepted, stats.judged, stats.rejected) == (3, 2, 3, 1)


def test_statistics_add_up():
    target, _ = world()
    for rule, shape, length in (
        (Match(), Chain(most_likely), 4),
        (Token(), Chain(sampled), 3),
        (Walk(KSeq()), StaticTree(Template.branching((2, 2)), draw_with_replacement), 2),
    ):
        steps, stopping = [], DefaultStopping(ROWS, MOST, [END])
        out = generate(
            target,
            drafter(shape),
            rule,
            ROWS,
            stopping=stopping,
            noise=Noise.from_seed(0, ROWS),
            control=Fixed(length),
            on_step=steps.append,
        )
        stats = out.stats
        assert stats.tokens == sum(map(len, stopping.outputs)) == out.lengths.sum()
        assert stats.target_calls == len(steps)
        assert stats.row_calls == sum(bool(values) for step in steps for values in step.committed.values) == sum(stats.histogram)
        assert stats.accepted == sum(n * times for n, times in enumerate(stats.histogram))
        assert stats.row_calls <= stats.tokens <= stats.accepted + stats.row_calls
        assert stats.rejected == stats.judged - stats.accepted >= 0
        assert stats.judged <= stats.drafted
        assert all(0 <= share <= 1 for share in stats.acceptance_by_position)
        assert stats.tokens_per_call == stats.tokens / stats.row_calls
        assert stats.to_dict()["tokens_per_call"] == stats.tokens_per_call
        for row, values in enumerate(stopping.outputs):
            assert out.sequences[row, : len(values)].tolist() == values


def test_rejections_counted_are_those_expected():
    """Over many rows, ends included: the mean number of rejections is that the distributions call for. A stale q would show."""
    target, _ = world()
    rows = 4000
    for rule, shape, length in (
        (Token(), Chain(sampled), 3),
        (Walk(KSeq()), StaticTree(Template.branching((2, 2)), draw_with_replacement), 2),
    ):
        stopping = DefaultStopping(rows, 6, [END])
        noise = Noise.from_seed(0, rows)
        stats = generate(target, drafter(shape), rule, rows, stopping=stopping, noise=noise, control=Fixed(length)).stats
        spread = 3.5 * stats.expected_rejections**0.5
        assert abs(stats.rejected - stats.expected_rejections) < spread
        assert stats.expected_rejections > 500


def test_sick_logits_are_named():
    class Sick:
        def begin(self, prompt):
            session, pending = TableTarget(Table.random(3, 6, 0)).begin(prompt)
            score, rounds = session.score, []

            def spoiled(draft):
                rounds.append(draft)
                return Scored(score(draft).p, healthy=torch.tensor([True, len(rounds) < 3]))

            session.score = spoiled
            return session, pending

    with pytest.raises(FloatingPointError, match="row 1 at output position 2"):
        run(Match(), NoDraft(), 0, rows=2, target=Sick())
