"""What is left of distributions without a table, drawn by trying: over values of any shape."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.thinning import Density, ImplicitDistribution, ResidualByThinning, same
from mmspec.core.noise import Keys
from mmspec.core.rules.block import Block
from mmspec.core.rules.sibling_rules import with_replacement_rule
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, sampled
from tests.oracles.gaussians import REJECTED, Markov, emitted_error, grid, normal, streams, vectors_run
from tests.oracles.statistics import FAIL, PASS, chi_square


@dataclass(frozen=True)
class Stack(Density):
    """Two vectors, the second around the first: values [2, d]. The numbers come off the second of two streams."""

    mean: Tensor  # [..., d]
    streams = 2  # pyright: ignore[reportAssignmentType]

    def parts(self, x: Tensor) -> tuple[Gaussian, Gaussian]:
        one = torch.ones(1, dtype=torch.float64)
        return Gaussian(self.mean, one), Gaussian(0.5 * x[..., 0, :] + self.mean, 0.7 * one)

    def log_prob(self, x: Tensor) -> Tensor:
        first, second = self.parts(x)
        return first.log_prob(x[..., 0, :]) + second.log_prob(x[..., 1, :])

    def sample(self, keys: Keys) -> Tensor:
        width = self.mean.shape[-1]
        numbers = keys.branch(2)[..., 1].normal(2 * width).unflatten(-1, (2, width))
        first = self.mean + numbers[..., 0, :]
        return torch.stack([first, 0.5 * first + self.mean + 0.7 * numbers[..., 1, :]], -2)

    def mode(self) -> Tensor:
        return torch.stack([self.mean, 1.5 * self.mean], -2)

    def picked(self, rows: Tensor, columns: Tensor) -> "Stack":
        return Stack(self.mean[rows, columns])


@dataclass(frozen=True)
class Dice(ImplicitDistribution):
    """Whole numbers, as scalars."""

    probs_: Tensor  # [..., V]
    streams = 1  # pyright: ignore[reportAssignmentType]

    def log_prob(self, x: Tensor) -> Tensor:
        return self.probs_.log().gather(-1, x[..., None])[..., 0]

    def sample(self, keys: Keys) -> Tensor:
        return keys.branch(1)[..., 0].choose(self.probs_.log())

    def mode(self) -> Tensor:
        return self.probs_.argmax(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> "Dice":
        return Dice(self.probs_[rows, columns])


def around(at: float, rows: int) -> Stack:
    return Stack(torch.tensor([at, -at], dtype=torch.float64).expand(rows, 1, 2))


def test_thinning_mends_stacks_of_vectors():
    """Accepted or replaced, the two vectors are the target's: every coordinate and the dependence between them."""
    rows = 8_000
    p, q = around(0.4, rows), around(-0.1, rows)
    x = q.sample(streams(rows))
    taken = streams(rows, seed=10**6).below(Token().accept_prob(p, q, x))
    left = p.residual(q, x).where(~taken, p)
    mended = torch.where(taken[..., None, None], x, left.sample(streams(rows, seed=10**7)))
    careless = torch.where(taken[..., None, None], x, p.sample(streams(rows, seed=10**7)))
    first, second = p.parts(mended)
    for distribution, part in ((first, mended[..., 0, :]), (second, mended[..., 1, :])):
        z = (part - distribution.mean) / distribution.scale
        assert normal(z[..., 0]) > PASS
        assert normal((z[..., 0] - z[..., 1]) / 2**0.5) > PASS
    z = (careless[..., 0, :] - p.mean)[..., 0] - (careless[..., 0, :] - p.mean)[..., 1]
    assert normal(z / 2**0.5) < REJECTED


def test_rows_that_are_not_replaced_draw_what_the_target_draws():
    p, q, keys = around(0.4, 32), around(-0.1, 32), streams(32)
    active = torch.arange(32)[:, None] % 2 == 0
    found = p.residual(q, q.sample(keys)).where(active, p).sample(keys)
    assert torch.equal(found[1::2], p.sample(keys)[1::2])
    assert not torch.equal(found[::2], p.sample(keys)[::2])


def test_single_numbers_too():
    rows, probs = 20_000, torch.tensor([0.5, 0.3, 0.2]).double()
    p, q = Dice(probs.expand(rows, 1, 3)), Dice(torch.tensor([0.2, 0.2, 0.6]).double().expand(rows, 1, 3))
    x = q.sample(streams(rows))
    assert chi_square(p.residual(q, x).sample(streams(rows, seed=50_000)), torch.tensor([0.3, 0.1, 0.0])) > PASS
    struck = p.without(torch.zeros(rows, 1).long()).sample(streams(rows, seed=90_000))
    assert chi_square(struck, torch.tensor([0.0, 0.3, 0.2])) > PASS
    assert chi_square(struck, probs) < FAIL
    keys, columns = streams(5, columns=3), torch.tensor([[2, 0]] * 5)
    wide = Dice(probs.expand(5, 3, 3))
    drawn = wide.sample(keys)
    assert wide.draws(keys, columns, drawn.gather(1, columns)).all()
    assert not wide.draws(keys, columns, (drawn.gather(1, columns) + 1) % 3).any()
    assert wide.tops(columns, torch.zeros(5, 2).long()).all()


