"""A drafter that is decoded speculatively itself: exact whatever its parts, and worth as much as its middle model alone."""

from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, validate
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import WithoutReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model import vertical_cascade as cascade
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.vertical_cascade import InnerNoise, VerticalCascade
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SkipLayers
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.drafters.shapes import Chain, drawn, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from tests.drafters.cascades import drafting, hf, perturbed, three
from tests.drafters.runs import NEW, greedy, plain, random_prompt, run
from tests.drafters.test_contract import Varied, Watched
from tests.oracles.tables import exact_error, round_outcomes, run_loop

TINY, SEEN = 1e-9, 1e-3
ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
BATCHES = pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])


# --- the distribution ----------------------------------------------------------------------------------------------------------

CASCADES = {
    "one round": (Token(), Chain(sampled), 1, 2),
    "two rounds": (Token(), Chain(sampled), 2, 1),
    "three rounds": (Token(), Chain(sampled), 3, 1),
    "block": (Block(), Chain(sampled), 2, 1),
    "greedy": (Greedy(), Chain(most_likely), 2, 2),
    "tree": (Walk(WithoutReplacement()), StaticTree(Template.branching((2,))), 2, 1),
    "lenient": (Lenience(0.5), Chain(sampled), 2, 1),
    "match": (Match(), Chain(most_likely), 2, 1),
}


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("case", CASCADES)
def test_whole_runs_have_the_targets_distribution(case, rule):
    inner_rule, shape, rounds, draft_tokens = CASCADES[case]
    target, middle, inner = three(2, 6, 1)
    plan = VerticalCascade(middle, ModelDrafter(inner, shape), inner_rule, rounds, draft_tokens)
    most = 4 if case in ("one round", "three rounds", "greedy") else 3
    assert exact_error(target, plan, rule, most=most, length=3) < TINY


def test_three_values_have_the_targets_distribution():
    target, middle, inner = three(3, 5, 1)
    assert exact_error(target, VerticalCascade(middle, ModelDrafter(inner), Token(), 2, 1), Token(), most=3, length=2) < TINY


@pytest.mark.parametrize("inner", [NGram(), Lookup(), NoDraft()], ids=["ngram", "lookup", "none"])
def test_drafters_without_a_model_keep_the_distribution(inner):
    target, middle, _ = three(2, 6, 1)
    assert (
        exact_error(target, VerticalCascade(middle, inner, Token(), 2, 2), Token(), most=4, length=3, whole=isinstance(inner, NoDraft))
        < TINY
    )


def test_cascades_of_cascades_keep_the_distribution():
    target, middle, inner = three(2, 6, 1)
    innermost = three(2, 6, 2)[2]
    plan = VerticalCascade(middle, VerticalCascade(inner, ModelDrafter(innermost), Token(), 1, 1), Token(), 2, 1)
    assert exact_error(target, plan, Token(), most=3, length=3) < TINY


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_numbers_shared_with_the_outer_rule_show(monkeypatch, rule):
    """The mutant: inner rounds that draw with the outer rule's own numbers."""
    target, middle, inner = three(2, 6, 1)
    plan = VerticalCascade(middle, ModelDrafter(inner), Token(), 2, 1)
    assert exact_error(target, plan, rule, most=3, length=3) < TINY
    monkeypatch.setattr(cascade, "InnerNoise", lambda outer, start, coupled: outer)
    assert exact_error(target, plan, rule, most=3, length=3) > SEEN


def test_a_distribution_that_is_not_the_middles_shows(monkeypatch):
    """The mutants: the inner drafter's distribution recorded as q, or the middle's where a lossy rule chose the draft tokens."""
    target, middle, inner = three(2, 6, 1)

    @dataclass(frozen=True)
    class Claiming(Lenience):
        exactness: str = "distribution-exact"

    monkeypatch.setattr(Greedy, "exactness", "distribution-exact")
    for rule in (Claiming(0.3), Greedy()):
        plan = VerticalCascade(middle, ModelDrafter(inner), rule, 2, 1)
        assert exact_error(target, plan, Token(), most=3, length=3) > SEEN


