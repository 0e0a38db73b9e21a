"""The one coordinate that two Gaussians of equal scales differ in, by quadrature."""

import math

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions import reflection
from mmspec.core.distributions.gaussian import Gaussian
from tests.oracles.gaussians import nodes

TINY, SEEN = 1e-9, 1e-3
GAPS = [1e-3, 0.2, 1.0, 3.0, 8.0]
WEIGHTS = [1.0, 0.99, 0.7, 0.3, 0.02]


def phi(s: Tensor) -> Tensor:
    return torch.exp(-0.5 * s**2) / math.sqrt(2 * math.pi)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_mass_is_the_integral_of_what_the_weighted_target_has_more(weight, gap):
    edge = reflection.edge(number(weight), number(gap))
    s, by = nodes(-12.0, edge.clamp(-12, 20), 20.0, count=200)
    over = (weight * phi(s - gap) - phi(s)).clamp(min=0)
    assert abs((over * by).sum() - reflection.mass(number(weight), number(gap))) < TINY
    if weight == 1:
        assert abs(1 - reflection.mass(number(weight), number(gap)) - reflection.agreement(number(gap))) < TINY


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_half_line_is_drawn_by_its_distribution_function(weight, gap):
    w, d = number(weight), number(gap)
    mass = reflection.mass(w, d)
    if mass < 1e-12:
        return  # never drawn from
    uniform = torch.linspace(0.001, 0.999, 37, dtype=torch.float64)
    found = reflection.half_line(w, d, uniform)
    edge = reflection.edge(w, d)
    assert (found >= edge).all()
    s, by = nodes(edge.expand_as(found), found, count=80)
    below = ((weight * phi(s - gap) - phi(s)) * by).sum(-1) / mass
    assert (below - (1 - uniform)).abs().max() < 1e-8
    mirrored = gap - found  # the other side: where q has more
    assert ((weight * phi(mirrored - gap) - phi(mirrored)) <= 1e-12).all() or weight < 1


def test_the_ends_of_the_range():
    zero, inf, half = number(0.0), number(math.inf), number(0.5)
    assert reflection.mass(number(1.0), zero) == 0
    assert reflection.mass(half, zero) == 0
    assert reflection.mass(half, inf) == 0.5
    assert reflection.mass(zero, number(1.0)) == 0
    assert reflection.mass(number(1.0), number(1e-9)) >= 0
    assert reflection.agreement(zero) == 1
    assert reflection.units(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 0.0]), torch.zeros(1)).tolist() == [0, math.inf]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_reflection_commits_the_targets_density(width):
    """q(y) a(y) + q(x) (1 - a(x)) = p(y) at y, the image of x, and the map keeps volumes: the change of variables is the proof."""
    generator = torch.Generator().manual_seed(width)
    mean, other, scale = (torch.randn(width, generator=generator, dtype=torch.float64) for _ in range(3))
    scale = 0.3 + scale.abs()
    x = other + 2 * scale * torch.randn(400, 1, width, generator=generator, dtype=torch.float64)
    p, q = (Gaussian(m.expand_as(x), scale) for m in (mean, other))

    def image(x: Tensor) -> Tensor:
        return p.mirrored(q, x)

    y = image(x)
    accepts = p.log_ratio(q, x).exp().clamp(max=1)
    there = p.log_ratio(q, y).exp().clamp(max=1)
    assert (q.prob(y) * there + q.prob(x) * (1 - accepts) - p.prob(y)).abs().max() < TINY
    one = Gaussian(p.mean[0], p.scale[0]), Gaussian(q.mean[0], q.scale[0])
    slope = torch.autograd.functional.jacobian(lambda v: one[0].mirrored(one[1], v[None])[0], x[0, 0])
    assert abs(torch.linalg.det(slope).abs() - 1) < TINY  # pyright: ignore[reportArgumentType]
    for wrong in (x, p.mean + (x - q.mean), 2 * p.mean - x):  # kept, moved along, thrown to the wrong side
        there = p.log_ratio(q, wrong).exp().clamp(max=1)
        assert (q.prob(wrong) * there + q.prob(x) * (1 - accepts) - p.prob(wrong)).abs().max() > SEEN


def test_what_only_points_tell_apart_is_kept_as_it_is():
    gap = torch.tensor([[math.inf, 0.3], [0.0, 0.0]], dtype=torch.float64)
    assert reflection.direction(gap).tolist() == [[0, 0], [0, 0]]
    z = torch.tensor([[0.0, 0.7], [0.4, -0.2]], dtype=torch.float64)
    assert torch.equal(reflection.reflected(z, gap), z)
    tiny = torch.tensor([3e-100, 4e-100], dtype=torch.float64)
    assert torch.allclose(reflection.direction(tiny), torch.tensor([0.6, 0.8], dtype=torch.float64))
