import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, Draft, validate
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import TopKSiblings
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.lookahead import Lookahead, LookaheadSession, round_template
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import drawn, most_likely
from mmspec.text import generate
from tests.drafters.runs import fives, greedy, markov, prompt_of, random_prompt, run
from tests.names import named
from tests.oracles.tables import Table, TableTarget, exact_error, run_loop

SMALL = Lookahead(ngram=3, window=2, draft_tokens=2, pool=4)
NOISE = Noise.from_seed(0, 1)


def opened(plan: Lookahead, text: list[int]) -> LookaheadSession:
    session = LookaheadSession(plan, [text])
    session.propose(pending(text[-1]), Budget(torch.tensor([99]), 0), NOISE)
    return session


def pending(value: int, start: int = 0) -> Draft:
    return Draft.root(torch.tensor([value]), torch.tensor([start]))


# --- the tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ngram", "window", "draft_tokens"), [(3, 2, 1), (5, 7, 7), (2, 4, 2), (4, 1, 1)])
def test_the_window_is_seen_as_in_the_paper(ngram, window, draft_tokens):
    """Row 0 up to the own column, and the own column down to oneself: nothing else of the window, nothing of the pool."""
    plan = Lookahead(ngram, window, draft_tokens)
    draft = opened(plan, list(range(9))).propose(pending(8), Budget(torch.tensor([99]), plan.depth), NOISE)
    validate(draft)
    ancestors, first = draft.ancestors()[0], 1 + draft_tokens * (ngram - 1)
    assert draft.size == first + window * (ngram - 1)
    for row in range(ngram - 1):
        for column in range(window):
            node = first + row * window + column
            expected = {0, node} | {first + i for i in range(column + 1)} | {first + r * window + column for r in range(row + 1)}
            assert set(ancestors[node].nonzero().flatten().tolist()) == expected
            assert draft.depth()[0, node] == row + column + 1
    assert draft.height == int(draft.depth().max()) == plan.depth


@pytest.mark.parametrize("length", range(1, 9))
def test_paths_are_as_long_as_asked(length):
    plan = Lookahead(ngram=4, window=3, draft_tokens=2)
    places, parents, depths = round_template(plan, length)
    assert len(set(places)) == len(places)
    assert all(parent < node for node, parent in enumerate(parents))
    assert depths == [1 + (0 if parent < 0 else depths[parent]) for parent in parents]
    assert max(depths) == min(length, plan.depth)


def test_a_row_gets_the_paths_that_fit():
    plan = Lookahead(ngram=3, window=3, draft_tokens=1)
    session = LookaheadSession(plan, [[1, 2, 3]] * 2)
    ends = Draft.root(torch.tensor([3, 3]), torch.tensor([0, 0]))
    draft = session.propose(ends, Budget(torch.tensor([99, 3]), 4), NOISE)
    assert (draft.depth() * draft.valid).amax(1).tolist() == [4, 2]
    assert draft.levels == 4


# --- the pool ---------------------------------------------------------------------------------------------------------


def grams(*found: list[int]) -> torch.Tensor:
    return torch.tensor([found])


def held(session: LookaheadSession) -> list[list[int]]:
    return [gram for gram in session.pool[0].tolist() if gram[0] >= 0]


def test_the_pool_keeps_the_latest_each_once():
    session = opened(Lookahead(ngram=3, window=2, draft_tokens=2, pool=4, seeded=False), [9])
    for pair in (([1, 2, 3], [1, 5, 6]), ([2, 2, 2], [1, 2, 3]), ([7, 7, 7], [7, 7, 7])):
        session._remember(grams(*pair))
    assert held(session) == [[7, 7, 7], [2, 2, 2], [1, 2, 3]]  # four places: one is the copy's, and the oldest are gone
    session._remember(grams([2, 2, 2], [7, 7, 7]))
    assert held(session) == [[2, 2, 2], [7, 7, 7]]


def test_the_latest_with_the_key_are_tried():
    session = opened(Lookahead(ngram=2, window=1, draft_tokens=2, pool=9, seeded=False), [9])
    for gram in ([1, 2], [1, 3], [4, 4], [1, 4], [1, 3]):
        session._remember(grams(gram))
    assert session._found(torch.tensor([1])).tolist() == [[[1, 3], [1, 4]]]
    assert session._found(torch.tensor([4])).tolist() == [[[4, 4], [-1, -1]]]
    draft = session.propose(pending(4), Budget(torch.tensor([99]), 1), NOISE)
    assert draft.valid.tolist() == [[True, True, False, True]]


