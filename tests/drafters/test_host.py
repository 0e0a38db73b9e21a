import pytest
import torch
from transformers import BatchEncoding

from mmspec.core.noise import Noise
from mmspec.core.records import CONTEXT, PAD, Budget, Committed, Draft
from mmspec.drafters.retrieval.copy import Copy
from mmspec.drafters.retrieval.datastore import Datastore, Retrieval
from mmspec.drafters.retrieval.host import HostSession, prompt_ids, token_chain
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram
from mmspec.drafters.retrieval.suffix import Suffix
from tests.drafters.runs import prompt_of

NOISE = Noise.from_seed(0, 3)


class Listener:
    """Draft tokens its row's number over and over, `count` times, and remembers what it was told."""

    def __init__(self, row, text, count=9):
        self.row, self.heard, self.count = row, list(text), count

    def extend(self, tokens):
        self.heard += tokens

    def draft_token(self, limit, behind=()):
        return token_chain([self.row, *behind][-1:] * min(limit, self.count))


def committed(*values: list[int], ended: tuple[bool, ...]) -> Committed:
    n = [0] * len(values)
    return Committed(list(values), n, n, n, list(ended), [True] * len(values), [0.0] * len(values), [0.0] * len(values))


def pending(alive: list[bool]) -> Draft:
    start = torch.zeros(len(alive), dtype=torch.long)
    return Draft.root(start + 40, start, torch.tensor(alive))


def test_prompts_are_read_without_their_padding():
    assert prompt_ids(prompt_of([1], [2, 3, 4])) == [[1], [2, 3, 4]]
    ids = torch.tensor([[0, 5], [6, 7]])
    assert prompt_ids({"input_ids": ids}) == [[0, 5], [6, 7]]
    assert prompt_ids(BatchEncoding({"input_ids": ids, "attention_mask": torch.tensor([[0, 1], [1, 1]])})) == [[5], [6, 7]]


def test_an_encoder_decoder_prompt_is_its_source_and_what_was_begun():
    features = {"input_features": torch.zeros(2, 4, 4), "attention_mask": torch.ones(2, 4)}
    assert prompt_ids(features) is None
    begun = {"decoder_input_ids": torch.tensor([[3, 8], [3, 9]])}
    assert prompt_ids(features | begun) == [[3, 8], [3, 9]]
    assert prompt_ids(prompt_of([1], [2, 4]) | begun) == [[1, 3, 8], [2, 4, 3, 9]]
    assert prompt_ids(17) is None


def test_rows_without_a_prompt_hear_what_is_committed():
    session = HostSession(17, Listener)
    session.propose(pending([True, True]), Budget(torch.tensor([9, 9]), 2), NOISE)
    session.observe(None, None, None, committed([5, 6], [], ended=(False, True)))
    assert [row.heard for row in session.rows] == [[5, 6], []]


def test_a_row_gets_what_fits_and_pad_elsewhere():
    session = HostSession(prompt_of([1], [2], [3]), lambda row, text: Listener(row, text, count=(9, 2, 9)[row]))
    draft = session.propose(pending([True, True, False]), Budget(torch.tensor([3, 9, 0]), 4), NOISE)
    assert draft.nodes.tolist() == [[40, 0, 0, 0, 0], [40, 1, 1, 0, 0], [40, 2, 2, 2, 2]]
    assert draft.parents.tolist() == [[CONTEXT, 0, 1, PAD, PAD], [CONTEXT, 0, 1, PAD, PAD], [PAD] * 5]
    assert (draft.linear, draft.width, draft.q) == (True, 1, None)


def test_ended_rows_are_not_asked():
    session = HostSession(prompt_of([1], [2]), Listener)
    root = pending([True, True])
    session.propose(root, Budget(torch.tensor([9, 9]), 2), NOISE)
    session.observe(None, None, None, committed([5], [6], ended=(True, False)))
    session.rows[0].draft_token = None  # calling it would fail
    draft = session.propose(pending([False, True]), Budget(torch.tensor([0, 8]), 2), NOISE)
    assert draft.valid.tolist() == [[False, False, False], [True, True, True]]


