"""Tries against the plainest there is: a dictionary from prefixes to what may follow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspec.core.beams import trie as tries
from mmspec.core.beams.trie import NOWHERE, Trie
from tests.beam_world import branches


@st.composite
def path_sets(draw) -> Tensor:
    """Distinct sorted paths [P, L]."""
    levels, size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    some = draw(st.lists(st.lists(st.integers(0, size - 1), min_size=levels, max_size=levels), min_size=1, max_size=30))
    return torch.unique(torch.tensor(some), dim=0)


FULL = torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(4))
EDGES = {
    "one path": torch.tensor([[4, 2, 7]]),
    "one token": torch.tensor([[3]]),
    "one level": torch.arange(6)[:, None],
    "full": FULL,
    "a comb": torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]),
}


def prefixes(trie: Trie) -> list[tuple[int, ...]]:
    """Every node's path from the root, found by the children alone."""
    found: list[tuple[int, ...]] = [()] * len(trie.token)
    for level in range(trie.levels):
        first, end = trie.starts[level], (*trie.starts, len(trie.token))[level + 1]
        nodes = torch.arange(first, end)[None]
        children = trie.children(nodes, level)
        for column in range(end - first):
            for state, token in zip(children.state[0, column].tolist(), children.token[0, column].tolist(), strict=True):
                if state != NOWHERE:
                    found[state] = (*found[first + column], token)
    return found


def agrees(paths: Tensor, trie: Trie) -> None:
    """Every fact of a whole trie over `paths`."""
    kids, names = branches(paths), prefixes(trie)
    levels = paths.shape[1]
    assert (trie.levels, trie.size) == (levels, len(paths))
    assert sorted(names) == sorted({tuple(path[:level]) for path in paths.tolist() for level in range(levels + 1)})
    assert names[trie.starts[-1] :] == [tuple(path) for path in paths.tolist()]  # leaf p is path p
    for node, name in enumerate(names):
        below = [p for p, path in enumerate(paths.tolist()) if tuple(path[: len(name)]) == name]
        assert list(range(*trie.span[node].tolist())) == below
        if len(name) < levels:
            assert trie.starts[len(name)] <= node < trie.starts[len(name) + 1]
            children = trie.children(torch.tensor([[node]]), len(name))
            assert children.token[children.valid].tolist() == kids[name]
    most = [max(len(kids[name]) for name in kids if len(name) >= level) for level in range(levels)]
    assert list(trie.widths) == most


@given(path_sets())
@settings(max_examples=60, deadline=None)
def test_a_trie_is_its_dictionary(paths):
    agrees(paths, Trie.of(paths))


@pytest.mark.parametrize("paths", EDGES.values(), ids=EDGES)
def test_edges(paths):
    agrees(paths, Trie.of(paths))


@given(path_sets(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_below_sums_over_leaves(paths, seed):
    trie = Trie.of(paths)
    weights = torch.rand(2, len(paths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found, names = trie.below(weights), prefixes(trie)
    assert found.shape == (2, len(trie.token))
    for node, name in enumerate(names):
        under = torch.tensor([tuple(path[: len(name)]) == name for path in paths.tolist()])
        assert torch.allclose(found[:, node], weights[:, under].sum(1), atol=1e-12)


@given(path_sets(), st.integers(0, 99), st.booleans())
@settings(max_examples=60, deadline=None)
def test_only_is_the_trie_of_what_is_left(paths, seed, by_row):
    """Nodes keep their numbers, whatever is allowed, one mask for all rows or one a row; allowing again starts afresh."""
    trie, rows = Trie.of(paths), 3
    masks = torch.rand(rows, len(paths), generator=torch.Generator().manual_seed(seed)) < 0.5
    masks = masks if by_row else masks[:1].expand(rows, -1)
    narrow = trie.only(masks if by_row else masks[0])
    names = prefixes(trie)
    kids = [branches(paths[mask]) for mask in masks]
    for level in range(trie.levels):
        nodes = torch.arange(trie.starts[level], trie.starts[level + 1]).expand(rows, -1)
        whole, children = trie.children(nodes, level), narrow.children(nodes, level)
        assert (whole.valid | ~children.valid).all()
        assert torch.equal(torch.where(children.valid, whole.state, NOWHERE), children.state)
        assert not children.token[~children.valid].any()
        for row in range(rows):
            for column, node in enumerate(nodes[row].tolist()):
                assert children.token[row, column][children.valid[row, column]].tolist() == kids[row].get(names[node], [])
    again = narrow.only(torch.ones(len(paths), dtype=torch.bool))
    agrees(paths, again)
    assert trie.allowed is None


def test_nowhere_has_no_children():
    trie = Trie.of(FULL)
    children = trie.children(torch.tensor([[NOWHERE, 0, NOWHERE]]), 0)
    assert children.valid.tolist() == [[[False] * 4, [True, True, True, False], [False] * 4]]
    assert (children.state[0, 0] == NOWHERE).all()
    assert not children.token[0, 0].any()


def test_deeper_nodes_fit_a_shallower_level():
    """Rows of a batch may have come to different levels: the width of the shallowest holds every one's children."""
    trie = Trie.of(torch.tensor([[0, 0], [1, 0], [1, 1], [1, 2], [1, 3]]))
    assert trie.widths == (4, 4)
    states = torch.tensor([[0], [2]])  # the root, and the node of (1,)
    assert trie.children(states, 0).token.tolist() == [[[0, 1, 0, 0]], [[0, 1, 2, 3]]]


def test_it_moves_with_its_mask():
    trie = Trie.of(FULL).only(torch.ones(len(FULL), dtype=torch.bool))
    moved = trie.to("meta")
    assert {moved.token.device.type, moved.child.device.type, moved.span.device.type, moved.allowed.device.type} == {"meta"}


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (torch.zeros(0, 3, dtype=torch.long), "at least one path of at least one token"),
        (torch.zeros(3, 0, dtype=torch.long), "at least one path of at least one token"),
        (torch.tensor([[1, 2], [1, 1]]), r"distinct and sorted: pass torch.unique"),
        (torch.tensor([[2, 1], [1, 1]]), r"distinct and sorted: pass torch.unique"),
        (torch.tensor([[1, 1], [1, 1]]), r"distinct and sorted: pass torch.unique"),
        (torch.tensor([[0, 3], [1, 1], [0, 5]]), r"distinct and sorted: pass torch.unique"),
    ],
)
def test_what_is_no_set_of_paths_is_refused(paths, words):
    with pytest.raises(ValueError, match=words) as caught:
        Trie.of(paths)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("paths", EDGES.values(), ids=EDGES)
def test_written_children_are_those_found_by_arithmetic(paths, monkeypatch):
    trie, other = Trie.of(paths), Trie.of(paths)
    nodes = torch.tensor([[NOWHERE, *range(len(trie.token))]])
    found = [trie.children(nodes, level) for level in range(trie.levels)]
    assert trie.tables
    assert trie.only(torch.ones(len(paths), dtype=torch.bool)).tables is trie.tables
    monkeypatch.setattr(tries, "_MOST_LISTED", 0)
    for level, mine in enumerate(found):
        theirs = other.children(nodes, level)
        assert torch.equal(mine.state, theirs.state)
        assert torch.equal(mine.token, theirs.token)
    assert not other.tables