def test_draft_tokens_that_wait_for_no_verdict_show(monkeypatch):
    """The mutant: a chain that ends where its last value displeases."""
    commit = cascade.Growth.commit

    def dropping(self, draft, scored, verdict):
        commit(self, draft, scored, verdict)
        last = self.values.gather(1, (self.filled - 1).clamp_min(0)[:, None])[:, 0]
        self.filled = torch.where(last == 0, self.filled - 1, self.filled).clamp_min(0)
        self.left = torch.where(last == 0, 0, self.left)
        self.pending = replace(self.pending, parents=torch.where((last == 0)[:, None], PAD, self.pending.parents))

    target, middle, inner = three(2, 6, 1)
    monkeypatch.setattr(cascade.Growth, "commit", dropping)
    assert exact_error(target, VerticalCascade(middle, ModelDrafter(inner), Token(), 2, 1), Token(), most=3, length=3) > SEEN


@pytest.mark.parametrize("inner_rule", [Token(), Block()], ids=["token", "block"])
def test_draft_tokens_are_the_middles_own(inner_rule):
    """As many are accepted, in the mean, as of the middle model drafting alone, wherever the chains are equally long."""
    target, middle, inner = three(2, 6, 1)
    plan = VerticalCascade(middle, ModelDrafter(inner), inner_rule, 3, 1)
    means = []
    for drafter in (plan, ModelDrafter(middle)):
        outcomes = round_outcomes(target, drafter, Token(), most=4, length=3)
        means.append((outcomes.extra["accepted"] * outcomes.weights).sum().item())
    assert means[0] == pytest.approx(means[1], abs=1e-9)


# --- full acceptance: equality cannot see a blind drafter -------------------------------------------------------------


def exported(target, drafter, rule, *, rows=200, most=12, length=8):
    """Draft tokens and accepted draft tokens of every round in which there was room for all."""
    stopping, found = DefaultStopping(rows, most), []
    for step in decode(target, drafter, rule, rows, stopping=stopping, noise=Noise.from_seed(1, rows), control=Fixed(length)):
        validate(step.draft)
        found.append((step.committed.drafted, step.committed.accepted))
    return found


@pytest.mark.parametrize(("rounds", "draft_tokens", "chain"), [(1, 3, 4), (2, 2, 6), (3, 1, 6), (2, 9, 8)])
def test_equal_models_accept_everything(rounds, draft_tokens, chain):
    """Inside, every round exports all its draft tokens and one value more; outside, all of them are accepted."""
    target = three(2, 12, 1)[0]
    plan = VerticalCascade(target, ModelDrafter(target), Token(), rounds, draft_tokens)
    found = exported(target, plan, Token())
    assert set(found[0][0]) == {chain}
    assert all(drafted == accepted for drafted, accepted in found)


SELF = {
    "token": (Token(), Token(), Chain(sampled), 1.0),
    "block": (Block(), Block(), Chain(sampled), 0.7),
    "coupled": (Coupled(), Coupled(), Chain(drawn), 1.0),
    "greedy": (Greedy(), Greedy(), Chain(most_likely), None),
    "tree": (Token(), Walk(WithoutReplacement()), StaticTree(Template.branching((2, 1))), 1.0),
}


@pytest.mark.parametrize("case", SELF)
def test_a_target_cascading_to_itself_accepts_everything(big, case):
    """On the real cache: every inner round's columns see what they should, through dead branches and waiting values."""
    rule, inner_rule, shape, temperature = SELF[case]
    plan = VerticalCascade(hf(big, temperature), drafting(big, shape, temperature), inner_rule, 2, 2)
    drafted = []
    stats = run(
        big, plan, RAGGED, rule, new=26, length=6, temperature=temperature, on_step=lambda step: drafted.append(step.committed.drafted)
    ).stats
    assert stats.rejected == 0
    assert stats.accepted == stats.drafted
    assert drafted[0] == [6, 6, 6]


@pytest.mark.parametrize("lengths", [(6,), (3, 0, 7, 1, 0, 0, 5, 2)], ids=["fixed", "varied"])
@pytest.mark.parametrize("deep", [False, True], ids=["two", "three"])
def test_a_good_middle_with_a_bad_inner_model_loses_nothing(big, small, lengths, deep):
    """Inner draft tokens are refused all the time, so branches die and rows go on at different places; the outer rule still accepts all."""

    class Lengths(Varied):
        def __init__(self):
            self.lengths = list(lengths) * 30

    inner = drafting(small, Chain(sampled), 1.0)
    if deep:
        inner = VerticalCascade(hf(perturbed(big, 0.1), 1.0), inner, Token(), 2, 1)
    plan = VerticalCascade(hf(big, 1.0), inner, Token(), 3, 2)
    stats = run(big, plan, RAGGED, Token(), new=26, temperature=1.0, control=Lengths()).stats
    assert stats.rejected == 0
    assert stats.accepted == stats.drafted > 0


