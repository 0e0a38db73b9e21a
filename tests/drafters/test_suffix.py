import random
from collections import Counter

import pytest

from mmspec.core.rules.match import Match
from mmspec.drafters.retrieval.suffix import Automaton, Suffix, SuffixRow
from tests.drafters.runs import fives, greedy, markov, plain, prompt_of, random_prompt, run


def longest_repeat(text: list[int]) -> int:
    """Length of the longest suffix that also ends earlier."""
    for size in range(len(text) - 1, 0, -1):
        if any(text[end - size : end] == text[-size:] for end in range(size, len(text))):
            return size
    return 0


def followers(texts: list[list[int]], context: list[int]) -> Counter:
    size = len(context)
    return Counter(text[i + size] for text in texts for i in range(len(text) - size) if text[i : i + size] == context)


@pytest.mark.parametrize("values", [2, 3, 8])
def test_the_growing_automaton_matches_a_full_scan(values):
    rng = random.Random(values)
    text: list[int] = []
    row = SuffixRow(Suffix(factor=1), text)
    for _ in range(80):
        token = rng.randrange(values)
        text.append(token)
        row.extend([token])
        size = longest_repeat(text)
        draft_tokens = row.draft_token(1)[0]
        assert row.own.length[max(0, row.own.link[row.own.last])] == size
        if size:
            counts = followers([text], text[-size:])
            assert counts[draft_tokens[0]] == max(counts.values())


def test_a_corpus_of_many_texts_counts_like_a_full_scan():
    rng = random.Random(1)
    texts = [[rng.randrange(3) for _ in range(rng.randrange(1, 15))] for _ in range(12)]
    book = Suffix(texts).automaton
    for _ in range(200):
        query = [rng.randrange(3) for _ in range(6)]
        state = matched = 0
        for token in query:
            state, matched = book.step(state, matched, token)
        expected = max(size for size in range(7) if any(_occurs(text, query[6 - size :]) for text in texts))
        assert matched == expected
        assert {token: book.count[way] for token, way in book.next[state].items()} == followers(texts, query[6 - matched :])


def _occurs(text: list[int], part: list[int]) -> bool:
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_runs_of_one_token_cost_little():
    book = Automaton()
    for _ in range(20_000):
        book.append(7)
    assert len(book.next) == 20_001
    assert book.follow(book.link[book.last], 3, 1, 0.1) == [7, 7, 7]


def test_draft_tokens_grow_with_the_match_and_end_where_they_get_unlikely():
    row = SuffixRow(Suffix(factor=2), [1, 2, 3, 4, 5, 6, 7, 8, 2, 3])
    assert row.draft_token(9)[0] == [4, 5, 6, 7]  # two matched tokens, two draft tokens for each
    forks = [token for after in range(10, 20) for token in (1, 2, after)]
    assert SuffixRow(Suffix(factor=2, min_chance=0.11), [*forks, 1, 2]).draft_token(9)[0] == []
    assert SuffixRow(Suffix(factor=2, min_chance=0.09), [*forks, 1, 2]).draft_token(9)[0][:1] == [19]  # the latest of equals


def test_the_most_frequent_continuation_wins():
    assert SuffixRow(Suffix(), [1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 2]).draft_token(1)[0] == [5]


def test_a_repeating_prompt_is_continued_to_the_end():
    out = run(markov(fives), Suffix(), prompt_of([0, 1, 2, 3, 4] * 3), new=30, length=5)
    assert (out.stats.target_calls, out.stats.accepted) == (5, 25)


def test_a_corpus_that_holds_the_answer_is_accepted_nearly_whole(big):
    inputs = random_prompt(5, 9, 7, seed=1)
    out = run(big, Suffix(greedy(big, inputs, 50), factor=3), inputs, new=50, length=7)
    assert out.stats.target_calls <= 11
    assert run(big, Suffix(), inputs, new=50, length=7).stats.target_calls > 40

    out = run(big, Suffix(plain(big, inputs, new=50), factor=3), inputs, Match(), new=50, length=7, temperature=1.0)
    assert out.stats.target_calls <= 12


@pytest.mark.parametrize(
    ("options", "name"), [({"factor": 0}, "factor"), ({"min_match": 0}, "min_match"), ({"min_chance": 2}, "min_chance")]
)
def test_options_are_checked(options, name):
    with pytest.raises(ValueError, match=name):
        Suffix(**options)
