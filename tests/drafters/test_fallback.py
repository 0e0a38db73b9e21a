"""The adaptive fallback threshold of LLMCad: its rule, its effect on drafts, and the tokens, which stay those of plain decoding."""

from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.drafters.fallback import AdaptiveFallback
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain
from mmspec.run.shapes import stopping_below
from tests.drafters.runs import greedy, random_prompt

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
    stop.learn(drafted=torch.tensor([2, 1, 2]), accepted=torch.tensor([1, 1, 2]))
    assert stop.threshold.tolist() == pytest.approx([0.2 / 0.15**0.5, 0.1, 0.1])  # one of two refused; both others accepted whole
    stop.learn(drafted=torch.zeros(3).long(), accepted=torch.zeros(3).long())  # nothing was drafted: nothing is learnt
    assert stop.threshold.tolist() == pytest.approx([0.2 / 0.15**0.5, 0.1, 0.1])


def test_a_row_that_drafts_nothing_keeps_its_threshold_and_none_passes_one():
    stop = AdaptiveFallback().begin()
    stop.after(scored(1e-9, 0.5), torch.zeros(2, 1), torch.ones(2))
    stop.learn(drafted=torch.tensor([1, 0]), accepted=torch.tensor([0, 0]))
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