def test_a_tree_is_cut_by_depth_not_by_count():
    class Tree(Listener):
        def draft_token(self, limit, behind=()):
            return [1, 2, 3, 4], [-1, -1, 0, 2]

    session = HostSession(prompt_of([1], [2]), Tree, lambda length: 6, 2)
    draft = session.propose(pending([True, True]), Budget(torch.tensor([3, 9]), 3), NOISE)
    assert draft.parents.tolist() == [[CONTEXT, 0, 0, 1, PAD, PAD, PAD], [CONTEXT, 0, 0, 1, 3, PAD, PAD]]
    assert (draft.linear, draft.width, draft.levels) == (False, 2, 3)


def test_draft_tokens_hang_on_the_last_of_several_roots():
    parents = torch.tensor([[CONTEXT, 0]])
    root = Draft(torch.tensor([[8, 9]]), parents, torch.zeros(1, dtype=torch.long), roots=2)
    draft = HostSession(prompt_of([1]), Listener).propose(root, Budget(torch.tensor([9]), 2), NOISE)
    assert draft.parents.tolist() == [[CONTEXT, 0, 1, 2]]


def test_values_committed_for_now_are_looked_at_and_forgotten():
    """Roots after the first are not of the text yet; rows that have fewer hold PAD among them."""
    parents = torch.tensor([[CONTEXT, 0, 1, 2], [CONTEXT, 0, PAD, 1], [CONTEXT, 0, 1, PAD]])
    root = Draft(torch.tensor([[8, 5, 6, 7]] * 3), parents, torch.zeros(3, dtype=torch.long), roots=4)
    heard = []

    class Telling(Listener):
        def draft_token(self, limit, behind=()):
            heard.append(list(behind))
            return super().draft_token(limit, behind)

    session = HostSession(prompt_of([1], [2], [3]), Telling)
    draft = session.propose(root, Budget(torch.tensor([9, 9, 9]), 2), NOISE)
    assert heard == [[5, 6, 7], [5, 7], [5, 6]]
    assert draft.nodes[:2, 4:].tolist() == [[7, 7], [7, 7]]
    assert not draft.valid[2, 4:].any()  # a row whose last root is PAD has no room left for now
    assert [row.heard for row in session.rows] == [[1], [2], [3]]


@pytest.mark.parametrize("name", ["lookup", "suffix", "corpus", "ngram", "tree", "copy", "store"])
def test_rows_draft_token_behind_values_as_if_they_had_been_read(name, tmp_path):
    """What they draft token may differ from a row that has read the values only where those have taught it something: here nothing."""
    corpus = [[3, 4, 5, 6, 7, 8], [4, 4, 6, 9]]
    store = Datastore.build(corpus, tmp_path / "store.npy")
    plans = {"lookup": Lookup(references=corpus), "suffix": Suffix(), "corpus": Suffix(corpus), "ngram": NGram(), "tree": NGram(drafts=2)}
    plan = (plans | {"copy": Copy([3, 4, 5, 4, 6, 8]), "store": Retrieval(store)})[name]
    text, behind = [1, 2, 3, 4, 5, 6, 1, 2], [3, 4]
    rows = [plan.begin(prompt_of(text), None).open_row(0, list(text)) for _ in range(2)]
    before = rows[0].draft_token(4)
    drafted = rows[0].draft_token(4, behind)
    assert rows[0].draft_token(4) == before
    rows[1].extend(behind)
    assert drafted == rows[1].draft_token(4)
    assert drafted[0][:2] == [5, 6] if name != "copy" else drafted[0] == [5, 4, 6, 8]


def test_no_draft_tokens_when_none_are_asked_for():
    root = pending([True])
    assert HostSession(prompt_of([1]), Listener).propose(root, Budget(torch.tensor([9]), 0), NOISE) is root


def test_a_prompt_for_other_rows_is_refused():
    with pytest.raises(ValueError, match="holds 2 texts, but the target opened 1"):
        HostSession(prompt_of([1], [2]), Listener).propose(pending([True]), Budget(torch.tensor([9]), 1), NOISE)
