import pytest
import torch

from mmspec.core.processors.history import History
from mmspec.core.processors.raster import FREE, Grammar, Raster

CLOSED = Raster.grid(2, 3, 5, row_end=5, tail=(6, 7))


def test_a_bare_grid():
    raster = Raster.grid(2, 3, 5)
    assert raster.length == 6
    assert raster.values == 5
    assert raster.controls == 0
    assert raster.left == (FREE, 0, 1, FREE, 3, 4)
    assert raster.up == (FREE, FREE, FREE, 0, 1, 2)
    assert raster.cells == tuple(range(6))


def test_neighbours_know_where_the_controls_stand():
    assert CLOSED.forced == (FREE, FREE, FREE, 5, FREE, FREE, FREE, 5, 6, 7)
    assert CLOSED.left == (FREE, 0, 1, FREE, FREE, 4, 5, FREE, FREE, FREE)
    assert CLOSED.up == (FREE, FREE, FREE, FREE, 0, 1, 2, FREE, FREE, FREE)
    assert CLOSED.values == 8


def test_one_behind_the_other():
    both = CLOSED.behind(Raster.grid(1, 2, 5, row_end=8))
    assert both.length == 13
    assert both.forced[:3] == (FREE, FREE, 8)
    assert both.left[3:] == tuple(FREE if place == FREE else place + 3 for place in CLOSED.left)
    assert both.cells == (3, 4, 5, 7, 8, 9)
    assert both.values == 9
    for position, above in enumerate(both.up):
        assert above < position


def test_the_picture_leaves_controls_out():
    sequences = torch.arange(20).view(2, 10)
    assert CLOSED.picture(sequences).tolist() == [[[0, 1, 2], [4, 5, 6]], [[10, 11, 12], [14, 15, 16]]]


def test_the_grammar_forces_controls_and_bans_them_elsewhere():
    position = torch.arange(12).view(2, 6)
    scores = torch.zeros(2, 6, 8)
    distribution = Grammar(CLOSED).at(scores, position).softmax(-1)
    for place, probs in zip(position.flatten().tolist(), distribution.flatten(0, 1), strict=True):
        forced = CLOSED.forced[min(place, 9)]
        assert torch.allclose(probs, torch.eye(8)[forced] if forced != FREE else torch.tensor([0.2] * 5 + [0.0] * 3))
    history = History(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 6, 0, dtype=torch.bool), position)
    assert torch.equal(Grammar(CLOSED)(scores, history).softmax(-1), distribution)


def test_the_grammar_of_a_bare_grid_changes_nothing():
    scores = torch.randn(1, 4, 5)
    assert Grammar(Raster.grid(2, 2, 5)).at(scores, torch.arange(4)[None]) is scores


@pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        Raster.grid(*sizes)
