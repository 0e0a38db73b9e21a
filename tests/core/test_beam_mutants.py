"""Published and likely mistakes in speculative beam search, planted one by one: the check that passes on the real thing must fail."""

import pytest
import torch

import mmspec.core.beams.search as beams
from mmspec.core.beams.search import BeamRule, TopKBeams
from mmspec.core.beams.trie import NOWHERE, Trie
from mmspec.drafters.model.beams import ModelGuide
from mmspec.models.beam_target import BeamSession
from mmspec.models.slot_cache import SlotCache
from tests.beam_world import LEVELS, drafter_of, make, paths_of, perturbed, search, shop, target_of, transformers_beams, users
from tests.core.test_beams import mask_error, scores_watched

K = 4
SHOP = shop()
INPUTS = SHOP.inputs(users(SHOP, 6, seed=2))


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def reference(model):
    """transformers' own: paths and scores of every row."""
    return transformers_beams(model, INPUTS, SHOP, K)


def exact(model, reference, near=None, length=LEVELS - 1, rule=None) -> bool:
    """Are these the paths of transformers, in its order and with its scores? `near` None: nobody drafts."""
    drafter = None if near is None else drafter_of(perturbed(model, near), SHOP.trie, K, 2 * K)
    found = search(target_of(model, SHOP.trie), INPUTS, K, drafter, length, rule)
    scores = torch.tensor([[score for _, score in row] for row in reference])
    same = paths_of(SHOP, found) == [[path for path, _ in row] for row in reference]
    return same and torch.allclose(found.score / LEVELS, scores, atol=1e-4)


@pytest.mark.parametrize("near", [None, 0.05, 0.2])
def test_the_real_thing_is_exact(model, reference, near):
    for length in (1, 2, 3):
        assert exact(model, reference, near, length)


def test_renormalising_over_what_is_allowed(model, reference, monkeypatch):
    """The mask before the softmax: every path's score is another, and so is the order."""

    def renormalised(distributions, column, children):
        scores = (distributions if column is None else distributions.at(column)).scores.gather(-1, children.token)
        return torch.where(children.valid, scores, -torch.inf).log_softmax(-1).nan_to_num(-torch.inf)

    monkeypatch.setattr(beams, "of_children", renormalised)
    assert not exact(model, reference)


def test_the_drafters_scores_for_the_targets(model, reference, monkeypatch):
    """Drafted beams that keep the score their drafter gave them."""
    level = BeamRule._level

    def trusting(self, draft, scored, depth, column, state, score, first, width):
        if depth:
            score = torch.where(column >= 0, draft.score.gather(1, column.clamp_min(0)), -torch.inf)
        return level(self, draft, scored, depth, column, state, score, first, width)

    monkeypatch.setattr(BeamRule, "_level", trusting)
    assert exact(model, reference)
    assert not exact(model, reference, 0.05)


def test_beams_of_a_wrong_parent(model, reference, monkeypatch):
    """The block of beams before begins one column too early."""
    append = beams._append

    def slipping(tables, winners, base, there):
        append(tables, winners, (base - 1).clamp_min(0), there)

    monkeypatch.setattr(beams, "_append", slipping)
    try:
        right = exact(model, reference)
    except (AssertionError, ValueError):  # the columns are no tree of the trie
        right = False
    assert not right


def test_a_level_with_one_winner_missing(model, reference, monkeypatch):
    """A level is accepted though one of its winners was not drafted."""
    among = beams._among

    def generous(wanted, found, first):
        column = among(wanted, found, first)
        missing = (column < 0) & (wanted != NOWHERE)
        return torch.where(missing & (missing.sum(1, keepdim=True) == 1), column.amax(1, keepdim=True), column)

    def right():
        try:
            return exact(model, reference, 0.1)
        except (AssertionError, ValueError):
            return False

    assert right()
    monkeypatch.setattr(beams, "_among", generous)
    assert not right()


def test_token_sets_by_position_instead_of_a_trie(model):
    """What AtSpeed's published figures were measured with: some of what is found is no item."""
    known = {tuple(path) for path in SHOP.paths.tolist()}
    sets = [SHOP.paths[:, level].unique() for level in range(LEVELS)]
    loose = Trie.of(torch.cartesian_prod(*sets))

    def invalid(trie) -> int:
        found = search(target_of(model, trie), INPUTS, K)
        every = torch.cartesian_prod(*sets) if trie is loose else SHOP.distinct
        return sum(tuple(every[leaf].tolist()) not in known for leaf in (found.state - trie.starts[-1]).flatten().tolist())

    assert invalid(SHOP.trie) == 0
    assert invalid(loose) > 0


def test_fewer_children_of_a_beam_than_beams(model, reference):
    """Only some children of each beam enter the ranking (`tokens_per_beam` below K)."""

    class Narrow(TopKBeams):
        def pick(self, level, noise):
            score = level.score.view(level.children.state.shape)
            floor = score.topk(min(K // 2, score.shape[-1]), -1).values[..., -1:]
            return beams.best_indices(torch.where(score >= floor, score, -torch.inf).flatten(1), self.k)

    assert not exact(model, reference, rule=Narrow(SHOP.trie, K))


def test_a_drafter_whose_cache_is_stale(model, reference, monkeypatch):
    """A drafter whose survivors are not moved. What comes out is right all the same: its columns no longer see their own paths."""

    def error() -> float:
        with scores_watched(monkeypatch) as seen:
            assert exact(model, reference, 0.2)
        return mask_error(seen, INPUTS)

    assert error() < 1e-4
    observe = ModelGuide.observe

    def stale(self, draft, scored, verdict):
        observe(self, draft, scored, verdict)
        self.session.moves = None  # slots are handed out as if the survivors stood there

    monkeypatch.setattr(ModelGuide, "observe", stale)
    assert error() > 0.1


def test_a_counter_kept_between_requests(model, monkeypatch):
    """A constraint that counts levels by itself and is used again: the second request is searched with the first one's end."""
    target, children, calls = target_of(model, SHOP.trie), Trie.children, []
    first, second = (search(target, INPUTS, K) for _ in range(2))
    assert torch.equal(first.state, second.state)

    def counting(self, state, level):
        calls.append(level)
        return children(self, state, min(len(calls) - 1, self.levels - 1))

    monkeypatch.setattr(Trie, "children", counting)
    again = search(target, INPUTS, K)
    assert torch.equal(again.state, first.state)
    assert not torch.equal(search(target, INPUTS, K).state, first.state)


def test_padding_that_leaks_into_the_row(model, reference, monkeypatch):
    """PAD columns written to the row's first slot instead of the scratch slot."""
    point = SlotCache.point
    assert exact(model, reference, 0.2)

    def leaking(self, slots, view, near=0):
        point(self, torch.where(slots == self.capacity - 1, 0, slots), view, near)

    monkeypatch.setattr(SlotCache, "point", leaking)
    assert not exact(model, reference, 0.2)


def test_survivors_that_stay_where_they_were(model, reference, monkeypatch):
    """A commit of the target's that forgets to move what it keeps."""
    commit = BeamSession.commit

    def lazy(self, keep, most):
        commit(self, keep, most)
        if self.target.model is model:
            self.moves = None

    monkeypatch.setattr(BeamSession, "commit", lazy)
    assert not exact(model, reference, 0.1)
