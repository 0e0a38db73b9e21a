"""The machinery of beams: what every column sees, what the cache keeps, how often the target is called, and that nothing is left over."""

from contextlib import contextmanager

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from mmspec.core.beams.search import TopKBeams, best_indices
from mmspec.core.records import CONTEXT, Draft, validate
from mmspec.drafters.model.beams import Anchored
from mmspec.models.beam_target import BeamSession
from mmspec.models.compat.cache_name import cache_keyword
from tests.beam_world import (
    LEVELS,
    Found,
    alone,
    branches,
    drafter_of,
    make,
    paths_of,
    perturbed,
    search,
    shop,
    tall_shop,
    target_of,
    tokens_to,
    users,
)

SHOP = shop()
HISTORIES = users(SHOP, 5, seed=2)
INPUTS = SHOP.inputs(HISTORIES)
LITTLE = SHOP.trie.only(torch.arange(SHOP.trie.size) % 17 == torch.arange(5)[:, None])  # another few paths for every row


@pytest.fixture(scope="module")
def model():
    return make()


def searched(model, k=4, width=8, near=0.15, trie=SHOP.trie, length=LEVELS - 1, inputs=INPUTS) -> Found:
    """A search with a drafter that is right now and then; with `near` 0, the model itself; None: nobody drafts."""
    drafter = None if near is None else drafter_of(perturbed(model, near) if near else model, trie, k, width)
    return search(target_of(model, trie), inputs, k, drafter, length)


def same(one: Found, other: Found) -> bool:
    return torch.equal(one.state, other.state) and torch.allclose(one.score, other.score, atol=1e-4)


# --- what columns see -------------------------------------------------------------------------------------------------


@contextmanager
def scores_watched(monkeypatch):
    """Everything that sessions of beams score inside, of target and drafter: (session, draft, first column, distributions)."""
    seen, score = [], BeamSession.score

    def watching(self, draft):
        first, scored = self.scored, score(self, draft)
        seen.append((self, draft, first, scored))
        return scored

    with monkeypatch.context() as patch:
        patch.setattr(BeamSession, "score", watching)
        yield seen


@torch.no_grad()
def mask_error(seen, inputs=INPUTS) -> float:
    """The largest difference between any node's logits and those of an independent forward of its path."""
    worst = 0.0
    for session, draft, first, scored in seen:
        for row in range(len(draft.start)):
            columns = [column for column in range(first, draft.size) if draft.valid[row, column]]
            if columns:
                lone = alone(session.target.model, inputs, row, [tokens_to(draft, row, column) for column in columns])
                found = scored.p.scores[row, [column - first for column in columns]]
                worst = max(worst, (lone - found).abs().max().item())
    return worst


@pytest.mark.parametrize("family", ["llama", "qwen3", "t5"])
@pytest.mark.parametrize("trie", [SHOP.trie, LITTLE], ids=["all", "few"])
def test_every_node_sees_its_own_path(family, trie, monkeypatch):
    with scores_watched(monkeypatch) as seen:
        found = searched(make(family).double(), trie=trie, length=2)  # a wrong mask shows in any precision, rounding does not
    assert len(seen) > found.calls  # the drafter's forwards are among them
    assert mask_error(seen) < 1e-4


# --- what the cache keeps ---------------------------------------------------------------------------------------------


@torch.no_grad()
def stores(model, inputs, row, tokens):
    """Keys and values [layers, 2, heads, width] at the last place of a row's prompt and `tokens`, from a forward of its own."""
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        ids = torch.tensor([[model.config.decoder_start_token_id, *tokens]])
        mine = {name: value[row : row + 1] for name, value in inputs.items()}
        model(**mine, decoder_input_ids=ids, **cache_keyword(model, cache), use_cache=True)
        cache = cache.self_attention_cache
    else:
        cache = DynamicCache()
        prompt = inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist()
        model(input_ids=torch.tensor([prompt + tokens]), **cache_keyword(model, cache), use_cache=True)
    return torch.stack([torch.stack([layer.keys[0, :, -1], layer.values[0, :, -1]]) for layer in cache.layers])


def cache_error(model, found, sessions, inputs=INPUTS) -> float:
    """The largest difference of anything kept after a commit from what a forward of its own path leaves."""
    worst = 0.0
    for step, (slots, scored, layers) in zip(found.steps, sessions, strict=True):
        kept = step.verdict.pending
        for row in range(len(kept.start)):
            for column in range(scored):
                if kept.valid[row, column]:
                    expected = stores(model, inputs, row, tokens_to(kept, row, column))
                    own = torch.stack([torch.stack([store[row, :, slots[row, column]] for store in layer]) for layer in layers])
                    worst = max(worst, (expected - own).abs().max().item())
    return worst