def test_a_prompt_seeds_the_pool():
    text = [1, 2, 3, 1, 2, 3, 4]
    assert held(opened(SMALL, text)) == [[2, 3, 4], [1, 2, 3], [3, 1, 2], [2, 3, 1]]
    assert held(opened(Lookahead(ngram=3, window=2, draft_tokens=2, pool=4, seeded=False), text)) == []
    assert held(opened(SMALL, [1, 2])) == []


# --- the window -------------------------------------------------------------------------------------------------------


def found_by(plan: Lookahead, table: Table, rounds: int, tamper=lambda session: None):
    """Every n-gram found in a generation, with the history that the target saw before its last value."""
    target, noise = TableTarget(table), Noise.from_seed(0, 1)
    session, tip = target.begin(1)
    proposer, stopping = plan.begin(1, session), DefaultStopping(1, 60)
    for _ in range(rounds):
        draft = proposer.propose(tip, stopping.budget(plan.depth), noise)
        scored = session.score(draft)
        before = list(stopping.outputs[0])
        verdict, committed = stopping.commit(draft, scored, Greedy()(draft, scored, noise))
        session.commit(verdict.keep, 99)
        proposer.observe(draft, scored, verdict, committed)
        tamper(proposer)
        proposer.propose(verdict.pending, Budget(stopping.left, 0), noise)  # draws what was said
        tip, first = verdict.pending, draft.size - plan.window * (plan.ngram - 1)
        for column in range(plan.window):
            row0 = draft.nodes[0, first : first + column + 1].tolist()
            below = [int(draft.nodes[0, first + row * plan.window + column]) for row in range(1, plan.ngram - 1)]
            yield before + row0 + below, row0[-1:] + below, [gram for gram in proposer.pool[0].tolist() if gram[0] >= 0]


def wrong(plan: Lookahead, tamper=lambda session: None) -> int:
    """How many columns did not become an n-gram that ends in the target's most likely value."""
    count = 0
    for table in (Table.random(3, 10, seed=seed) for seed in range(4)):
        for history, column, pool in found_by(plan, table, 3, tamper):
            code = 1
            for value in history:
                code = code * 3 + value
            count += [*column, int(table.probs[code % len(table.probs)].argmax())] not in pool
    return count


PLANS = [Lookahead(3, 2, 2), Lookahead(4, 3, 1), Lookahead(2, 3, 1)]


@pytest.mark.parametrize("plan", PLANS, ids=named)
def test_n_grams_end_in_what_the_target_says(plan):
    assert wrong(plan) == 0


@pytest.mark.parametrize("plan", PLANS, ids=named)
def test_distributions_read_one_column_off_show(plan):
    def slip(session):
        distribution, ran, start = session.said
        session.said = (distribution.at((torch.arange(plan.window) + 1)[None] % plan.window), ran, start)

    assert wrong(plan, slip) > 0


def test_columns_move_on_with_the_text():
    """Each row's values stand one place nearer; what has become the past goes to the end."""
    session = opened(Lookahead(ngram=3, window=4, draft_tokens=1, seeded=False), [9])
    session.window = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    session.moved = torch.tensor([3])  # plain rounds
    session._advance(torch.tensor([3]), NOISE)
    assert session.window.tolist() == [[[4, 1, 2, 3], [8, 5, 6, 7]]]


def test_columns_that_did_not_fit_stay():
    plan = Lookahead(ngram=3, window=3, draft_tokens=1)
    target = TableTarget(Table.random(3, 10, seed=3))
    session, tip = target.begin(1)
    proposer, stopping = plan.begin(1, session), DefaultStopping(1, 60)
    draft = proposer.propose(tip, stopping.budget(2), NOISE)  # one column of two rows, and the first row's second value
    proposer.window = torch.tensor([[[0, 1, 2], [2, 1, 0]]])
    scored = session.score(draft)
    verdict, committed = stopping.commit(draft, scored, Greedy()(draft, scored, NOISE))
    proposer.observe(draft, scored, verdict, committed)
    proposer.moved = torch.tensor([1])
    proposer._advance(verdict.pending.start, NOISE)
    assert proposer.window[0, :, 1:].tolist() == [[1, 2], [1, 0]]
    assert proposer.window[0, 0, 0] == 2


