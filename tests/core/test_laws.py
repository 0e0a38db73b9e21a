"""Categorical distributions: the residual is where the lost mass lies, whatever the numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.distributions.categorical import Categorical

TINY = 1e-12


@st.composite
def distributions(draw, size: int = 4):
    """A distribution with some impossible values, scores not normalised."""
    weights = draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 5.0)), min_size=size, max_size=size).filter(lambda w: sum(w) > 0))
    return Categorical.of(torch.tensor([[weights]], dtype=torch.float64))


@given(distributions(), distributions(), st.floats(0.01, 1.0))
@settings(max_examples=80, deadline=None)
def test_residual_is_what_q_leaves_of_p(p, q, weight):
    x = torch.zeros(1, 1, dtype=torch.long)
    for scale in (None, torch.tensor([[weight]], dtype=torch.float64)):
        left = ((1 if scale is None else weight) * p.probs() - q.probs()).clamp(min=0)
        got = p.residual(q, x, scale).probs()
        if left.sum() > 1e-9:
            assert (got - left / left.sum()).abs().max() < 1e-6
        assert abs(got.sum().item() - 1) < TINY
        assert (got >= 0).all()


@given(distributions(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_residual_of_a_point_mass_strikes_it_out(p, x):
    value = torch.tensor([[x]])
    got, probs = p.residual(None, value).probs(), p.probs().clone()
    if probs[0, 0, x] < 1:
        probs[0, 0, x] = 0
        assert (got - probs / probs.sum()).abs().max() < 1e-9
        point = Categorical.point(value, 4, torch.float64)
        assert (got - p.residual(point, value).probs()).abs().max() < 1e-6
    else:
        assert torch.equal(got, probs)  # nothing else is possible


@given(distributions(), distributions(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_distances_and_probabilities(p, q, x):
    value = torch.tensor([[x]])
    assert abs(p.tv(q, value).item() - 0.5 * (p.probs() - q.probs()).abs().sum().item()) < TINY
    point = Categorical.point(value, 4, torch.float64)
    assert abs(p.tv(None, value).item() - p.tv(point, value).item()) < 1e-9
    assert abs(p.prob(value).item() - p.probs()[0, 0, x].item()) < TINY
    assert abs(p.log_prob(value).exp().item() - p.log_probs().exp()[0, 0, x].item()) < TINY
    assert p.probs()[0, 0, p.mode()[0, 0]] == p.probs().max()


def test_distributions_are_indexed_chosen_and_joined_by_node():
    one, other = Categorical(torch.randn(2, 3, 4)), Categorical(torch.randn(2, 3, 4))
    index = torch.tensor([[2, 0], [1, 1]])
    picked = one.at(index).scores
    for row in range(2):
        assert torch.equal(picked[row], one.scores[row, index[row]])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.equal(one.where(mask, other).scores, torch.where(mask[..., None], one.scores, other.scores))
    assert one.cat(other).scores.shape == (2, 6, 4)
    assert torch.equal(one.cat(other).last(3).scores, other.scores)
    assert one.last(0).scores.shape == (2, 0, 4)
    assert torch.equal(one.cat(other).at(torch.tensor([[3], [5]])).scores[1, 0], other.scores[1, 2])
