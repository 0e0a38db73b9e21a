"""Targets of vectors with explicit distributions, quadrature, and the test that sees small biases: projected standardised residuals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.distributions import reflection
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.base import commit
from mmspec.core.rules.token import Token
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping

REJECTED = 1e-6
"""What a planted bug must fall below."""


# --- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Markov:
    """A target whose distribution after a value is `distribution(value)`; the value before the first is 0, and the prompt is the number of
    rows."""

    distribution: Callable[[Tensor], Any]  # [B, N, d] -> distributions [B, N]
    width: int

    def begin(self, prompt: int) -> tuple["MarkovSession", Draft]:
        return MarkovSession(self), Draft.root(torch.zeros(prompt, self.width, dtype=torch.float64), torch.zeros(prompt, dtype=torch.long))


class MarkovSession:
    def __init__(self, target: Markov):
        self.target, self.scored = target, 0

    def score(self, draft: Draft) -> Scored:
        first, self.scored = self.scored, draft.size
        return Scored(self.target.distribution(draft.nodes[:, first:]))

    def commit(self, keep: Tensor, most: int) -> None:
        self.scored = 0


@dataclass(frozen=True)
class Linear:
    """x' ~ N(a x + b, scale^2): the joint distribution of a run is Gaussian, with mean and covariance in closed form."""

    a: Tensor  # [d, d]
    b: Tensor  # [d]
    scale: Tensor  # [d]

    def __call__(self, x: Tensor) -> Gaussian:
        return Gaussian((x[..., None, :] * self.a).sum(-1) + self.b, self.scale)  # the same sum in a batch of any shape

    @property
    def target(self) -> Markov:
        return Markov(self, len(self.b))

    def whitened(self, runs: Tensor) -> Tensor:
        """`runs` [R, n, d] in coordinates in which they are N(0, I): [R, n d]."""
        length, width = runs.shape[1:]
        mean, cov = torch.zeros(length, width).double(), torch.zeros(length, width, length, width).double()
        here, spread = torch.zeros(width).double(), torch.zeros(width, width).double()
        for i in range(length):
            here, spread = self.a @ here + self.b, self.a @ spread @ self.a.T + torch.diag(self.scale**2)
            mean[i], cov[i, :, i] = here, spread
            later = spread
            for j in range(i + 1, length):
                later = self.a @ later
                cov[j, :, i], cov[i, :, j] = later, later.T
        root = torch.linalg.cholesky(cov.reshape(length * width, -1))
        return torch.linalg.solve_triangular(root, (runs - mean).flatten(1).T, upper=False).T


def linear_pair(width: int = 2, gap: float = 0.6, seed: int = 0) -> tuple[Linear, Linear]:
    """A target and a drafter of equal scales whose means are somewhat off."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).double()

    a, b, scale = 0.7 * torch.eye(width).double() + 0.1 * random(width, width), random(width), 0.3 + random(width).abs()
    return Linear(a, b, scale), Linear(a - 0.15 * gap * random(width, width), b + gap * scale * random(width) / width**0.5, scale)


def vectors_run(target: Any, drafter: Any, rule: Any, rows: int, *, most: int, length: int, seed: Any = 0) -> tuple[Tensor, Stats]:
    """A whole generation of `decode`: every row's values [B, most, d], and what it took."""
    noise = Noise.from_seed(seed, rows)
    out = generate(target, drafter, rule, rows, stopping=DefaultStopping(rows, most), noise=noise, control=Fixed(length))
    return out.sequences, out.stats


# --- tests of samples -------------------------------------------------------------------------------------------------


def normal(values: Tensor) -> float:
    """p-value that `values` are standard normal."""
    return float(stats.kstest(values.double().flatten().numpy(), "norm").pvalue)


def projected(p: Any, q: Any, runs: Tensor) -> float:
    """p-value that runs [R, n, d] follow `p`: the part of (x - m_p) / scale along m_q - m_p, which an exact rule makes N(0, 1)
    whatever the draft, and into which a wrong one puts all its bias."""
    before = torch.cat([torch.zeros_like(runs[:, :1]), runs[:, :-1]], 1)
    own, drafted = p(before), q(before)
    z, gap = (runs - own.mean) / own.scale, own.gap(drafted)
    return normal((z * reflection.direction(gap)).sum(-1)[reflection.distance(gap) > 0])


def lines(values: Tensor, count: int = 20, seed: int = 5) -> float:
    """p-value that `values` [R, n] are N(0, I): random projections and the length, the least of all times their number."""
    at = torch.randn(values.shape[1], count, generator=torch.Generator().manual_seed(seed)).double()
    found = [normal(line) for line in (values @ (at / at.norm(dim=0))).T]
    found.append(float(stats.kstest((values**2).sum(1).numpy(), stats.chi2(values.shape[1]).cdf).pvalue))
    return min(1.0, min(found) * len(found))


