"""The adaptive fallback threshold of LLMCad: its rule, its effect on drafts, and the tokens, which stay those of plain decoding."""

from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.core.noise import Noise
from mmspec.core.records import Budget
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.drafters.fallback import AdaptiveFallback
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, Comb
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.run.shapes import stopping_below
from tests.drafters.cascades import perturbed
from tests.drafters.runs import greedy, random_prompt
from tests.oracles.tables import Table, TableTarget, exact_error, pair

INPUTS = random_prompt(5, 9, 7, seed=1)


def scored(*probabilities):
    """Distributions whose drawn value has these probabilities, one a row."""
    found = torch.tensor(probabilities)[:, None]
    return SimpleNamespace(p=SimpleNamespace(last=lambda count: SimpleNamespace(prob=lambda value: found)))


def test_the_rule_of_the_paper():
    stop = AdaptiveFallback(start=0.2).begin()
    reach, value = torch.ones(3), torch.zeros(3, 1)
    ends, reach = stop.after(scored(0.5, 0.1, 0.9), value, reach)
    assert ends.tolist() == [False, True, False]
    ends, reach = stop.after(scored(0.3, 0.9, 0.9), value, reach)
    assert ends.tolist() == [True, True, False]
    stop.learn(drafted=torch.tensor([2, 1, 2]), accepted=torch.tensor([1, 1, 2]), last=torch.tensor([1, 0, 1]))
    assert stop.threshold.tolist() == pytest.approx([0.2 / 0.15**0.5, 0.1, 0.1])  # one of two refused; both others accepted whole
    stop.learn(
        drafted=torch.zeros(3).long(), accepted=torch.zeros(3).long(), last=torch.zeros(3).long() - 1
    )  # nothing was drafted: nothing is learnt
    assert stop.threshold.tolist() == pytest.approx([0.2 / 0.15**0.5, 0.1, 0.1])


def test_a_row_that_drafts_nothing_keeps_its_threshold_and_none_passes_one():
    stop = AdaptiveFallback().begin()
    stop.after(scored(1e-9, 0.5), torch.zeros(2, 1), torch.ones(2))
    stop.learn(drafted=torch.tensor([1, 0]), accepted=torch.tensor([0, 0]), last=torch.tensor([0, -1]))
    assert stop.threshold.tolist() == pytest.approx([1.0, 0.01])


def test_rows_leave_and_join():
    one, other = AdaptiveFallback().begin(), AdaptiveFallback().begin()
    one.threshold, other.threshold = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4])
    one.take_rows([2, 0])
    one.join_rows(other)
    assert one.threshold.tolist() == pytest.approx([0.3, 0.1, 0.4])


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"stops": [lambda row, values: len(values) >= 4 + row]}])
def test_tokens_are_plain(big, small, options):
    expected = mmspec.text.generate(big, INPUTS, max_new_tokens=16, **options)
    for drafter in (big, small):
        out = mmspec.text.generate(big, INPUTS, drafter, max_new_tokens=16, draft_length=6, stop_below="adaptive", **options)
        assert torch.equal(out.tokens, expected.tokens)
        for row in range(3):
            inputs = {name: part[row : row + 1] for name, part in INPUTS.items()}
            alone = mmspec.text.generate(
                big, inputs, drafter, max_new_tokens=16, draft_length=6, stop_below="adaptive",
                **options | ({"seed": 3 + row} if "seed" in options else {})
                | ({"stops": [lambda _, values, row=row: len(values) >= 4 + row]} if "stops" in options else {}),
            )  # fmt: skip
            assert alone.tokens[0, : alone.lengths[0]].tolist() == out.tokens[row, : out.lengths[row]].tolist()


def test_chains_grow_where_all_is_accepted_and_shrink_where_nothing_is(big, small):
    sizes = {}
    for name, drafter in (("right", big), ("wrong", small)):
        rounds = []
        mmspec.text.generate(
            big, INPUTS, drafter, max_new_tokens=30, draft_length=6, stop_below="adaptive",
            on_step=lambda step, rounds=rounds: rounds.append(step.committed.drafted),
        )  # fmt: skip
        sizes[name] = [max(each) for each in rounds]
    assert max(sizes["right"][1:3]) > sizes["right"][0] or sizes["right"][0] == 6
    assert sizes["wrong"][3:10] == [1] * 7


def test_rows_of_an_engine_keep_their_thresholds(big, small):
    with mmspec.Engine(big, small, draft_length=4, stop_below="adaptive", max_rows=2) as engine:
        rows = [{name: part[row : row + 1] for name, part in INPUTS.items()} for row in (0, 1, 2, 0)]
        handles = [engine.submit(inputs, max_new_tokens=3 + 5 * number) for number, inputs in enumerate(rows)]
        for number, (inputs, handle) in enumerate(zip(rows, handles, strict=True)):
            assert handle.result(60).tokens.tolist() == [greedy(big, inputs, 3 + 5 * number)[0][-(3 + 5 * number) :]]