@dataclass(frozen=True)
class Slope(Density):
    """1-D: density 1 + slope x on (-1/2, 1/2), drawn by inversion: a distribution that is no Gaussian's kin."""

    slope: Tensor  # [..., 1]
    streams = 0  # pyright: ignore[reportAssignmentType]

    def log_prob(self, x: Tensor) -> Tensor:
        return (1 + self.slope * x)[..., 0].log()

    def sample(self, keys: Keys) -> Tensor:
        u = keys.uniform()[..., None]
        root = (1 + self.slope * (self.slope / 4 - 1 + 2 * u)).sqrt()
        return torch.where(self.slope.abs() < 1e-12, u - 0.5, (root - 1) / self.slope)

    def mode(self) -> Tensor:
        return 0.5 * self.slope.sign()

    def picked(self, rows: Tensor, columns: Tensor) -> "Slope":
        return Slope(self.slope[rows, columns])

    def last(self, count: int) -> "Slope":
        return Slope(self.slope[:, -count:])

    def cat(self, other: "Slope") -> "Slope":
        return Slope(torch.cat([self.slope, other.slope], 1))


@pytest.mark.parametrize("slopes", [(1.5, -0.5), (-1.9, 1.9), (0.3, 0.2)])
def test_thinning_by_quadrature(slopes):
    """The committed value's density is p, by integrals over polynomials that a midpoint rule gets right between the kinks."""
    count = 2_000
    x = ((torch.arange(count).double() + 0.5) / count - 0.5).view(-1, 1, 1)
    p, q = (Slope(torch.tensor(slope).double().expand(count, 1, 1)) for slope in slopes)
    assert emitted_error(Token(), p, q, x, 1 / count) < 1e-9
    weight = torch.full((count, 1), 0.8, dtype=torch.float64)
    left = (p.prob(x) * p.residual(q, x, weight).keep_prob(x))[:, 0]
    assert (0.8 * left - (0.8 * p.prob(x) - q.prob(x))[:, 0].clamp(min=0)).abs().max() < 1e-12

    class Overcautious(Token):
        def replacement(self, p, q, x):
            return Squared(p, q, x)

    class Squared(ResidualByThinning):
        def keep_prob(self, f):
            return super().keep_prob(f) ** 2

    assert emitted_error(Overcautious(), p, q, x, 1 / count) > 1e-3


def test_the_first_try_is_what_the_target_draws():
    """Kept wherever q says nothing at all of it."""
    p = Slope(torch.full((50, 1, 1), 0.9).double())
    left = p.residual(Slope(torch.full((50, 1, 1), -0.9).double()), p.mode())
    found, first = left.sample(streams(50)), p.sample(streams(50))
    moved = (found != first)[..., 0]
    assert moved.any()
    assert not moved[first[..., 0] > 0.45].all()


def test_points_share_nothing_with_densities():
    p = around(0.3, 4)
    x = p.mode()
    assert (p.log_ratio(None, x) == -torch.inf).all()
    assert (p.tv(None, x) == 1).all()
    assert p.residual(None, x) is p
    assert p.without(x) is p


def test_equality_of_values_of_any_shape():
    x = torch.zeros(2, 3, 4, 5)
    y = x.clone()
    y[1, 2, 3, 4] = 1
    assert same(x, y, 2).tolist() == [[True] * 3, [True, True, False]]
    assert same(x[..., 0, 0], x[..., 0, 0], 2).all()


def test_rules_that_read_tables_are_refused():
    p = Markov(lambda x: Slope(0.1 * x.clamp(-1, 1)), 1)
    for rule in (Block(), with_replacement_rule()):
        with pytest.raises(ValueError, match=r"has no table of values: judge by token"):
            vectors_run(p, ModelDrafter(p, Chain(sampled)), rule, 2, most=4, length=2)


def test_a_grid_holds_what_it_should():
    x, cell = grid(2, 3.0, 7)
    assert x.shape == (49, 1, 2)
    assert cell == 1.0


def test_what_is_drawn_does_not_depend_on_the_other_rows():
    """Near distributions take many tries, and a full batch makes fewer of them at a time than one row alone."""
    rows, keys = 120, streams(120, 3)
    p = Stack(torch.zeros(rows, 1, 2, dtype=torch.float64))
    q = Stack(torch.full((rows, 1, 2), 0.02, dtype=torch.float64))
    x = p.sample(streams(rows, 4))
    together = ResidualByThinning(p, q, x).sample(keys)
    for row in range(0, rows, 7):
        few = torch.tensor([[row]]), torch.tensor([[0]])
        alone = ResidualByThinning(p.picked(*few), q.picked(*few), x[row : row + 1]).sample(keys[row : row + 1])
        assert alone.equal(together[row : row + 1])