# --- equality over transformers models --------------------------------------------------------------------------------


def inner_drafters(model, temperature):
    draw = most_likely if temperature is None else drawn
    pick = {} if temperature else {"pick": top}
    return {
        "model": drafting(model, Chain(draw), temperature),
        "tree": drafting(model, StaticTree(Template.branching((2, 2)), **pick), temperature),
        "lookup": Lookup(),
        "suffix": Suffix(),
        "ngram": NGram(),
        "cascade": VerticalCascade(hf(model, temperature), Lookup(), Greedy() if temperature is None else Coupled(), 2, 2),
    }


INNERS = pytest.mark.parametrize("inner", ["model", "tree", "lookup", "suffix", "ngram", "cascade"])


@pytest.fixture(scope="module")
def near(big):
    return perturbed(big, 0.02)


@pytest.fixture(scope="module")
def further(big):
    return perturbed(big, 0.05)


def plan(near, further, inner, temperature=None, rounds=2, draft_tokens=3):
    rule = Greedy() if temperature is None else Coupled()
    return VerticalCascade(hf(near, temperature), inner_drafters(further, temperature)[inner], rule, rounds, draft_tokens)


@BATCHES
@INNERS
def test_greedy_output_is_that_of_transformers(big, near, further, inner, inputs):
    out = run(big, plan(near, further, inner), inputs)
    assert out.sequences.tolist() == greedy(big, inputs)
    assert out.stats.accepted > 0


@BATCHES
@INNERS
def test_sampled_output_is_that_of_plain_sampling(big, near, further, inner, inputs):
    for rule in (Coupled(), Match()):
        out = run(big, plan(near, further, inner, 1.0), inputs, rule, seed=3, temperature=1.0)
        assert out.sequences.tolist() == plain(big, inputs, seed=3)


def test_coupled_all_the_way_is_the_middles_coupled_draw(big, near, small):
    """What is exported is what the middle alone would have drawn with the shared noise, whatever the inner drafter."""
    chains = []
    for drafter in (
        VerticalCascade(hf(near, 1.0), drafting(small, Chain(drawn), 1.0), Coupled(), 4, 2),
        drafting(near, Chain(drawn), 1.0),
    ):
        seen = []
        run(big, drafter, RAGGED, Coupled(), temperature=1.0, length=4, on_step=lambda step, seen=seen: seen.append(step.draft))
        chains.append(seen)
    assert len(chains[0]) == len(chains[1])
    for one, other in zip(*chains, strict=True):
        both = one.valid & other.valid
        assert torch.equal(one.nodes[both], other.nodes[both])
        assert torch.equal(one.valid, other.valid)


@INNERS
def test_draft_length_may_change_every_round(big, near, further, inner):
    assert run(big, plan(near, further, inner), RAGGED, control=Varied()).sequences.tolist() == greedy(big, RAGGED)


@pytest.mark.parametrize("inner", ["model", "ngram", "cascade"])
def test_no_residue_between_calls(big, near, further, inner):
    drafter, drafts = plan(near, further, inner), []
    for _ in range(2):
        seen = []
        run(big, drafter, RAGGED, on_step=lambda step, seen=seen: seen.append((step.draft.nodes.tolist(), step.draft.parents.tolist())))
        drafts.append(seen)
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("inner_rule", [Token(), Block()], ids=["token", "block"])
def test_a_row_gives_the_same_alone_and_in_a_batch(big, near, further, inner_rule):
    """Under distribution-exact rules too, where every draft shows in the output."""
    drafter = VerticalCascade(hf(near, 1.0), drafting(further, Chain(sampled), 1.0), inner_rule, 2, 2)
    batch = run(big, drafter, RAGGED, Token(), seed=4, temperature=1.0)
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in RAGGED.items()}
        out = run(big, drafter, alone, Token(), seed=4 + row, temperature=1.0)
        assert out.sequences[0].tolist() == batch.sequences[row].tolist()


def test_rows_that_end_early(big, near, further):
    ends = [greedy(big, RAGGED)[0][6]]
    expected = run(big, NoDraft(), RAGGED, ends=ends)
    found = run(big, plan(near, further, "model"), RAGGED, ends=ends)
    assert found.sequences.tolist() == expected.sequences.tolist()