# --- the distribution ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Lookahead(2, 2, 1), Lookahead(3, 1, 1), Lookahead(3, 2, 2)], ids=named)
@pytest.mark.parametrize("rule", [Match(), Walk(TopKSiblings())], ids=["match", "topk"])
def test_whole_runs_have_the_targets_distribution(rule, plan):
    target = TableTarget(Table.random(2, 9, seed=5))
    assert exact_error(target, plan, rule, most=3, length=2, once=not isinstance(rule, Match)) < 1e-9


@pytest.mark.parametrize("draw", [drawn, most_likely])
@pytest.mark.parametrize("rule", [Match(), Coupled()], ids=["match", "coupled"])
def test_sampling_is_plain_sampling_whatever_is_drafted(rule, draw):
    target = TableTarget(Table.random(3, 11, seed=2))
    noise = Noise.from_seed(7, 100)
    expected = run_loop(target, NoDraft(), Match(), noise, 100, most=6, length=0).outputs
    assert run_loop(target, Lookahead(3, 3, 2, draw=draw), rule, noise, 100, most=6, length=4).outputs == expected


# --- what it brings ---------------------------------------------------------------------------------------------------


def test_n_grams_are_found_before_the_text_gets_there():
    """A text that never repeats itself within the run: only the window can know how it goes on."""
    model, inputs = markov(lambda token: (token + 7) % 50), prompt_of([*range(0, 50, 5), 4])
    out = run(model, Lookahead(seeded=False), inputs, new=40, length=7)
    assert out.sequences.tolist() == greedy(model, inputs, 40)
    assert out.stats.target_calls <= 25
    assert run(model, Lookahead(seeded=False, window=1), inputs, new=40, length=7).stats.target_calls > out.stats.target_calls


def test_a_known_text_is_drafted_whole():
    out = run(markov(fives), Lookahead(), prompt_of([1, 2, 3, 4, 0, 1, 2]), new=40, length=7)
    assert out.stats.target_calls == 10  # n-grams of 4: three draft tokens and one value more a round


def test_shared_noise_pays_when_sampling():
    """Of distributions that depend on the last value only, the coupled draw of a column is often the very value that comes."""
    table = Table.random(8, 1, seed=0, sharp=0.3)

    class Recent(Table):
        def step(self, codes, values):
            return values

    target, calls = TableTarget(Recent(table.probs[:8])), []
    for draw in (drawn, most_likely):
        stopping = DefaultStopping(8, 80)
        plan = Lookahead(window=8, draw=draw)
        rounds = decode(target, plan, Coupled(), 8, stopping=stopping, noise=Noise.from_seed(1, 8), control=Fixed(10))
        calls.append(sum(bool(values) for step in rounds for values in step.committed.values))
    assert calls[0] < 0.9 * calls[1]


def test_requests_name_it(big):
    inputs = random_prompt(5, 9, 7, seed=1)
    assert generate(big, inputs, "lookahead", max_new_tokens=12).sequences.tolist() == greedy(big, inputs, 12)
    plain, fast = (generate(big, inputs, name, max_new_tokens=12, temperature=1.0).sequences for name in (None, "lookahead"))
    assert torch.equal(plain, fast)
    with pytest.raises(ValueError, match="judges chains"):
        generate(big, inputs, "lookahead", accept=Token(), max_new_tokens=12, temperature=1.0)


def test_options_are_checked():
    for options, words in (
        ({"ngram": 1}, "ngram, window and draft tokens"),
        ({"window": 0}, "at least 1 column"),
        ({"pool": 2}, "pool is 2"),
    ):
        with pytest.raises(ValueError, match=words):
            Lookahead(**options)
    with pytest.raises(ValueError, match="holds 2 texts, but the target opened 1"):
        LookaheadSession(SMALL, [[1], [2]]).propose(pending(1), Budget(torch.tensor([9]), 1), NOISE)


def test_ended_rows_draft_token_nothing():
    session = LookaheadSession(SMALL, [[1, 2], [3, 4]])
    ends = Draft.root(torch.tensor([2, 4]), torch.tensor([0, 0]), torch.tensor([True, False]))
    draft = session.propose(ends, Budget(torch.tensor([9, 0]), 3), NOISE)
    assert (draft.parents[1] == PAD).all()
    assert draft.valid[0, 1:].any()