def streams(rows: int, seed: int = 0, columns: int = 1) -> Keys:
    """Keys [rows, columns] like no others."""
    return Noise.from_seed(seed, rows).value(torch.arange(columns).expand(rows, columns))


def within(hits: Tensor, chance: Tensor) -> bool:
    """Is the share of `hits` [R] within four standard errors of the mean of `chance`?"""
    goal = float(chance.double().mean())
    return abs(float(hits.double().mean()) - goal) < 4 * (goal * (1 - goal) / hits.numel()) ** 0.5


# --- quadrature -------------------------------------------------------------------------------------------------------


def nodes(*breaks: Any, count: int = 60) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights [..., M] on the intervals between `breaks` (numbers or [...]), in order: no kink inside."""
    at, weight = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(count))
    ends = torch.stack(torch.broadcast_tensors(*(torch.as_tensor(b, dtype=torch.float64) for b in breaks)), -1)
    low, high = ends[..., :-1, None], ends[..., 1:, None]
    half = ((high - low) / 2).clamp(min=0)
    return (low + half * (at + 1)).flatten(-2), (half * weight).flatten(-2)


def grid(width: int, reach: float, count: int) -> tuple[Tensor, float]:
    """Points [M, 1, width] of a square grid around 0 and the volume of a cell: what is smooth is summed to the last digit."""
    line = torch.linspace(-reach, reach, count, dtype=torch.float64)
    points = torch.cartesian_prod(*(line for _ in range(width))).view(-1, 1, width)
    return points, float((line[1] - line[0]) ** width)


def emitted_error(rule: Any, p: Any, q: Any, x: Tensor, cell: float) -> float:
    """The largest error of a committed value's density at `x` [M, 1, d], distributions [M, 1]: q a + (mass of q refused) x (density of what
    replaces).

    The replacement's density is read off `keep_prob`, as p keep_prob / its integral.
    """
    own, drawn = p.prob(x)[:, 0], q.prob(x)[:, 0]
    assert abs(own.sum() * cell - 1) < 1e-8  # the grid holds the distribution
    assert abs(drawn.sum() * cell - 1) < 1e-8
    accepts = rule.accept_prob(p, q, x)[:, 0]
    left = rule.replacement(p, q, x)
    kept = own * (left.keep_prob(x)[:, 0] if hasattr(left, "keep_prob") else 1)
    refused = (drawn * (1 - accepts)).sum() * cell
    return float((drawn * accepts + refused * kept / (kept.sum() * cell) - own).abs().max())


# --- planted bugs -----------------------------------------------------------------------------------------------------


class FromTarget(Token):
    """After a rejection, drawn from p as it is (STRIDE)."""

    def replacement(self, p, q, x):
        return p


class MeanOverDims(Token):
    """The log-ratio averaged over the coordinates, where it is a sum."""

    def accept_prob(self, p, q, x):
        return (p.log_ratio(q, x) / x.shape[-1]).exp().clamp(max=1)


@dataclass(frozen=True)
class SigmaFactor(Token):
    """CSpD's factor in the ratio, and in what is left."""

    factor: float = 0.8

    def accept_prob(self, p, q, x):
        return (self.factor * p.log_ratio(q, x).exp()).clamp(max=1)

    def replacement(self, p, q, x):
        return p.residual(q, x, torch.full(x.shape[:2], self.factor, dtype=torch.float64))


class NoRollback(Token):
    """Every draft token judged on its own: refused ones are replaced where they stand, those behind them stay (CSpD's code)."""

    def __call__(self, draft, scored, noise):
        if draft.size == draft.roots:
            return super().__call__(draft, scored, noise)
        first, last = draft.roots - 1, draft.valid[:, draft.roots :].sum(-1) + draft.roots - 1
        p = scored.p.at(torch.arange(first, draft.size - 1).expand(len(draft.start), -1))
        position = draft.position()[:, first:-1]
        passes = noise.accept(position, draft.start).below(self.accept_prob(p, draft.q, draft.draft_tokens))
        mended = p.residual(draft.q, draft.draft_tokens).sample(noise.residual(position, draft.start))
        draft.nodes[:, draft.roots :] = torch.where(passes[..., None], draft.draft_tokens, mended)
        own = scored.p.at(last[:, None]).sample(noise.value(draft.position().gather(1, last[:, None])))
        return commit(draft, last, own[:, 0])
