"""Pools count what followed what, stay within their bounds and apart from one another, learn only when told to, and survive a file."""

import json
import random
from copy import deepcopy

import numpy as np
import pytest
import torch

import mmspec
from mmspec.core.records import validate
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.lossy.top_k import TopKFloor
from mmspec.core.rules.match import Match
from mmspec.drafters.retrieval import pools as module
from mmspec.drafters.retrieval.pools import Pool, PoolRow, Pools
from tests.drafters.runs import fives, greedy, markov, plain, prompt_of, random_prompt, run

RAGGED = random_prompt(5, 9, 7, seed=1)


def texts_of(count: int, values: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(values) for _ in range(rng.randrange(0, 30))] for _ in range(count)]


def occurrences(texts, ngram: tuple[int, ...]) -> int:
    """How often `ngram` stands in `texts`, by looking everywhere."""
    return sum(tuple(text[i : i + len(ngram)]) == ngram for text in texts for i in range(len(text)))


def row_of(pools: Pools, key=None, text=(), **options) -> PoolRow:
    return PoolRow(pools.drafter(key, **options), pools.of(key), list(text))


def paths_of(draft_tokens) -> list[tuple[int, ...]]:
    """The path that ends in each draft token."""
    found = []
    for token, parent in zip(*draft_tokens, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


# --- what is counted --------------------------------------------------------------------------------------------------


def test_counts_are_those_of_a_full_scan():
    texts, pools = texts_of(20, 4), Pools(branch=5, limit=10_000)
    pools.learn("books", texts[:8])
    pools.learn("books", texts[8:])
    pool = pools.groups["books"]
    seen = 0
    for token, trie in pool.tries.items():
        for path, times in trie.items():
            assert times == occurrences(texts, (token, *path))
            seen += 1
    windows = {tuple(text[i : i + size]) for text in texts for size in range(2, 7) for i in range(len(text) - size + 1)}
    assert seen == len(windows)  # and nothing is missing
    for context in [(0,), (1, 2), (3, 3), (2, 0, 1)]:
        expected = {w[len(context) :]: occurrences(texts, w) for w in windows if w[: len(context)] == context and len(w) > len(context)}
        assert pool.after(context, 9) == expected
        assert pool.after(context, 2) == {path: times for path, times in expected.items() if len(path) <= 2}


class Nested:
    """A pool written the long way: nodes with children, room made one halving at a time."""

    def __init__(self, branch: int, limit: int):
        self.branch, self.limit, self.roots = branch, limit, {}

    def add(self, text) -> None:
        for i in range(len(text) - 1):
            root = self.roots.setdefault(text[i], {})
            branch = text[i + 1 : i + 1 + self.branch]
            while self.size(root) + self.missing(root, branch) > self.limit:
                self.halve(root)
            node = root
            for token in branch:
                node = node.setdefault(token, [0, {}])
                node[0] += 1
                node = node[1]

    def size(self, node) -> int:
        return sum(1 + self.size(below) for _, below in node.values())

    def missing(self, node, branch) -> int:
        for depth, token in enumerate(branch):
            if token not in node:
                return len(branch) - depth
            node = node[token][1]
        return 0

    def halve(self, node) -> None:
        for token in list(node):
            node[token][0] //= 2
            if node[token][0] == 0:
                del node[token]
            else:
                self.halve(node[token][1])

    def paths(self, node, before=()):
        for token, (times, below) in node.items():
            yield (*before, token), times
            yield from self.paths(below, (*before, token))


@pytest.mark.parametrize(("branch", "limit"), [(4, 12), (3, 3), (6, 40)])
def test_a_full_trie_is_halved_and_pruned(branch, limit):
    ours, oracle = Pool(branch, limit), Nested(branch, limit)
    halved = 0
    for text in texts_of(60, 5, seed=3):
        for end in range(0, len(text), 7):
            ours.add(text[end : end + 9])
            oracle.add(text[end : end + 9])
        for token, trie in ours.tries.items():
            assert trie == dict(oracle.paths(oracle.roots[token]))
            assert len(trie) <= limit
            assert all(trie.get(path[:-1], times) >= times for path, times in trie.items())
            halved += len(trie) == limit
    assert halved


def test_the_newest_branch_survives_a_full_trie():
    pool = Pool(2, 6)
    for i in range(50):
        pool.add([0, 2 * i + 1, 2 * i + 2])
        assert (2 * i + 1, 2 * i + 2) in pool.tries[0]


# --- what is drafted --------------------------------------------------------------------------------------------------


def test_the_longest_context_wins_and_then_the_more_frequent():
    pools = Pools()
    pools.learn(None, [[1, 2, 3]] * 3 + [[1, 2, 4]] * 2 + [[9, 2, 5]] * 8)
    assert row_of(pools, text=[1, 2]).draft_token(1) == ([3, 4], [-1, -1])
    assert row_of(pools, text=[7, 2]).draft_token(1) == ([5, 3, 4], [-1, -1, -1])
    assert row_of(pools, text=[1, 2], longest=1).draft_token(1)[0] == [5, 3, 4]
    assert row_of(pools, text=[1, 2], nodes=1).draft_token(1)[0] == [3]
    assert row_of(pools, text=[2, 7]).draft_token(4) == ([], [])
    assert row_of(pools, text=[]).draft_token(4) == ([], [])


def test_own_text_and_pool_are_counted_together():
    pools = Pools()
    pools.learn("k", [[1, 5], [1, 6], [1, 6]])
    own = [1, 5, 0, 1, 5, 0, 1]
    assert row_of(pools, "k", own, longest=1, own=1).draft_token(1)[0] == [5, 6]  # 1 + 2 against 2
    assert row_of(pools, "k", own, longest=1, own=0).draft_token(1)[0] == [6, 5]
    assert row_of(pools, "k", own, longest=1, own=0.25).draft_token(1)[0] == [6, 5]
    assert row_of(pools, "none", own, longest=1).draft_token(9)[0][:3] == [5, 0, 1]  # no pool: prompt lookup
    assert row_of(pools, "none", own, own=0).draft_token(9) == ([], [])


def test_branches_end_with_what_matched_included():
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert row_of(Pools(branch=3), text=text).draft_token(9)[0] == [3, 4]
    assert row_of(Pools(branch=3), text=text, longest=1).draft_token(9)[0] == [3, 4, 5]
    pools = Pools(branch=3)
    pools.learn(None, [text])
    assert row_of(pools, text=[1, 2]).draft_token(9)[0] == [3, 4]
    assert row_of(pools, text=[1, 2], longest=1).draft_token(9)[0] == [3, 4, 5]


def test_draft_tokens_are_the_most_frequent_of_all_paths_and_form_a_tree():
    texts, pools = texts_of(40, 4, seed=5), Pools(branch=6)
    pools.learn("k", texts)
    for text in texts_of(40, 4, seed=6):
        row = row_of(pools, "k", text, nodes=10, own=1)
        draft_tokens = row.draft_token(5)
        assert all(parent < node for node, parent in enumerate(draft_tokens[1]))
        paths = paths_of(draft_tokens)
        assert len(set(paths)) == len(paths) <= 10
        assert all(len(path) <= 5 for path in paths)
        context = next((tuple(text[-n:]) for n in (2, 1) if len(text) >= n and occurrences([*texts, text[:-1]], tuple(text[-n:]))), None)
        if context and paths:
            everything = [*texts, text]
            weights = [occurrences(everything, (*context, *path)) for path in paths]
            assert weights == sorted(weights, reverse=True)
            others = {(*path, token) for path in [(), *paths] for token in range(4)} - set(paths)
            left = [occurrences(everything, (*context, *path)) for path in others if len(path) <= min(5, 7 - len(context))]
            assert len(paths) < 10 or max(left) <= weights[-1]


def test_what_may_be_taken_back_is_not_remembered():
    pools = Pools()
    pools.learn(None, texts_of(10, 4))
    row, told = row_of(pools, text=[1, 2, 3]), row_of(pools, text=[1, 2, 3])
    before = deepcopy((row.text, row.places))
    assert row.draft_token(4, [0, 2]) == PoolRow(row.plan, row.pool, [1, 2, 3, 0, 2]).draft_token(4)
    assert (row.text, row.places) == before
    assert row.draft_token(4) == told.draft_token(4)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_row_never_sees_another_groups_pool():
    pools = Pools()
    pools.learn("books", [[1, 10, 11, 12]])
    pools.learn("films", [[1, 20, 21, 22]])
    pools.learn(7, [[1, 30, 31]])
    assert row_of(pools, "books", [1]).draft_token(8)[0] == [10, 11, 12]
    assert row_of(pools, "films", [1]).draft_token(8)[0] == [20, 21, 22]
    assert row_of(pools, 7, [1]).draft_token(8)[0] == [30, 31]
    assert row_of(pools, "7", [1]).draft_token(8) == ([], [])
    assert row_of(pools, "games", [1]).draft_token(8) == ([], [])  # unknown, and nothing is shared yet
    pools.learn(None, [[1, 40]])
    pools.learn("games", [[], []])  # and still unknown
    assert row_of(pools, "games", [1]).draft_token(8)[0] == row_of(pools, None, [1]).draft_token(8)[0] == [40]
    assert row_of(pools, "books", [1]).draft_token(8)[0] == [10, 11, 12]


def accepted(model, drafter, inputs, expected) -> list[list[int]]:
    """Draft tokens accepted, round by round and row by row, in a run whose output must be `expected`."""
    seen: list[list[int]] = []
    out = run(model, drafter, inputs, new=40, length=8, on_step=lambda step: seen.append(step.committed.accepted))
    assert out.sequences.tolist() == expected
    return seen


def test_every_row_of_a_batch_drafts_from_its_own_pool(big):
    texts, pools, calls = greedy(big, RAGGED, 40), Pools(), {}
    for key, text in zip("abc", texts, strict=True):
        pools.learn(key, [text])
    for keys in ("abc", "cab"):
        together = accepted(big, pools.drafter(list(keys), own=0), RAGGED, texts)
        calls[keys] = len(together)
        for row, key in enumerate(keys):
            one = {name: value[row : row + 1] for name, value in RAGGED.items()}
            alone = accepted(big, pools.drafter(key, own=0), one, texts[row : row + 1])
            assert [step[row] for step in together if step[row]] == [step[0] for step in alone if step[0]]
    assert calls["abc"] <= 10 < calls["cab"]


@pytest.mark.parametrize("keys", [np.array([1, 0, 1]), torch.tensor([1, 0, 1]), (1, 0, 1)], ids=lambda keys: type(keys).__name__)
def test_cluster_numbers_are_keys_as_they_come(keys):
    assert Pools().drafter(keys).keys == (1, 0, 1)


# --- generation -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stocked(big):
    pools = Pools()
    pools.learn("a", greedy(big, RAGGED) + random_prompt(40, 40, seed=2)["input_ids"].tolist())
    pools.learn(None, texts_of(30, 50))
    return pools


@pytest.mark.parametrize("inputs", [random_prompt(9), RAGGED], ids=["one", "ragged"])
def test_exact_rules_give_the_tokens_of_plain_decoding(stocked, big, inputs):
    rows = len(inputs["input_ids"])
    drafter = stocked.drafter(["a", "nobody", None][:rows])
    assert run(big, drafter, inputs).sequences.tolist() == greedy(big, inputs)
    assert run(big, drafter, inputs, TopKFloor(k=1)).sequences.tolist() == greedy(big, inputs)
    for rule in (Match(), Coupled()):
        assert run(big, drafter, inputs, rule, seed=3, temperature=1.0).sequences.tolist() == plain(big, inputs, seed=3)


def test_generation_leaves_no_residue(stocked, big):
    before, drafts = {key: deepcopy(pool.tries) for key, pool in stocked.groups.items()}, []
    for _ in range(2):
        seen: list = []
        run(big, stocked.drafter("a"), RAGGED, on_step=lambda s, seen=seen: seen.append((s.draft.nodes.tolist(), s.draft.parents.tolist())))
        drafts.append(seen)
    assert drafts[0] == drafts[1]
    assert {key: pool.tries for key, pool in stocked.groups.items()} == before


def test_acceptance_grows_with_what_was_learnt(big):
    inputs, pools, calls = random_prompt(5, 9, 7, seed=1), Pools(), []
    answers = plain(big, inputs, new=50)
    for learnt in ([], answers[:1], answers[1:]):
        pools.learn("k", learnt)
        out = run(big, pools.drafter("k"), inputs, Match(), new=50, length=8, temperature=1.0)
        assert out.sequences.tolist() == answers
        calls.append((out.stats.accepted, out.stats.target_calls))
    assert calls[0][0] < calls[1][0] < calls[2][0]
    assert calls[2][1] <= 12 < 40 < calls[0][1]


def test_a_repeating_prompt_needs_no_pool():
    out = run(markov(fives), Pools().drafter(), prompt_of([0, 1, 2, 3, 4, 0, 1]), new=30, length=5)
    assert out.stats.target_calls <= 10


def test_the_relaxed_rule_accepts_more_and_says_what_it_spent(big):
    inputs, pools = random_prompt(9, 9, 9, 9, seed=4), Pools()
    pools.learn("k", [text for seed in range(8) for text in plain(big, inputs, new=40, seed=seed)])
    exact = mmspec.text.generate(big, inputs, pools.drafter("k"), max_new_tokens=40, draft_length=8, on_step=lambda s: validate(s.draft))
    relaxed = mmspec.text.generate(big, inputs, pools.drafter("k"), accept="topk-floor", max_new_tokens=40, draft_length=8)
    assert (exact.stats.exactness, relaxed.stats.exactness) == ("token-exact", "lossy")
    assert relaxed.stats.tokens_per_call > exact.stats.tokens_per_call
    assert relaxed.stats.drift >= 1
    assert relaxed.sequences.tolist() != exact.sequences.tolist()
    capped = mmspec.text.generate(big, inputs, pools.drafter("k"), accept=TopKFloor(budget=0), max_new_tokens=40, draft_length=8)
    assert (capped.sequences.tolist(), capped.stats.drift) == (exact.sequences.tolist(), 0)


# --- files ------------------------------------------------------------------------------------------------------------


def tries(pools: Pools) -> dict:
    return {key: pool.tries for key, pool in pools.groups.items()}


def test_saved_pools_come_back_the_same(tmp_path):
    pools, path = Pools(branch=4, limit=20), tmp_path / "pools.npz"
    for seed, key in enumerate(("books", 3, "3", None)):
        pools.learn(key, texts_of(20, 5, seed))
    pools.save(path)
    again = Pools.load(path)
    assert tries(again) == tries(pools)
    assert (again.branch, again.limit) == (4, 20)
    for both in (pools, again):
        both.learn("books", texts_of(20, 5, seed=9))
    assert tries(again) == tries(pools)
    assert list(tmp_path.iterdir()) == [path]


def test_no_pools_are_saved_too(tmp_path):
    Pools().save(tmp_path / "pools.npz")
    assert tries(Pools.load(tmp_path / "pools.npz")) == {}


def test_a_save_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    pools, path = Pools(), tmp_path / "pools.npz"
    pools.learn("k", [[1, 2, 3]])
    pools.save(path)

    def half(file, **tables):
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(module.np, "savez_compressed", half)
    pools.learn("k", [[4, 5, 6]])
    with pytest.raises(OSError, match="disk full"):
        pools.save(path)
    monkeypatch.undo()
    assert tries(Pools.load(path))["k"] == {1: {(2,): 1, (2, 3): 1}, 2: {(3,): 1}}
    assert list(tmp_path.iterdir()) == [path]


HEADER = {"kind": "mmspec pools", "version": 1, "branch": 3, "limit": 3}


@pytest.mark.parametrize(
    ("changes", "table", "words"),
    [
        ({"version": 2}, [[1, 0, 0]], "version 2"),
        ({"kind": "soup"}, [[1, 0, 0]], "'soup'"),
        ({"branch": 0}, [[1, 0, 0]], "branch is 0"),
        ({"branch": "3"}, [[1, 0, 0]], "damaged"),
        ({"keys": ["k", "l"]}, [[1, 0, 0]], "damaged"),
        ({"keys": [1.5]}, [[1, 0, 0]], "key is 1.5"),
        ({}, [[1, 1, 1]], "no parent"),
        ({}, [[1, 0, 0], [2, 2, 1]], "no parent"),
        ({}, [[1, 0, 0], [2, 1, 0]], "counted 0 times"),
        ({}, [[1, 0, 0], [2, 1, 1], [3, 2, 2]], "counted 2 times"),
        ({}, [[1, 0, 0], *([n, 1, 1] for n in range(4))], "too large"),
        ({}, [[1, 0, 0], [-2, 1, 1]], "the token -2"),
        ({}, [[1, 0]], "shape"),
        ({"sizes": [2]}, [[1, 0, 0]], "shape"),
        ({"sizes": "3"}, [[1, 0, 0]], "damaged"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path, changes, table, words):
    path = tmp_path / "pools.npz"
    with open(path, "wb") as file:
        header = HEADER | {"keys": ["k"], "sizes": [len(table)]} | changes
        np.savez_compressed(file, header=np.array(json.dumps(header)), nodes=np.array(table, np.int64))
    with pytest.raises(ValueError, match=words) as caught:
        Pools.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_cut_short_or_of_another_kind_are_refused(tmp_path):
    pools, path = Pools(), tmp_path / "pools.npz"
    pools.learn("k", texts_of(20, 9))
    pools.save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for data in (b"", b"some text", whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"holds no pools|damaged") as caught:
            Pools.load(path)
        assert "\n" not in str(caught.value)
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(ValueError, match="holds no pools"):
        Pools.load(tmp_path / "other.npy")
    with pytest.raises(FileNotFoundError, match=r"Pools\.save"):
        Pools.load(tmp_path / "nothing.npz")


# --- what is asked for wrongly ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pools(branch=0), "branch is 0"),
        (lambda: Pools(branch=12, limit=11), "limit 11"),
        (lambda: Pools().drafter(nodes=0), "nodes is 0"),
        (lambda: Pools().drafter(longest=0), "longest is 0"),
        (lambda: Pools().drafter(longest=13), "longest is 13"),
        (lambda: Pools().drafter(own=-1), "own is -1"),
        (lambda: Pools().drafter(own=float("nan")), "own is nan"),
        (lambda: Pools().drafter([1.5]), "key is 1.5"),
        (lambda: Pools().learn("k", [1, 2, 3]), "an answer is 1"),
        (lambda: Pools().learn("k", "words"), "an answer is 'w'"),
        (lambda: Pools().learn("k", [[1, -2]]), "holds -2"),
        (lambda: Pools().learn("k", [[1.5]]), "holds 1.5"),
        (lambda: Pools().learn(("k",), [[1]]), "key is"),
    ],
)
def test_bad_requests_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_nothing_is_learnt_from_a_call_that_is_refused():
    pools = Pools()
    with pytest.raises(ValueError, match="holds -2"):
        pools.learn("k", [[1, 2], [1, -2]])
    assert pools.groups == {}


@pytest.mark.parametrize("keys", [["a", "b"], ["a"] * 4])
def test_there_is_a_key_for_every_row(big, keys):
    with pytest.raises(ValueError, match=f"{len(keys)} keys for 3 rows"):
        run(big, Pools().drafter(keys), RAGGED)