def test_other_drafters_refuse_it(big, small):
    with pytest.raises(ValueError, match="stop_below is 'adaptive', which needs a drafter that is a model of its own"):
        stopping_below(GuidedDrafter(None, shape=Chain()), "adaptive")
    with pytest.raises(ValueError, match="AdaptiveFallback follows the verdicts on a model's drafts"):
        Chain(stop=AdaptiveFallback()).grow(None, *[SimpleNamespace(draft_tokens=None)] * 3)
    with pytest.raises(ValueError, match="start is 0: a threshold is a probability above 0"):
        AdaptiveFallback(0)
    with pytest.raises(ValueError, match="stop_below is 'often': give a probability, 0 to 1, or 'adaptive'"):
        mmspec.text.generate(big, INPUTS, small, stop_below="often")
    assert stopping_below(ModelDrafter(None), "adaptive").shape == Chain(stop=AdaptiveFallback())
    for shape, stop in ((Comb(), "adaptive"), (BestFirst(), 0.5)):
        with pytest.raises(ValueError, match="stop_below ends a model's chains of draft tokens, and 'adaptive' also its best-first trees"):
            stopping_below(ModelDrafter(None, shape), stop)


# --- best-first trees -------------------------------------------------------------------------------------------------

TREE = {"tree": "best-first", "stop_below": "adaptive", "draft_length": 12}


def test_a_tree_learns_from_the_path_that_was_drafted():
    """Row 0 accepts 0 0 of the likeliest path 0 0 0, of probability 0.6 ** 3; row 1 accepts all of it."""
    q = Table(torch.tensor([[0.6, 0.4]], dtype=torch.float64).expand(64, -1))
    shape = BestFirst(64, width=None, depth=3, stop=AdaptiveFallback(0.15)).begun()
    session, pending = TableTarget(q).begin(2)
    draft, _ = shape.grow(session.score, pending, Budget(torch.full((2,), 9), 64), Noise.from_seed(0, 2))
    paths = {path: 0.6 ** path.count(0) * 0.4 ** path.count(1) for path in [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)]}
    assert draft.size - 1 == sum(chance >= 0.15 for chance in paths.values())
    assert draft.parents[0, [1, 3, 6]].tolist() == [0, 1, 3]  # the path 0 0 0
    assert draft.nodes[0, [1, 3, 6]].tolist() == [0, 0, 0]
    keep = torch.tensor([[0, 1, 3, -1], [0, 1, 3, 6]])
    shape.learn(draft, SimpleNamespace(keep=keep, accepted=torch.tensor([2, 3])))
    assert shape.stop.threshold.tolist() == pytest.approx([0.15 / (0.6**3) ** (1 / 3), 0.075])


@pytest.mark.parametrize("drawn", [False, True], ids=["likeliest", "drawn"])
def test_a_tree_keeps_the_distribution(drawn):
    """Over whole generations: a threshold depends on earlier rounds alone."""
    target, drafter = pair(2, 4, 1)
    rule = without_replacement_rule() if drawn else Greedy()
    target = target if drawn else TableTarget(target.table.greedy())
    shape = BestFirst(4, width=2, children=2, drawn=drawn, stop=AdaptiveFallback(0.3))
    assert exact_error(target, ModelDrafter(drafter, shape), rule, most=3, length=6, together=1) < 1e-9


def test_trees_give_the_tokens_of_plain_decoding_and_follow_the_verdicts(big, small):
    """Rows of three lengths that stop at different places; and each alone drafts what it drafts in the batch."""
    options = {"max_new_tokens": 12, "temperature": 1.0, "stops": [lambda row, values: len(values) >= 12 - 3 * row]}
    plain = mmspec.text.generate(big, INPUTS, seed=3, **options)
    for drafter in (perturbed(big, 0.02), small):
        rounds, alone = [], []
        out = mmspec.text.generate(
            big, INPUTS, drafter, seed=3, on_step=lambda step, rounds=rounds: rounds.append(step.committed.drafted), **options, **TREE
        )
        assert torch.equal(out.tokens, plain.tokens)
        inputs = {name: part[:1] for name, part in INPUTS.items()}
        mmspec.text.generate(
            big, inputs, drafter, seed=3, on_step=lambda step, alone=alone: alone.append(step.committed.drafted[0]), **options, **TREE
        )
        assert alone == [drafted[0] for drafted in rounds][: len(alone)]
        if drafter is small:
            assert min(alone[:-2]) < max(alone)  # thresholds rise after refusals


def test_drafters_that_are_no_models_refuse_a_tree_that_follows_the_verdicts():
    with pytest.raises(ValueError, match="AdaptiveFallback follows the verdicts on a model's drafts"):
        BestFirst(stop=AdaptiveFallback()).grow(None, *[None] * 3)
