"""Lists per user: the very items of transformers' constrained beams over the same items, at a cost that follows the lists."""

import random

import pytest
import torch

from mmspec.core.beams.trie import Trie
from mmspec.recsys import Catalogue, rank_candidates, recommend
from mmspec.recsys.filters.item_filter import ItemFilter
from tests.beam_world import LEVELS, gaps, make, perturbed, shop, target_of, transformers_beams, users

TIE, CLOSE = 1e-5, 1e-4


def masked(catalogue: Catalogue, allow, deny, base=None) -> torch.Tensor:
    """The same filters as a dense mask [B, items]."""
    rows = []
    for own, not_own in zip(allow, deny, strict=True):
        mask = torch.ones(len(catalogue), dtype=torch.bool) if own is None else catalogue.mask(own)
        mask = mask if base is None else mask & base
        rows.append(mask & ~catalogue.mask(not_own or []))
    return torch.stack(rows)


def drawn(catalogue: Catalogue, rows: int, draw: random.Random):
    """Lists of every length, whole branches of the trie among them; some users have none."""
    items, paths = catalogue.items, catalogue.paths.tolist()

    def some() -> list:
        kind, first = draw.randrange(4), draw.choice(paths)
        if kind == 0:
            return [item for item, path in zip(items, paths, strict=True) if path[:1] == first[:1]]
        if kind == 1:
            return [item for item, path in zip(items, paths, strict=True) if path[:2] == first[:2]]
        return draw.sample(items, draw.choice((1, 5, 40, len(items) // 2)))

    allow = [None if draw.random() < 0.5 else some() for _ in range(rows)]
    deny = [None if draw.random() < 0.2 else some() for _ in range(rows)]
    return allow, deny


def expected(catalogue, beams, mask, k):
    """Rankings of paths as items of the mask."""
    found = []
    for path, score in beams:
        rows = (catalogue.paths.eq(torch.tensor(path)).all(1) & mask).nonzero()[:, 0].tolist()
        found += [(catalogue.items[row], score) for row in rows]
    return found[:k]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_very_items_of_transformers_under_every_filter(family):
    """Every row is a case: a user, its lists, k and a drafter. Rows with a near-tie are left out, and are few."""
    model, catalogue, draw = make(family, 16, 1), shop(twins=30), random.Random(1)
    near, cases, left_out = perturbed(model, 0.1), 0, 0
    stock = catalogue.mask(draw.sample(catalogue.items, 200))
    for turn in range(8):
        histories, k = users(catalogue, 10, seed=turn), (1, 4, 12)[turn % 3]
        allow, deny = drawn(catalogue, 10, draw)
        base = stock if turn % 2 else None
        mask = masked(catalogue, allow, deny, base)
        inputs, some = catalogue.inputs(histories), mask.any(1)
        beams = [[]] * 10
        target = target_of(model, catalogue.trie.only(catalogue.only(mask)))
        clear = (gaps(target, inputs, k) > TIE) & some
        kept = some.nonzero()[:, 0].tolist()
        answers = transformers_beams(model, {name: value[kept] for name, value in inputs.items()}, catalogue, k, mask[kept])
        for row, line in zip(kept, answers, strict=True):
            beams[row] = line
        for drafter in (None, near):
            out = recommend(model, histories, drafter, k=k, catalogue=catalogue, allowed=base, allow=allow, deny=deny)
            for row in range(10):
                if not some[row]:
                    assert out.items[row] == []
                elif clear[row]:
                    wanted = expected(catalogue, beams[row], mask[row], k)
                    assert out.items[row] == [item for item, _ in wanted], f"{turn}, row {row}"
                    assert out.scores[row] == pytest.approx([score for _, score in wanted], abs=CLOSE)
                    cases += 1
                else:
                    left_out += 1
    assert cases >= 120
    assert left_out <= cases / 10


def test_lists_and_masks_say_the_same():
    """The tries agree node by node, and so do the lists, whatever comes together; a mask a row holds the lists too."""
    catalogue, draw = shop(120, twins=40), random.Random(3)
    for turn in range(40):
        allow, deny = drawn(catalogue, 5, draw)
        base = catalogue.mask(draw.sample(catalogue.items, 60)) if turn % 2 else None
        mask = masked(catalogue, allow, deny, base)
        found = ItemFilter.of(catalogue, 5, base, allow, deny, None).trie(catalogue)
        wanted = catalogue.trie.only(catalogue.only(mask))
        dense = ItemFilter.of(catalogue, 5, torch.ones_like(mask) if base is None else base.expand(5, -1), allow, deny, None)
        assert torch.equal(dense.trie(catalogue).allowed, wanted.allowed)
        assert torch.equal(found.open_paths().expand(5, -1), wanted.open_paths())
        for level in range(found.levels):
            state = torch.arange(found.starts[level], found.starts[level + 1]).expand(5, -1)
            reached = wanted.allowed.gather(1, state)
            mine, theirs = found.children(state, level), wanted.children(state, level)
            assert torch.equal(mine.state[reached], theirs.state[reached])


def test_at_most_levels_times_exclusions_nodes():
    catalogue = shop(200)
    deny = [catalogue.items[:30], catalogue.items[:1], []]
    listed = ItemFilter.of(catalogue, 3, None, None, deny, None).trie(catalogue).listed
    assert listed.node.shape[1] <= LEVELS * 30
    assert int((listed.node[1] < len(catalogue.trie.token)).sum()) <= LEVELS


def test_a_planted_miscount_is_seen(monkeypatch):
    """A node that closes with its first excluded path gives other lists."""
    catalogue, model = shop(), make()
    histories = users(catalogue, 6)
    right = recommend(model, histories, k=10, catalogue=catalogue, unseen=True)

    def hasty(self, leaf, only):
        above = torch.cat([leaf + self.starts[-1], torch.ones_like(leaf[:, :1])], 1).sort(1).values
        return Trie.list_paths(self, leaf, only) if False else self.__class__(**(vars(self) | {"listed": type(LISTED)(above, only)}))

    LISTED = catalogue.trie.list_paths(torch.tensor([[0]]), torch.tensor([False])).listed
    monkeypatch.setattr(Trie, "list_paths", hasty)
    assert recommend(model, histories, k=10, catalogue=catalogue, unseen=True).items != right.items


def test_more_beams_than_items():
    """The first k of a wider search, which is transformers' own of that many beams."""
    model, catalogue = make(hidden=16, layers=1), shop(twins=20)
    histories = users(catalogue, 5)
    beams = transformers_beams(model, catalogue.inputs(histories), catalogue, 30)
    for drafter in (None, perturbed(model, 0.1)):
        out = recommend(model, histories, drafter, k=5, beams=30, catalogue=catalogue)
        assert out.tokens.shape[1] == 30
        every = torch.ones(len(catalogue), dtype=torch.bool)
        assert out.items == [[item for item, _ in expected(catalogue, line, every, 5)] for line in beams]
    with pytest.raises(ValueError, match="beams is 4 and k 5: keep at least as many"):
        recommend(model, histories, k=5, beams=4, catalogue=catalogue)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_candidates_have_the_scores_of_a_whole_search(family):
    """Of beams as many as paths no path is lost: then a search ranks as the forward over given paths does."""
    model, catalogue, draw = make(family, 16, 1), shop(90, twins=15), random.Random(2)
    histories = users(catalogue, 12)
    whole = recommend(model, histories, k=90, catalogue=catalogue)
    candidates = [draw.sample(catalogue.items, draw.choice((1, 3, 20, 90))) for _ in histories]
    candidates[3] = []
    deny = [line[:1] for line in candidates]
    out = rank_candidates(model, histories, candidates, catalogue=catalogue, deny=deny, k=15)
    assert (out.stats.target_calls, out.stats.row_calls) == (1, 12)
    for row, line in enumerate(candidates):
        pairs = zip(whole.items[row], whole.scores[row], strict=True)
        wanted = {item: score for item, score in pairs if item in line and item not in deny[row]}
        assert len(out.items[row]) == min(15, len(wanted))
        assert out.scores[row] == sorted(out.scores[row], reverse=True)
        best = sorted(wanted.values(), reverse=True)[:15]
        assert out.scores[row] == pytest.approx(best, abs=CLOSE)
        assert all(wanted[item] == pytest.approx(score, abs=CLOSE) for item, score in zip(out.items[row], out.scores[row], strict=True))


def test_candidates_alone_and_in_a_batch_and_what_is_refused():
    model, catalogue = make(), shop(90)
    histories = users(catalogue, 4)
    lists = [catalogue.items[:5], catalogue.items[5:40], catalogue.items[80:], catalogue.items[:1]]
    out = rank_candidates(model, histories, lists, catalogue=catalogue)
    for row in range(4):
        one = rank_candidates(model, histories[row : row + 1], lists[row : row + 1], catalogue=catalogue)
        assert one.items[0] == out.items[row]
        assert one.scores[0] == pytest.approx(out.scores[row], abs=CLOSE)
    with pytest.raises(ValueError, match="candidates must be a list of items for each history"):
        rank_candidates(model, histories, [None] * 4, catalogue=catalogue)
    with pytest.raises(ValueError, match="allow 1: item 'x' is not in the catalogue"):
        rank_candidates(model, histories[:2], [["item0"], ["x"]], catalogue=catalogue)


def test_what_is_refused():
    model, catalogue = make(), shop(60)
    histories = users(catalogue, 2)
    for given, words in (
        ({"deny": [["item1"]]}, "give a list of 2, one list of items or None for each history"),
        ({"allow": "item1"}, "allow is 'item1': give a list of items, or None, for each history"),
        ({"allow": ["item1", None]}, "allow 0 is 'item1': give a list of items, or None"),
        ({"deny": [["nope"], None]}, "deny 0: item 'nope' is not in the catalogue"),
    ):
        with pytest.raises(ValueError, match=words):
            recommend(model, histories, catalogue=catalogue, **given)
    with pytest.raises(ValueError, match="restricted row by row already"):
        catalogue.trie.only(torch.ones(2, 60, dtype=torch.bool)).list_paths(torch.tensor([[1]]), torch.tensor([False]))