@contextmanager
def commits_watched(monkeypatch, model):
    """What sessions on `model` hold after every commit: the slots of the columns run so far, how many, and all keys and values."""
    seen, commit = [], BeamSession.commit

    def watching(self, keep, most):
        commit(self, keep, most)
        if self.target.model is model:
            self.settle()
            layers = [(layer.keys.clone(), layer.values.clone()) for layer in self.cache.slot_layers]
            seen.append((self.slots.clone(), self.scored, layers))

    with monkeypatch.context() as patch:
        patch.setattr(BeamSession, "commit", watching)
        yield seen


@pytest.mark.parametrize(("family", "length"), [("llama", 3), ("llama", 1), ("t5", 2)])
@pytest.mark.parametrize("trie", [SHOP.trie, LITTLE], ids=["all", "few"])
def test_commits_keep_exactly_the_tree(family, length, trie, monkeypatch):
    """Ragged rows, rows that ended while others went on, rounds whose draft tokens were refused."""
    model = make(family)
    with commits_watched(monkeypatch, model) as seen:
        found = searched(model, trie=trie, length=length)
    assert found.calls > 1
    assert cache_error(model, found, seen) < 1e-5


def test_rows_end_on_their_own(model):
    found = searched(model)
    assert len(set(found.row_calls)) > 1, "the tests here mean to cover rows that end before others"
    counts = [[len(values) for values in step.committed.values] for step in found.steps]
    assert [sum(column) for column in zip(*counts, strict=True)] == [LEVELS] * len(HISTORIES)


def test_the_prompt_is_run_once_and_never_copied(model, monkeypatch):
    """Rows stay rows: K beams are columns of one row, behind one prompt."""
    shapes = []
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True)
    try:
        k = 7
        with commits_watched(monkeypatch, model) as seen:
            searched(model, k=k, near=None)
    finally:
        hook.remove()
    prompt = int(INPUTS["attention_mask"].sum(1).max())
    assert shapes == [(len(HISTORIES), prompt), *[(len(HISTORIES), k)] * (LEVELS - 1)]
    for slots, _, layers in seen:
        assert all(len(store) == len(HISTORIES) for layer in layers for store in layer)
        assert (slots < prompt + k * (LEVELS - 1) + 1).logical_or(slots == slots.max()).all()