def test_no_draft_tokens_when_none_are_asked_for(big, near, further):
    sizes = []
    run(big, plan(near, further, "model"), RAGGED, control=Fixed(0), on_step=lambda step: sizes.append(step.draft.size))
    assert sizes == [1] * NEW


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_inner_rounds_never_wait_for_the_device(big, near, further, temperature):
    """Neither does the first: prompts are read before."""
    watched = Watched(plan(near, further, "model", temperature))
    run(big, watched, RAGGED, Greedy() if temperature is None else Coupled(), temperature=temperature)
    assert set(watched.copies) == {0}


def test_the_middle_is_called_once_an_inner_round(big, near, further):
    """And scores every column once: what it has confirmed is not run again."""
    columns = []

    class Counting(type(hf(near))):
        def begin(self, prompt):
            session, pending = super().begin(prompt)
            score = session.score

            def counted(draft):
                columns.append(draft.size - session.scored)
                return score(draft)

            session.score = counted
            return session, pending

    middle = Counting(**{name: getattr(hf(near), name) for name in hf(near).__dataclass_fields__})
    calls = []
    run(big, VerticalCascade(middle, drafting(further, Chain(most_likely)), Greedy(), 3, 2), RAGGED, length=8, on_step=calls.append)
    assert len(columns) == 3 * len(calls)
    assert set(columns) == {1 + 1 + 2, 1 + 2}  # a waiting value, the pending token and two draft tokens; then a tip and two draft tokens


def test_the_numbers_of_inner_rounds_are_their_own():
    """No number of theirs is one of the outer round's, nor of another inner round's or role's."""
    outer = Noise.from_seed(5, 2)
    start, position = torch.tensor([3, 4]), torch.arange(3, 9).expand(2, -1)
    noise = InnerNoise(outer, start, False)
    words = [
        noise.value(position),
        *(kind(position, start + since) for kind in (noise.accept, noise.residual, noise.draft_token) for since in range(3)),
    ]
    words += [noise.draft_token(position, start, branch) for branch in (1, 2)]
    words += [outer.value(position), outer.accept(position, start), outer.residual(position, start), outer.draft_token(position, start)]
    every = torch.stack([keys.words for keys in words])
    assert len(every.unique()) == every.numel()
    shared = InnerNoise(outer, start, True)
    assert torch.equal(shared.draft_token(position, start + 1).words, shared.value(position).words)


def test_options_are_checked(big):
    with pytest.raises(ValueError, match="rounds and draft tokens are 0 and 4"):
        VerticalCascade(hf(big), NoDraft(), Greedy(), 0)
    target, middle, inner = three(2, 6, 1)
    with pytest.raises(ValueError, match="judges chains"):
        run_loop(
            target,
            VerticalCascade(middle, ModelDrafter(inner, StaticTree(Template.branching((2,)))), Token()),
            Token(),
            Noise.from_seed(0, 1),
            1,
            3,
            3,
        )


# --- the target itself in the middle (TriForce) -------------------------------------------------------------------------


SELVES = {"windowed": Windowed(2, 5), "skipping": SkipLayers(layers=(1,)), "exit": EarlyExit(2)}


@BATCHES
@pytest.mark.parametrize("middle", SELVES)
def test_the_target_run_short_may_stand_in_the_middle(big, small, middle, inputs):
    for inner in (ModelDrafter(hf(small), Chain(most_likely)), Lookup()):
        plan = VerticalCascade(SELVES[middle], inner, Greedy(), 2, 2)
        assert run(big, plan, inputs).sequences.tolist() == greedy(big, inputs)
        assert run(big, plan, inputs, control=Varied()).sequences.tolist() == greedy(big, inputs)
    coupled = VerticalCascade(SELVES[middle], ModelDrafter(hf(small, 1.0), Chain(drawn)), Coupled(), 2, 2)
    assert run(big, coupled, inputs, Coupled(), seed=3, temperature=1.0).sequences.tolist() == plain(big, inputs, seed=3)


def test_a_window_over_the_whole_text_is_the_target(big, small):
    """Nothing it exports is refused: its distribution is the target's."""
    plan = VerticalCascade(Windowed(4, 64), ModelDrafter(hf(small), Chain(most_likely)), Greedy(), 4, 3)
    stats = run(big, plan, RAGGED, length=4).stats
    assert stats.accepted == stats.drafted > 20
