"""Scores of items are a distribution over the trie, counts are what counting by hand gives, and whatever they say, a strict search is
plain's."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from mmspec.core.beams.search import Forest
from mmspec.core.beams.trie import NOWHERE, Trie
from mmspec.recsys import ItemNGram, Retriever, recommend
from mmspec.recsys.baselines import CoOccurrence
from mmspec.recsys.item_distribution import Followers, ItemDistribution, ItemGuide
from tests import beam_world as world

CATALOGUE = world.shop(twins=4)
HISTORIES = world.users(CATALOGUE, 300, seed=1)
USERS = world.users(CATALOGUE, 5, seed=2)
SOURCES = {"retriever": Retriever.of(CATALOGUE, HISTORIES), "n-gram": ItemNGram.of(CATALOGUE, HISTORIES)}


def weighed(trie: Trie, scores: torch.Tensor, state: torch.Tensor, level: int) -> tuple[torch.Tensor, torch.Tensor]:
    """log q of the children of nodes `state` [B, M], as a draft with those nodes last asks for it; and which children there are."""
    children = trie.children(state, level)
    draft = SimpleNamespace(aux=Forest(torch.cat([torch.zeros_like(state), state], 1), state.shape[1], level))
    return ItemGuide(trie, scores).weigh(draft, children), children


def nodes(trie: Trie, level: int, rows: int) -> torch.Tensor:
    return torch.arange(trie.starts[level], (*trie.starts, 0)[level + 1]).expand(rows, -1)


def brute(paths: torch.Tensor, level: int, prefix: list[int], weights: list[float]) -> float:
    return sum(weight for path, weight in zip(paths.tolist(), weights, strict=True) if path[:level] == prefix)


@pytest.mark.parametrize("allowed", [None, "some", "row by row"])
def test_scores_are_a_distribution_over_the_trie(allowed):
    """Children sum to 1 after every node that has any, and are what adding up paths by hand gives."""
    trie, rows = CATALOGUE.trie, 3
    scores = torch.rand(rows, trie.size, dtype=torch.float64).pow(8)
    scores[1, : trie.size // 2] = 0
    may = torch.rand(rows, trie.size) < 0.3
    if allowed:
        trie = trie.only(may if allowed == "row by row" else may[0])
    may = may if allowed == "row by row" else may[:1].expand(rows, -1) if allowed else torch.ones(rows, trie.size, dtype=torch.bool)
    for level in range(trie.levels):
        state = nodes(trie, level, rows)
        log_q, children = weighed(trie, scores, state, level)
        sums = torch.where(children.valid, log_q.double().exp(), 0.0).sum(-1)
        assert ((sums - 1).abs()[children.valid.any(-1)] < 1e-5).all()
        assert (log_q[~children.valid] == -torch.inf).all()
    masses = ItemGuide(trie, scores)
    for level in range(trie.levels):
        state = nodes(trie, level, rows)
        children = trie.children(state, level)
        above, below = masses._below(masses.mass, state[..., None])[..., 0], masses._below(masses.mass, children.state)
        below = torch.where(children.valid, below, 0.0)
        assert (below.sum(-1) - above).abs().max() < 1e-9
        assert (above - trie.below(scores * may)[:, state[0]]).abs().max() < 1e-9
    for row in range(rows):
        weights, path = (scores[row] * may[row]).tolist(), CATALOGUE.distinct[7].tolist()
        node = trie.children(torch.zeros(rows, 1, dtype=torch.long), 0)
        found = (node.token[row, 0] == path[0]) & node.valid[row, 0]
        if bool(found.any()):
            log_q, _ = weighed(trie, scores, torch.zeros(rows, 1, dtype=torch.long), 0)
            share = brute(CATALOGUE.distinct, 1, path[:1], weights) / sum(weights)
            assert float(log_q[row, 0][found].exp()) == pytest.approx(share, rel=1e-4, abs=1e-9)


def test_a_node_without_mass_says_any_of_the_paths_below_it():
    trie = CATALOGUE.trie
    log_q, children = weighed(trie, torch.zeros(1, trie.size), nodes(trie, 1, 1), 1)
    count = trie.below(torch.ones(trie.size))
    state = children.state.clamp_min(0)
    wanted = count[state] / count[nodes(trie, 1, 1)][..., None]
    assert (log_q.exp() - torch.where(children.valid, wanted, 0.0)).abs().max() < 1e-6
    absent = torch.full((1, 2), NOWHERE)
    assert (weighed(trie, torch.ones(1, trie.size), absent, 1)[0] == -torch.inf).all()


# --- counting -----------------------------------------------------------------------------------------------------------


def leaf(item) -> int:
    return int(CATALOGUE.leaf[CATALOGUE.row(item)])


def as_paths(histories) -> list[list[int]]:
    return [[leaf(item) for item in history] for history in histories]


@pytest.mark.parametrize("within", [1, 3])
def test_co_occurrence_is_what_counting_by_hand_gives(within):
    paths, size = as_paths(HISTORIES), CATALOGUE.trie.size
    counts = CoOccurrence.of(paths, within)
    found = Retriever.of(CATALOGUE, HISTORIES, neighbours=size, within=within, popular=0.25)
    shown = CATALOGUE.shown(USERS)
    assert found.again == pytest.approx(sum(len(p) - len(set(p)) for p in paths) / sum(map(len, paths)))
    for history, scores in zip(as_paths(USERS), found.scores(shown), strict=True):
        newest = list(reversed(history[-within:]))
        whole = sum(1 / gap for gap in range(1, len(newest) + 1))
        wanted = [0.25 * (counts.counts[p] + 1) / (sum(map(len, paths)) + size) for p in range(size)]
        for gap, item in enumerate(newest, 1):
            follow = counts.after.get(item, Counter())
            for path, count in follow.items():
                wanted[path] += 0.75 / gap / whole * count / sum(follow.values())
        wanted = [weight * (found.again if path in history else 1) for path, weight in enumerate(wanted)]
        assert scores.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-8)


def test_the_heaviest_followers_are_kept():
    context, path = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 3, 4, 0, 5])
    near = Followers.of(context, path, torch.tensor([0.2, 0.5, 0.3, 0.1, 0.9]), 4, 2)
    assert near.start.tolist() == [0, 2, 2, 4, 4]
    assert near.path.tolist() == [3, 4, 5, 0]
    assert near.total().tolist() == pytest.approx([0.8, 0, 1, 0])
    scores = near.added(torch.zeros(1, 6), torch.tensor([[0, -1, 1, 2]]), torch.tensor([[1.0, 1.0, 1.0, 0.5]]))
    assert scores[0].tolist() == pytest.approx([0.05, 0, 0, 0.5, 0.3, 0.45])


def by_hand(paths: list[list[int]], size: int, order: int, history: list[int]) -> list[float]:
    """Interpolated absolute discounting, context by context."""
    flat = Counter(item for line in paths for item in line)
    distribution = [(flat[p] + 1) / (sum(flat.values()) + size) for p in range(size)]
    for length in range(1, order + 1):
        grams: dict[tuple, Counter] = defaultdict(Counter)
        for line in paths:
            for at in range(length, len(line)):
                grams[tuple(line[at - length : at])][line[at]] += 1
        counts = [count for follow in grams.values() for count in follow.values()]
        once, twice = counts.count(1), counts.count(2)
        discount = min(0.9, max(0.1, once / max(1, once + 2 * twice)))
        follow = grams.get(tuple(history[-length:])) if len(history) >= length else None
        if not follow:
            continue
        whole = sum(follow.values())
        distribution = [(max(follow[p] - discount, 0) + discount * len(follow) * distribution[p]) / whole for p in range(size)]
    return distribution


def test_the_n_gram_is_what_counting_by_hand_gives():
    size = CATALOGUE.trie.size
    known = [history[:-1] for history in HISTORIES if len(history) > 3][:6]  # contexts of three that were seen
    found = ItemNGram.of(CATALOGUE, HISTORIES, most=size)
    assert len(found.orders) == 3
    for history in (*known, *USERS):
        scores = found.scores(CATALOGUE.shown([history]))[0]
        assert float(scores.double().sum()) == pytest.approx(1, abs=1e-5)
        assert scores.tolist() == pytest.approx(by_hand(as_paths(HISTORIES), size, 3, as_paths([history])[0]), rel=1e-3, abs=1e-8)


def test_followers_cut_off_leave_a_distribution():
    scores = ItemNGram.of(CATALOGUE, HISTORIES, most=1).scores(CATALOGUE.shown(USERS))
    assert (scores.double().sum(1) - 1).abs().max() < 1e-5
    assert (scores > 0).all()


def test_a_history_says_the_same_alone_and_in_a_batch():
    together = CATALOGUE.shown(USERS)
    for source in SOURCES.values():
        for row, history in enumerate(USERS):
            alone = source.scores(CATALOGUE.shown([history]))[0]
            assert (alone - source.scores(together)[row]).abs().max() < 1e-6


# --- drafting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("name", SOURCES)
def test_strict_output_is_plains(name, family):
    model = world.make(family)
    mask = torch.rand(len(USERS), len(CATALOGUE), generator=torch.Generator().manual_seed(0)) < 0.1
    for k, width in ((1, 4), (5, 5), (10, 40)):
        for allowed in (None, mask):
            plain = recommend(model, USERS, k=k, catalogue=CATALOGUE, allowed=allowed, method="plain")
            for length in ("auto", 1):
                found = recommend(
                    model, USERS, k=k, catalogue=CATALOGUE, drafter=SOURCES[name], width=width, draft_length=length, allowed=allowed
                )
                assert found.items == plain.items
                assert torch.equal(found.paths, plain.paths)
                assert found.stats.target_calls <= plain.stats.target_calls
    alone = recommend(model, USERS[:1], k=10, catalogue=CATALOGUE, drafter=SOURCES[name])
    assert alone.items[0] == recommend(model, USERS, k=10, catalogue=CATALOGUE).items[0]


@dataclass(frozen=True, eq=False)
class Known(ItemDistribution):
    """Scores given."""

    given: torch.Tensor
    mark: int = 0
    kind = "known"

    def scores(self, shown):
        return self.given

    def state(self):
        return {"given": self.given, "mark": self.mark}

    @classmethod
    def restored(cls, state):
        return cls(**state)


def oracle(model, k: int) -> Known:
    """All mass on paths below the beams that plain search keeps on any level."""
    trie, given = CATALOGUE.trie, torch.zeros(len(USERS), CATALOGUE.trie.size)

    def note(step):
        for row, states in enumerate(step.verdict.pending.aux.state[:, -k:].tolist()):
            for state in states:
                if state != NOWHERE:
                    given[row, trie.span[state, 0]] += 1.0

    plain = recommend(model, USERS, k=k, catalogue=CATALOGUE, on_step=note, method="plain")  # level by level
    for row, items in enumerate(plain.items):
        given[row, [leaf(item) for item in items]] += 100.0
    return Known(given)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_oracle_has_every_level_right(family):
    model = world.make(family)
    for k in (1, 5, 10):
        found = recommend(model, USERS, k=k, catalogue=CATALOGUE, drafter=oracle(model, k), width=5 * k)
        assert found.stats.target_calls == 1
        assert found.items == recommend(model, USERS, k=k, catalogue=CATALOGUE).items


def test_a_wrong_retriever_costs_nothing_but_its_draft_tokens():
    model = world.make()
    given = torch.zeros(len(USERS), CATALOGUE.trie.size)
    given[:, 3] = 1.0
    found = recommend(model, USERS, k=5, catalogue=CATALOGUE, drafter=Known(given))
    assert found.items == recommend(model, USERS, k=5, catalogue=CATALOGUE).items
    assert found.stats.target_calls <= CATALOGUE.levels


def test_what_was_counted_is_found_again():
    nexts = torch.tensor([[leaf(history[-1])] for history in HISTORIES if len(history) > 2])
    pasts = CATALOGUE.shown([history[:-1] for history in HISTORIES if len(history) > 2])
    for source in SOURCES.values():
        hit = (source.scores(pasts).topk(10).indices == nexts).any(1).float().mean()
        assert hit > 0.5  # the popular ones alone: 10 of 256


# --- files and errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_saved_is_loaded(name, tmp_path):
    source, path = SOURCES[name], tmp_path / "counts.safetensors"
    source.save(path)
    again = type(source).load(path, CATALOGUE)
    shown = CATALOGUE.shown(USERS)
    assert torch.equal(again.scores(shown), source.scores(shown))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert source.to("cpu") is source


@pytest.mark.parametrize("name", SOURCES)
def test_what_cannot_be_read_is_said_in_one_line(name, tmp_path):
    source, path = SOURCES[name], tmp_path / "counts.safetensors"
    kind, other = type(source), next(found for key, found in SOURCES.items() if key != name)
    with pytest.raises(ValueError, match=r"counts\.safetensors does not exist"):
        kind.load(path, CATALOGUE)
    other.save(path)
    with pytest.raises(ValueError, match=f"holds no {kind.kind}"):
        kind.load(path, CATALOGUE)
    source.save(path)
    with pytest.raises(ValueError, match="is of another catalogue"):
        kind.load(path, world.shop(seed=5, twins=4))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cannot be read as safetensors: [^\n]*$"):
        kind.load(path, CATALOGUE)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        kind.load(path, CATALOGUE)
    with pytest.raises(ValueError, match="cannot write"):
        source.save(tmp_path / "nowhere" / "counts")


def test_requests_that_are_wrong():
    model = world.make()
    with pytest.raises(ValueError, match="the prompt does not contain the items of the history"):
        recommend(model, CATALOGUE.inputs(USERS), k=3, catalogue=CATALOGUE, drafter=SOURCES["retriever"])
    told = {**CATALOGUE.inputs(USERS), "shown": CATALOGUE.shown(USERS)}
    assert (
        recommend(model, told, k=3, catalogue=CATALOGUE, drafter=SOURCES["retriever"]).items
        == recommend(model, USERS, k=3, catalogue=CATALOGUE).items
    )
    small = world.shop(items=50)
    with pytest.raises(ValueError, match=re.escape(f"knows {CATALOGUE.trie.size} paths, but the catalogue has 50")):
        recommend(model, world.users(small, 2), k=3, catalogue=small, drafter=SOURCES["n-gram"])
    for make in (Retriever.of, ItemNGram.of):
        with pytest.raises(ValueError, match="history 1: item 'nothing' is not in the catalogue"):
            make(CATALOGUE, [HISTORIES[0], ["nothing"]])
        with pytest.raises(ValueError, match="there is nothing to count"):
            make(CATALOGUE, [])
    with pytest.raises(ValueError, match="neighbours is 0"):
        Retriever.of(CATALOGUE, HISTORIES, neighbours=0)
    with pytest.raises(ValueError, match="order is 0"):
        ItemNGram.of(CATALOGUE, HISTORIES, order=0)


def test_histories_of_one_item_each_can_be_counted():
    for make in (Retriever.of, ItemNGram.of):
        source = make(CATALOGUE, [[item] for item in CATALOGUE.items[:9]])
        scores = source.scores(CATALOGUE.shown(USERS))
        assert (scores > 0).all()


def test_planted_mistakes_are_seen():
    """The tests above can fail: a guide that forgets the parent's mass, and one that looks at what may not be recommended."""
    trie, scores = CATALOGUE.trie, torch.rand(1, CATALOGUE.trie.size)
    state = nodes(trie, 1, 1)
    log_q, children = weighed(trie, scores, state, 1)
    mass = trie.below(scores.double())[:, children.state.clamp_min(0)[0]].view_as(log_q)
    assert (torch.where(children.valid, mass, 0.0).sum(-1) - 1).abs().max() > 0.1
    few = trie.only(torch.arange(trie.size) % 3 == 0)
    careless, _ = weighed(replace(few, allowed=None), scores, state, 1)
    careful, left = weighed(few, scores, state, 1)
    unlike = torch.where(left.valid, (careless[..., : careful.shape[-1]].exp() - careful.exp()).abs(), 0.0)
    assert unlike.max() > 0.1
    assert log_q.shape == careless.shape
