"""Drafts are trees and verdicts are paths: properties of random ones, against the plainest loops there are."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.records import CONTEXT, PAD, Budget, Draft, validate
from mmspec.core.rules.base import commit, deepest
from mmspec.core.rules.paths import equals_parent


@st.composite
def drafts(draw, rows: int = 3, linear: bool = False):
    """Random drafts: a chain of roots, then draft tokens; some rows finished, some columns PAD."""
    roots, size = draw(st.integers(1, 3)), draw(st.integers(0, 6))
    lines = []
    for _ in range(rows):
        if draw(st.booleans()) and draw(st.booleans()):
            lines.append([PAD] * (roots + size))
            continue
        line = [CONTEXT, *range(roots - 1)]
        for column in range(roots, roots + size):
            real = [i for i in range(roots - 1, column) if line[i] != PAD]
            if linear:
                line.append(column - 1 if line[column - 1] != PAD and draw(st.integers(0, 4)) else PAD)
            else:
                line.append(draw(st.sampled_from([*real, PAD])))
        lines.append(line)
    nodes = torch.tensor(
        draw(st.lists(st.lists(st.integers(0, 3), min_size=roots + size, max_size=roots + size), min_size=rows, max_size=rows))
    )
    start = torch.tensor(draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows)))
    width = max(1, max(line.count(parent) for line in lines for parent in range(roots + size)))
    return Draft(nodes, torch.tensor(lines), start, roots=roots, linear=linear, width=width)


@st.composite
def forests(draw, rows: int = 3):
    """Drafts whose roots are trees themselves, as beams are, with the tightest bounds `trunk` and `levels` there are."""
    roots, size = draw(st.integers(1, 6)), draw(st.integers(0, 6))
    lines, trunk, levels = [], 1, 0
    for _ in range(rows):
        line: list[int] = []
        for column in range(roots + size):
            real = [i for i in range(column) if line[i] != PAD]
            line.append(draw(st.sampled_from([*real, CONTEXT, PAD] if column < roots else [*real, PAD])))
        lines.append(line)
    draft = Draft(torch.zeros(rows, roots + size).long(), torch.tensor(lines), torch.zeros(rows).long(), roots=roots, linear=False)
    for row in range(rows):
        for node in range(roots + size):
            way = path(draft, row, node) if draft.valid[row, node] else []
            trunk = max(trunk, sum(column < roots for column in way))
            levels = max(levels, sum(column >= roots for column in way))
    return replace(draft, trunk=trunk, levels=levels)


def path(draft: Draft, row: int, node: int) -> list[int]:
    """Columns from the first root to `node`, by walking up."""
    steps = []
    while node >= 0:
        steps.append(node)
        node = draft.parents[row, node].item()
    return steps[::-1]


@given(drafts())
@settings(max_examples=60, deadline=None)
def test_ancestors_are_the_path(draft):
    validate(draft)
    ancestors = draft.ancestors()
    for row in range(len(draft.start)):
        for node in range(draft.size):
            assert ancestors[row, node].nonzero().flatten().tolist() == path(draft, row, node)
    composed = (ancestors.float() @ ancestors.float()) > 0
    assert torch.equal(composed, ancestors)  # reflexive and transitive


@given(forests())
@settings(max_examples=60, deadline=None)
def test_ancestors_in_forests_are_the_path(draft):
    """As far up as `trunk` and `levels` say is far enough, and a step less is not."""
    validate(draft)
    for row in range(len(draft.start)):
        for node in range(draft.size):
            columns = path(draft, row, node) if draft.valid[row, node] else [node]
            assert draft.ancestors()[row, node].nonzero().flatten().tolist() == columns
    loose = replace(draft, trunk=None, levels=None)
    assert torch.equal(loose.ancestors(), draft.ancestors())
    longest = max(len(path(draft, row, node)) for row in range(len(draft.start)) for node in range(draft.size))
    if longest == draft.trunk + draft.levels > 1:
        assert not torch.equal(replace(draft, trunk=draft.trunk - 1).ancestors(), draft.ancestors())


@given(drafts())
@settings(max_examples=60, deadline=None)
def test_depth_counts_draft_tokens_on_the_path(draft):
    for row in range(len(draft.start)):
        for node in range(draft.size):
            expected = sum(column >= draft.roots for column in path(draft, row, node)) if draft.valid[row, node] else 0
            assert draft.depth()[row, node] == expected
            assert draft.position()[row, node] == draft.start[row] + expected


@given(drafts(linear=True))
@settings(max_examples=60, deadline=None)
def test_linear_drafts_are_trees_too(draft):
    """Every answer of a chain is that of the same chain taken for a tree."""
    validate(draft)
    tree = Draft(draft.nodes, draft.parents, draft.start, roots=draft.roots, linear=False)
    assert torch.equal(draft.depth() * draft.valid, tree.depth())
    generator = torch.Generator().manual_seed(draft.nodes.sum().item())
    passes = torch.rand(draft.nodes.shape, generator=generator) < 0.7
    value = torch.randint(0, 4, draft.nodes.shape, generator=generator)
    assert torch.equal(equals_parent(draft, value) & draft.valid, equals_parent(tree, value) & draft.valid)
    one, other = deepest(draft, passes, value), deepest(tree, passes, value)
    assert torch.equal(one.keep.sort(-1).values, other.keep.sort(-1).values)
    assert torch.equal(one.count, other.count)
    assert torch.equal(one.accepted, other.accepted)
    alive = draft.parents[:, draft.roots - 1] != PAD
    assert torch.equal(one.judged[alive], other.judged[alive])
    assert torch.equal(one.pending.nodes[alive], other.pending.nodes[alive])
    for row, count in enumerate(one.count.tolist()):
        assert torch.equal(one.values[row, :count], other.values[row, :count])


@given(drafts(), st.data())
@settings(max_examples=60, deadline=None)
def test_commit_keeps_a_path_from_root_to_leaf(draft, data):
    rows = len(draft.start)
    alive = [draft.parents[row, draft.roots - 1].item() != PAD for row in range(rows)]
    leaves = []
    for row in range(rows):
        real = [draft.roots - 1, *(i for i in range(draft.roots, draft.size) if draft.valid[row, i])]
        leaves.append(data.draw(st.sampled_from(real)))
    extra = torch.arange(10, 10 + rows)
    verdict = commit(draft, torch.tensor(leaves), extra)
    for row in range(rows):
        kept = [column for column in verdict.keep[row].tolist() if column >= 0]
        count = verdict.count[row].item()
        if not alive[row]:
            assert kept == []
            assert count == 0
            assert not verdict.pending.valid[row].any()
            continue
        assert kept == path(draft, row, leaves[row])
        drafted = [draft.nodes[row, column].item() for column in kept if column >= draft.roots]
        assert verdict.values[row, :count].tolist() == [*drafted, 10 + row]
        assert verdict.accepted[row] == len(drafted)
        assert verdict.pending.start[row] == draft.start[row] + count
        assert verdict.pending.nodes[row].tolist() == [10 + row]
    validate(verdict.pending)


@given(drafts())
@settings(max_examples=60, deadline=None)
def test_deepest_is_the_longest_passing_path(draft):
    """Against a search of every node: none that passes all the way lies deeper, and the earliest of the deepest is kept."""
    generator = torch.Generator().manual_seed(draft.nodes.sum().item())
    passes = torch.rand(draft.nodes.shape, generator=generator) < 0.6
    value = torch.arange(draft.size).expand(draft.nodes.shape)
    verdict = deepest(draft, passes, value)
    for row in range(len(draft.start)):
        if draft.parents[row, draft.roots - 1] == PAD:
            assert verdict.count[row] == 0
            continue
        best, depth = draft.roots - 1, 0
        for node in range(draft.roots, draft.size):
            way = [column for column in path(draft, row, node) if column >= draft.roots]
            if draft.valid[row, node] and passes[row, way].all() and len(way) > depth:
                best, depth = node, len(way)
        assert verdict.accepted[row] == depth
        assert verdict.pending.nodes[row, 0] == best
        assert verdict.judged[row] == depth + (draft.parents[row] == best).any()


@given(st.integers(1, 4), st.integers(0, 5), st.lists(st.integers(0, 6), min_size=2, max_size=2))
@settings(max_examples=30, deadline=None)
def test_chains_respect_the_room(start, length, budget):
    pending = Draft.root(torch.tensor([1, 2]), torch.tensor([start, 0]), torch.tensor([True, False]))
    draft = pending.extend_chain(torch.zeros(2, length, dtype=torch.long), torch.tensor(budget))
    validate(draft)
    assert draft.linear
    assert draft.valid[:, 1:].sum(1).tolist() == [min(budget[0], length), 0]
    grown = pending
    for _ in range(length):
        grown = grown.extend_chain(torch.zeros(2, 1, dtype=torch.long), torch.tensor(budget))
    assert torch.equal(grown.parents, draft.parents)


def test_extending_keeps_distributions_beside_their_draft_tokens():
    pending = Draft.root(torch.tensor([1]), torch.tensor([0]))
    distributions = [Categorical(torch.randn(1, 1, 4)) for _ in range(3)]
    draft = pending
    for distribution in distributions:
        draft = draft.extend_chain(torch.zeros(1, 1, dtype=torch.long), torch.tensor([9]), distribution)
    assert torch.equal(draft.q.scores, torch.cat([distribution.scores for distribution in distributions], 1))


def test_distributions_are_recorded_for_every_draft_token_or_for_none():
    pending, distribution = Draft.root(torch.tensor([1]), torch.tensor([0])), Categorical(torch.randn(1, 1, 4))
    draft_token, budget = torch.zeros(1, 1, dtype=torch.long), torch.tensor([9])
    for first, second in ((distribution, None), (None, distribution)):
        with pytest.raises(ValueError, match="give q for every draft token, or for none"):
            pending.extend_chain(draft_token, budget, first).extend_chain(draft_token, budget, second)


def test_room_leaves_one_value_to_the_round():
    budget = Budget(torch.tensor([0, 1, 2, 5, 9]), 4)
    assert budget.draft_tokens.tolist() == [0, 0, 1, 4, 4]


@pytest.mark.parametrize(
    ("parents", "words"),
    [
        ([CONTEXT, 1], "parent 1 must be an earlier column"),
        ([CONTEXT, 2, 0], "parent 2 must be an earlier column"),
        ([CONTEXT, -3], "parent -3 must be an earlier column"),
        ([CONTEXT, PAD, 1], "parent 1 is PAD"),
        ([CONTEXT, CONTEXT], "must be a root or a draft token"),
    ],
)
def test_broken_trees_are_named(parents, words):
    draft = Draft(torch.zeros(1, len(parents), dtype=torch.long), torch.tensor([parents]), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match=words):
        validate(draft)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"trunk": 1}, "node 1: 2 roots on its path, but trunk says 1 at most"),
        ({"levels": 1}, "node 3: 2 draft tokens on its path, but levels says 1 at most"),
    ],
)
def test_paths_beyond_their_bounds_are_named(bounds, words):
    draft = Draft(torch.zeros(1, 4).long(), torch.tensor([[CONTEXT, 0, 1, 2]]), torch.zeros(1).long(), roots=2)
    validate(draft)
    with pytest.raises(ValueError, match=words):
        validate(replace(draft, **bounds))
