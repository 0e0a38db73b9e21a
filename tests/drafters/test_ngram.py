import random
from collections import Counter

import pytest
import torch

from mmspec.drafters.retrieval.ngram import NGram, NGramRow, bigram_table
from tests.drafters.runs import fives, markov, prompt_of, random_prompt, run


def test_draft_tokens_back_off_like_a_full_count():
    rng = random.Random(0)
    text = [rng.randrange(4) for _ in range(10)]
    row = NGramRow(NGram(order=3), text)
    for _ in range(100):
        for size in (2, 1):
            counts = Counter(text[i + size] for i in range(len(text) - size) if text[i : i + size] == text[-size:])
            if counts:
                best = {token for token, count in counts.items() if count == max(counts.values())}
                seen = [text[i] for i in range(size, len(text)) if text[i - size : i] == text[-size:]]
                assert row.draft_token(3)[0][0] == [token for token in seen if token in best][-1]
                break
        new = [rng.randrange(4) for _ in range(rng.randrange(1, 3))]
        text = text + new
        row.extend(new)


def test_chains_start_with_different_tokens_most_trusted_first():
    text = [1, 2, 3, 9, 2, 4, 9, 2, 4, 1, 2]
    table = torch.tensor([[0, 1]] * 2 + [[7, 4]] + [[0, 1]] * 7)
    tokens, parents = NGramRow(NGram(order=3, table=table, drafts=3), text).draft_token(2)
    assert [token for token, parent in zip(tokens, parents, strict=True) if parent == -1] == [3, 4, 7]
    assert tokens == [3, 9, 4, 1, 7, 0]  # 7 was never seen: the table says what follows
    assert parents == [-1, 0, -1, 2, -1, 4]


def test_nothing_known_nothing_drafted():
    assert NGramRow(NGram(), []).draft_token(3) == ([], [])
    assert NGramRow(NGram(table=torch.zeros(2, 1, dtype=torch.long)), [5]).draft_token(3) == ([], [])  # a token the table does not have


def test_a_repeating_prompt_is_continued_to_the_end():
    out = run(markov(fives), NGram(), prompt_of([0, 1, 2, 3, 4, 0]), new=30, length=5)
    assert (out.stats.target_calls, out.stats.accepted) == (5, 25)


def test_the_table_knows_a_model_without_layers_by_heart():
    model = markov(fives)
    table = bigram_table(model, 2, chunk=7)
    assert table[:, 0].tolist() == [fives(token) for token in range(50)]
    out = run(model, NGram(table=table), prompt_of([10], [23]), new=30, length=5)
    assert (out.stats.target_calls, out.stats.accepted) == (5, 50)  # from the first round on, with nothing in the prompt


def test_the_table_does_not_depend_on_chunks(big):
    assert torch.equal(bigram_table(big, 4, chunk=1), bigram_table(big, 4, chunk=1000))
    whole = big.get_input_embeddings().weight @ big.get_output_embeddings().weight.T
    assert torch.equal(bigram_table(big, 4), whole.topk(4).indices)


def test_more_chains_never_accept_less(big):
    inputs = random_prompt(30, 30, seed=4)
    calls = [run(big, NGram(table=bigram_table(big, 8), drafts=drafts), inputs, new=40).stats.target_calls for drafts in (1, 8)]
    assert calls[1] < calls[0]


def test_options_are_checked(big):
    with pytest.raises(ValueError, match="order"):
        NGram(order=1)
    with pytest.raises(ValueError, match="drafts"):
        NGram(drafts=0)
    with pytest.raises(ValueError, match="table"):
        NGram(table=torch.zeros(3))
    with pytest.raises(ValueError, match="k is 51"):
        bigram_table(big, 51)
    with pytest.raises(ValueError, match="no token embedding or no head"):
        bigram_table(big.model, 2)
