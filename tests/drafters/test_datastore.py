import random
from collections import Counter

import numpy as np
import pytest

from mmspec.core.rules.match import Match
from mmspec.drafters.retrieval import datastore
from mmspec.drafters.retrieval.datastore import Datastore, Retrieval, RetrievalRow, suffix_array, trie
from tests.drafters.runs import greedy, plain, random_prompt, run


def random_texts(count: int, values: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(values) for _ in range(rng.randrange(0, 30))] for _ in range(count)]


def test_suffixes_are_sorted():
    tokens = np.array([token for text in random_texts(20, 3) for token in [*text, -1]])
    order = suffix_array(tokens)
    assert sorted(order.tolist()) == list(range(len(tokens)))
    suffixes = [tokens[start:].tolist() for start in order]
    assert suffixes == sorted(suffixes)
    runs = np.zeros(500, np.int64)  # equal for longer than is sorted: any order will do
    assert sorted(suffix_array(runs).tolist()) == list(range(500))


def test_every_occurrence_is_found(tmp_path):
    texts = random_texts(20, 3)
    store = Datastore.build(texts, tmp_path / "store.npy")
    for query in random_texts(60, 3, seed=1):
        context = query[:4]
        found = [store.tokens[store.suffixes[entry] :][: len(context)].tolist() for entry in store.find(context)]
        count = sum(text[i : i + len(context)] == context for text in [[*text, -1] for text in texts] for i in range(len(text)))
        assert found == [context] * (count if context else len(store.tokens))


def test_the_longest_suffix_is_found(tmp_path):
    texts = random_texts(8, 4)
    store = Datastore.build(texts, tmp_path / "store.npy")
    for query in random_texts(60, 4, seed=1):
        size, entries = store.find_longest(query, 16, 2)
        known = [n for n in range(2, min(16, len(query)) + 1) if store.find(query[-n:])]
        assert size == max(known, default=1)
        assert bool(entries) == bool(known)


def test_the_tree_holds_the_most_frequent_continuations():
    follow = [[1, 2, 3]] * 3 + [[1, 2, 4]] * 2 + [[5, -1, 1]] * 4 + [[-1, 1]]
    assert trie(follow, 4) == ([1, 2, 5, 3], [-1, 0, -1, 1])
    tokens, parents = trie([[random.Random(i).randrange(3) for _ in range(4)] for i in range(50)], 12)
    assert len(tokens) == 12
    assert all(parent < node for node, parent in enumerate(parents))


def test_hits_are_spread_over_all_that_is_found(tmp_path):
    texts = [[1, 1, 2 + i % 4] for i in range(400)]
    row = RetrievalRow(Retrieval(Datastore.build(texts, tmp_path / "store.npy"), hits=40), [1, 1])
    assert Counter(row.draft_token(1)[0]) == Counter([2, 3, 4, 5])


def test_a_store_that_holds_the_answer_is_accepted_nearly_whole(big, tmp_path):
    inputs = random_prompt(5, 9, 7, seed=1)
    store = Datastore.build(greedy(big, inputs, 50), tmp_path / "store.npy")
    out = run(big, Retrieval(store), inputs, new=50, length=7)
    assert out.stats.target_calls <= 12
    store = Datastore.build(plain(big, inputs, new=50), tmp_path / "sampled.npy")
    out = run(big, Retrieval(store), inputs, Match(), new=50, length=7, temperature=1.0)
    assert out.stats.target_calls <= 12


def test_a_reopened_store_draft_tokens_the_same(tmp_path):
    texts = random_texts(30, 5)
    built = Datastore.build(texts, tmp_path / "store.npy")
    opened = Datastore.open(tmp_path / "store.npy")
    assert isinstance(opened.tokens.base.base, np.memmap)
    for query in random_texts(40, 5, seed=2):
        assert RetrievalRow(Retrieval(built), query).draft_token(4) == RetrievalRow(Retrieval(opened), query).draft_token(4)


def test_a_build_that_fails_leaves_the_old_store_alone(tmp_path, monkeypatch):
    path = tmp_path / "store.npy"
    Datastore.build([[1, 2, 3]], path)

    def half(file, table):
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(datastore.np, "save", half)
    with pytest.raises(OSError, match="disk full"):
        Datastore.build([[4, 5, 6]], path)
    monkeypatch.undo()
    assert Datastore.open(path).tokens.tolist() == [1, 2, 3, -1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_build_replaces_the_old_one_under_its_readers(tmp_path):
    path = tmp_path / "store.npy"
    old = Datastore.build([[1, 2, 3]], path)
    Datastore.build([[4, 5]], path)
    assert old.tokens.tolist() == [1, 2, 3, -1]
    assert Datastore.open(path).tokens.tolist() == [4, 5, -1]


def test_bad_stores_and_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no texts"):
        Datastore.build([], tmp_path / "store.npy")
    with pytest.raises(ValueError, match="the id -3"):
        Datastore.build([[1, -3]], tmp_path / "store.npy")
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(ValueError, match="no datastore"):
        Datastore.open(tmp_path / "other.npy")
    store = Datastore.build([[1]], tmp_path / "store.npy")
    with pytest.raises(ValueError, match="nodes"):
        Retrieval(store, nodes=0)
    with pytest.raises(ValueError, match="longest"):
        Retrieval(store, longest=1)
