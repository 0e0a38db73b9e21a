"""Replays of recorded texts count what decoding with the drafter would do."""

import pytest

from mmspec.bench.replay import replay
from mmspec.core.control import Fixed
from mmspec.core.draft_length.by_match import ByMatch
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.text import generate
from tests.drafters.runs import greedy, random_prompt


def test_a_copy_is_accepted_whole():
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    found = replay(prompt, [3, 4, 5, 6, 7, 8, 9, 0], Lookup(), Fixed(4), lambda columns: 10 + columns)
    assert found.columns == (5, 5)
    assert (found.tokens, found.seconds, found.tokens_per_call) == (8, 30, 4.0)


def test_plain_decoding_scores_one_column_a_token():
    assert replay([1, 2], [3, 4, 5], NoDraft(), Fixed(0), lambda columns: 1.0).columns == (1, 1, 1)


@pytest.mark.parametrize("control", [Fixed(5), Fixed(2)])
@pytest.mark.parametrize("drafter", [Lookup(), Lookup(2), Suffix()])
def test_it_counts_the_calls_of_a_generation(big, drafter, control):
    inputs = random_prompt(7, seed=3)
    inputs["input_ids"][0, 4:] = inputs["input_ids"][0, :3]
    output = greedy(big, inputs, 40)[0]
    found = replay(inputs["input_ids"][0].tolist(), output, drafter, control, float)
    out = generate(big, inputs, drafter, max_new_tokens=40, draft_length=control)
    assert len(found.columns) == out.stats.target_calls


def test_lookup_by_match_needs_fewer_columns_for_as_many_tokens(big):
    inputs = random_prompt(7, seed=3)
    prompt, output = inputs["input_ids"][0].tolist() * 3, list(range(20, 40)) + [1, 2, 3] * 20
    fixed, ours = (replay(prompt, output, Lookup(), control, lambda columns: 1 + 0.1 * columns) for control in (Fixed(10), ByMatch()))
    assert ours.seconds < fixed.seconds
    assert sum(ours.columns) < sum(fixed.columns)
