"""Groups of values: who shares one with whom, what a distribution gives to them, and vocabularies they are placed in."""

import warnings

import pytest
import torch

from mmspec.core.rules import groups as module
from mmspec.core.rules.groups import Groups

SIZE = 30
POINTS = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(0))


def members(groups: Groups) -> list[set[int]]:
    """The values of each group."""
    return [set(row.nonzero().flatten().tolist()) for row in groups.members.to_dense()]


def by_hand(alike) -> list[set[int]]:
    return [{y for y in range(SIZE) if y == x or alike(x, y)} for x in range(SIZE)]


def cosine(x: int, y: int) -> float:
    return torch.nn.functional.cosine_similarity(POINTS[x], POINTS[y], dim=0).item()


def far(x: int, y: int) -> float:
    return (POINTS[x].double() - POINTS[y].double()).norm().item()


def test_groups_are_what_they_say():
    assert members(Groups.by_cosine(POINTS, 0.4)) == by_hand(lambda x, y: cosine(x, y) >= 0.4)
    assert members(Groups.by_distance(POINTS, 2.0)) == by_hand(lambda x, y: far(x, y) <= 2.0)
    near = [sorted((y for y in range(SIZE) if y != x), key=lambda y, x=x: far(x, y))[:4] for x in range(SIZE)]
    assert members(Groups.nearest(POINTS, 4)) == by_hand(lambda x, y: y in near[x])
    assert members(Groups.nearest(POINTS, 0)) == by_hand(lambda x, y: False)
    labels = torch.arange(SIZE) % 7
    assert members(Groups.partition(labels)) == [set(range(label, SIZE, 7)) for label in range(7)]


def test_what_is_alone_is_in_no_group_but_its_own():
    alone = (0, SIZE - 1)
    for groups in (Groups.by_cosine(POINTS, 0.1, alone), Groups.by_distance(POINTS, 9.0, alone), Groups.nearest(POINTS, 9, alone)):
        found = members(groups)
        for value in alone:
            assert found[value] == {value}
            assert sum(value in group for group in found) == 1


def test_untrained_rows_stand_alone():
    points = POINTS.clone()
    points[3:6] = 0
    found = members(Groups.by_cosine(points, 0.01))
    assert [found[value] for value in (3, 4, 5)] == [{3}, {4}, {5}]


def test_neighbours_on_an_fsq_grid():
    grid = torch.cartesian_prod(*[torch.arange(3.0)] * 2)
    assert Groups.by_distance(grid, 1.0).sizes().tolist() == [3, 4, 3, 4, 5, 4, 3, 4, 3]


@pytest.mark.parametrize(
    "make", [lambda: Groups.by_cosine(POINTS, 0.3), lambda: Groups.nearest(POINTS, 3), lambda: Groups.partition(torch.arange(SIZE) % 4)]
)
def test_coarse_distributions_are_distributions(make):
    groups = make()
    probs = torch.rand(4, 2, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    coarse = groups.coarse(probs)
    inside = groups.members.to_dense().double()
    assert (coarse.sum(-1) - 1).abs().max() < 1e-12
    assert (coarse - probs @ (inside / inside.sum(0)).T).abs().max() < 1e-12
    amounts = torch.rand(3, inside.shape[0], dtype=torch.float64)
    assert (groups.mean(amounts) - amounts @ (inside / inside.sum(0))).abs().max() < 1e-12


def test_chunks_make_no_difference(monkeypatch):
    whole = [members(make()) for make in (lambda: Groups.by_cosine(POINTS, 0.3), lambda: Groups.nearest(POINTS, 3))]
    monkeypatch.setattr(module, "_ENTRIES", 3 * SIZE)
    assert whole == [members(make()) for make in (lambda: Groups.by_cosine(POINTS, 0.3), lambda: Groups.nearest(POINTS, 3))]


def test_shared_or_not():
    assert Groups.by_cosine(POINTS, 0.3).shared
    assert not Groups.by_cosine(POINTS, 1.01).shared
    assert not Groups.partition(torch.randperm(SIZE)).shared


def test_placed_in_a_vocabulary():
    groups = Groups.by_distance(POINTS, 2.0)
    values = 2 * torch.arange(SIZE) + 5
    placed = groups.placed(values, 100)
    found = members(placed)
    assert placed.values == 100
    assert found[:SIZE] == [{2 * code + 5 for code in group} for group in members(groups)]
    assert sorted(value for group in found[SIZE:] for value in group) == [v for v in range(100) if v not in values.tolist()]
    for wrong, size in ((values[:-1], 100), (values, 50), (torch.zeros_like(values), 100)):
        with pytest.raises(ValueError, match="name one value below"):
            groups.placed(wrong, size)


def test_nothing_is_said_about_beta():
    """Sparse matrices warn when they are made; here nobody is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Groups.by_cosine(POINTS, 0.3).coarse(torch.ones(SIZE) / SIZE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Groups.by_cosine(POINTS[0], 0.3), "one row a value"),
        (lambda: Groups.nearest(POINTS, SIZE), f"count is {SIZE}"),
        (lambda: Groups.by_cosine(POINTS, 0.3).coarse(torch.ones(SIZE + 1)), "use groups.placed"),
    ],
)
def test_bad_groups_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
