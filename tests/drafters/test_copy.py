import pytest
import torch

from mmspec.core.rules.match import Match
from mmspec.drafters.retrieval.copy import Copy, CopyRow
from tests.drafters.runs import greedy, plain, prompt_of, random_prompt, run


def test_copying_goes_on_after_every_kind_of_edit():
    source = list(range(10, 30))
    row = CopyRow(source)
    assert row.draft_token(3) == ([10, 11, 12], [-1, 0, 1])
    row.extend([10, 11])
    assert row.draft_token(2)[0] == [12, 13]
    row.extend([99])  # replaced a token: go on behind it
    assert row.draft_token(2)[0] == [13, 14]
    row.extend([13, 17])  # left three out
    assert row.draft_token(2)[0] == [18, 19]
    row.extend([98, 97, 18])  # put two in
    assert row.draft_token(2)[0] == [19, 20]
    row.extend(list(range(19, 30)))
    assert row.draft_token(2) == ([], [])


def test_the_longest_agreement_wins_and_then_the_nearest_place():
    row = CopyRow([1, 2, 3, 0, 4, 5, 2, 4, 6])
    row.extend([2, 4])  # the 4 close by has no 2 before it
    assert row.draft_token(1)[0] == [6]
    row = CopyRow([1, 2, 3, 4, 5, 6, 2, 4, 7, 8, 3, 9])
    row.extend([2, 3])
    assert row.draft_token(1)[0] == [4]
    row = CopyRow([3, 1, 0, 0, 0, 0, 5, 3, 2])
    row.extend([5, 0, 3])  # both agree in one token: the nearer one
    assert row.draft_token(1)[0] == [2]


def test_a_source_close_to_the_output_is_accepted_but_for_its_edits(big):
    inputs = random_prompt(9, 5, seed=1)
    answers = greedy(big, inputs, 50)
    whole = run(big, Copy(answers), inputs, new=50, length=9)
    assert (whole.stats.target_calls, whole.stats.accepted) == (5, 90)
    edited = [[*answer[:10], 49, *answer[11:20], *answer[23:35], 0, 0, *answer[35:]] for answer in answers]
    out = run(big, Copy(edited), inputs, new=50, length=9)
    assert out.sequences.tolist() == answers
    assert out.stats.target_calls <= 5 + 3 * 3  # three edits, each at most: a miss, a token to find the place again, a short round

    sampled = plain(big, inputs, new=50)
    assert run(big, Copy(sampled), inputs, Match(), new=50, length=9, temperature=1.0).stats.target_calls == 5


def test_the_prompt_is_the_source_by_default(big):
    inputs = random_prompt(9, seed=1)
    answer = greedy(big, inputs, 20)[0]
    drafts = []
    run(big, Copy(), inputs, new=1, length=4, on_step=lambda step: drafts.append(step.draft))
    assert len(drafts) == 1
    row = CopyRow(inputs["input_ids"][0].tolist())
    assert row.draft_token(4)[0] == inputs["input_ids"][0, :4].tolist()
    assert run(big, Copy(answer), inputs, new=20, length=9).stats.target_calls == 2


def test_sources_may_be_lists_or_tensors():
    texts = [[1, 2], [3, 4]]
    for source in (texts, torch.tensor(texts), [torch.tensor(text) for text in texts]):
        assert Copy(source)._source(1, [9]) == [3, 4]
    assert Copy(torch.tensor([5, 6]))._source(1, [9]) == [5, 6]
    assert Copy([])._source(0, [9]) == []


def test_a_source_for_too_few_rows_is_refused(big):
    with pytest.raises(ValueError, match="source has 1 texts"):
        run(big, Copy([[1, 2]]), prompt_of([3], [4]))
