import random

import pytest

from mmspec.core.rules.match import Match
from mmspec.drafters.retrieval.lookup import Lookup, LookupRow
from tests.drafters.runs import fives, greedy, markov, plain, prompt_of, random_prompt, run


def search(text: list[int], longest: int, shortest: int, limit: int) -> list[int]:
    """Prompt lookup by scanning everything: the latest match of the longest n-gram, copied on past the text's end."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                whole = list(text)
                for i in range(limit):
                    whole.append(whole[start + size + i])
                return whole[len(text) :]
    return []


def test_the_growing_index_finds_what_a_full_scan_finds():
    rng = random.Random(0)
    for values in (2, 3, 6):
        text = [rng.randrange(values) for _ in range(12)]
        row = LookupRow(Lookup(max_ngram=4, min_ngram=2), text)
        for _ in range(60):
            assert row.draft_token(5)[0] == search(text, 4, 2, 5)
            new = [rng.randrange(values) for _ in range(rng.randrange(1, 4))]
            text = text + new
            row.extend(new)


def test_the_longest_ngram_wins_and_then_the_latest_match():
    row = LookupRow(Lookup(max_ngram=3), [1, 2, 3, 7, 9, 2, 3, 8, 9, 2, 3, 6, 1, 2, 3])
    assert row.draft_token(2) == ([7, 9], [-1, 0])
    row = LookupRow(Lookup(max_ngram=2), [1, 2, 3, 7, 9, 2, 3, 8, 9, 2, 3, 6, 1, 2, 3])
    assert row.draft_token(2)[0] == [6, 1]


def test_a_repeating_prompt_is_copied_to_the_end():
    out = run(markov(fives), Lookup(), prompt_of([0, 1, 2, 3, 4, 0, 1]), new=30, length=5)
    assert (out.stats.target_calls, out.stats.accepted) == (5, 25)


def test_references_that_hold_the_answer_are_accepted_nearly_whole(big):
    inputs = random_prompt(5, 9, 7, seed=1)
    out = run(big, Lookup(max_ngram=6, references=greedy(big, inputs, 50)), inputs, new=50, length=7)
    assert out.stats.target_calls <= 11  # 50 / 8, and a few for what the first tokens do not tell apart
    assert run(big, Lookup(max_ngram=6), inputs, new=50, length=7).stats.target_calls > 40

    sampled = plain(big, inputs, new=50)
    out = run(big, Lookup(max_ngram=6, references=sampled), inputs, Match(), new=50, length=7, temperature=1.0)
    assert out.stats.target_calls <= 11


def test_references_are_not_read_across_their_ends():
    row = LookupRow(Lookup(references=([1, 2, 3], [4, 5, 6])), [9, 2, 3])
    assert row.draft_token(4) == ([], [])
    row.extend([4, 5])
    assert row.draft_token(4)[0] == [6]


@pytest.mark.parametrize("sizes", [(3, 4), (3, 0)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="min_ngram"):
        Lookup(*sizes)