# --- how often the target is called -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("trie", [SHOP.trie, LITTLE], ids=["all", "few"])
def test_a_target_that_drafts_for_itself_is_always_right(model, length, times, trie):
    """Exactly ceil(L / (g + 1)) calls for every user, 1 at full depth."""
    k = 6
    found = searched(model, k=k, width=times * k, near=0.0, length=length, trie=trie)
    calls = -(-LEVELS // (length + 1))
    assert found.row_calls == [calls] * len(HISTORIES)
    assert same(found, searched(model, k=k, near=None, trie=trie))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_it_is_right_on_tall_tries_too(model, length):
    """Rounds that go on from draft tokens the drafter has run itself: its cache must hold the survivors where it believes them to be."""
    tall, k = tall_shop(), 4
    inputs = tall.inputs(users(tall, 4, most=3))
    found = search(target_of(model, tall.trie), inputs, k, drafter_of(model, tall.trie, k, 2 * k), length)
    assert found.row_calls == [-(-tall.levels // (length + 1))] * 4
    assert same(found, search(target_of(model, tall.trie), inputs, k))


class Adrift(Anchored):
    """The best of all, whosever children: not anchored."""

    def __call__(self, score, state, core, draft, depth, noise):
        return best_indices(score, self.width)


def test_without_anchors_even_the_target_misses(model):
    """Children of beams that the target does not keep crowd out children of those it does, and more than one call is needed."""
    k, histories = 5, users(SHOP, 40, seed=8)
    inputs = SHOP.inputs(histories)
    wide = [
        search(target_of(model, SHOP.trie), inputs, k, drafter_of(model, SHOP.trie, k, 2 * k, spread(k, 2 * k)))
        for spread in (Anchored, Adrift)
    ]
    means = [sum(found.row_calls) / len(histories) for found in wide]
    assert means[0] == 1.0
    assert means[1] > 1.0
    assert same(*wide)  # slower, and right all the same


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stranger_costs_no_more_calls_than_levels(model, length):
    plain, stranger = searched(model, near=None), make(hidden=16, layers=1, seed=9)
    found = search(target_of(model, SHOP.trie), INPUTS, 4, drafter_of(stranger, SHOP.trie, 4, 4), length)
    assert plain.calls == LEVELS
    assert found.calls <= LEVELS
    assert same(found, plain)


# --- nothing is left over ---------------------------------------------------------------------------------------------


def test_sessions_leave_no_residue(model):
    """The same target and drafter, one search after another, on other prompts in between."""
    target, drafter = target_of(model, SHOP.trie), drafter_of(perturbed(model, 0.1), SHOP.trie, 6, 12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = search(target, INPUTS, 6, drafter)
    search(target, SHOP.inputs(users(SHOP, 3, seed=7)), 4, drafter_of(model, SHOP.trie, 4, 4))
    again = search(target, INPUTS, 6, drafter)
    assert torch.equal(first.state, again.state)
    assert torch.equal(first.score, again.score)
    assert first.row_calls == again.row_calls
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_row_is_the_same_alone_and_in_a_batch(model):
    whole = searched(model)
    for row in range(len(HISTORIES)):
        alone_in_it = searched(model, inputs=SHOP.inputs([HISTORIES[row]]))
        assert torch.equal(alone_in_it.state[0], whole.state[row])
        assert torch.allclose(alone_in_it.score[0], whole.score[row], atol=1e-4)
        assert alone_in_it.row_calls == [whole.row_calls[row]]


def test_the_cache_grows_when_draft_tokens_are_refused(model):
    """Many refused levels leave columns behind; the search goes on in a larger cache with the same result."""
    target = target_of(model, SHOP.trie)
    small = type(target)(type(target.target)(model, target.target.family, reserve=1), SHOP.trie)
    found = search(small, INPUTS, 20, drafter_of(make(hidden=16, layers=1, seed=9), SHOP.trie, 20, 60))
    assert same(found, searched(model, k=20, near=None))


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("near", [None, 0.1, 0.0])
def test_beams_are_items_distinct_and_in_order(model, near):
    found = searched(model, k=10, width=20, near=near)
    known = {tuple(path) for path in SHOP.paths.tolist()}
    for row in paths_of(SHOP, found):
        assert len(row) == len(set(row)) == 10
        assert set(row) <= known
    assert (found.score[:, :-1] >= found.score[:, 1:]).all()


def test_more_beams_than_paths(model):
    """K beyond the catalogue: every path, and nothing else."""
    few = shop(9)
    inputs = few.inputs(users(few, 3))
    for drafter in (None, drafter_of(model, few.trie, 30, 40)):
        found = search(target_of(model, few.trie), inputs, 30, drafter)
        assert ((found.score > -torch.inf).sum(1) == 9).all()
        assert all(set(row) == {tuple(path) for path in few.paths.tolist()} for row in paths_of(few, found))


def test_one_beam_is_constrained_greedy(model):
    kids, found = branches(SHOP.paths), searched(model, k=1, width=4)
    for row, beams in enumerate(paths_of(SHOP, found)):
        line: list[int] = []
        for _ in range(LEVELS):
            allowed = kids[tuple(line)]
            line.append(allowed[int(alone(model, INPUTS, row, [line])[0, allowed].argmax())])
        assert beams == [tuple(line)]


# --- drafts of beams are drafts ---------------------------------------------------------------------------------------


def test_best_of_too_few_is_minus_one():
    key = torch.tensor([[3.0, -torch.inf, 5.0], [-torch.inf] * 3])
    assert best_indices(key, 5).tolist() == [[2, 0, -1, -1, -1], [-1] * 5]
    assert best_indices(key, 1).tolist() == [[2], [-1]]


def test_a_width_below_k_is_named():
    with pytest.raises(ValueError, match="width is 3 and k 4: draft at least as many"):
        Anchored(4, 3)


def test_beams_know_no_distribution_of_one_value():
    """They commit whole levels: nothing may take them for a rule of single values."""
    assert not hasattr(TopKBeams(SHOP.trie, 2), "output_distribution")


def test_the_first_pending_is_a_draft(model):
    session, pending = target_of(model, SHOP.trie).begin(INPUTS)
    validate(pending)
    assert isinstance(pending, Draft)
    assert pending.trunk == 1  # it grows with the levels that are committed
    assert (pending.parents == CONTEXT).all()
    assert session.scored == 0
