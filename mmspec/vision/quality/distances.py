"""How far apart two sets of pictures are: on features, on codes, and level by level. Nothing here is downloaded or trained.

Every measure comes twice. `frechet(a, b)` takes two sets. `frechet_over(features, sides)` takes N pictures and R ways to make two
sets out of them, as counts, and returns all R distances at once: random halves, permutations and bootstrap samples are then one
matrix product instead of R passes over the pictures. Everything is computed in float64, on the pictures' device.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_ENTRIES = 2**22
"""About how many float64 numbers a working block holds (32 MiB)."""


@dataclass(frozen=True, slots=True)
class Sides:
    """R ways to make two sets out of N pictures. No picture may be on both sides of one row, or the sets are not independent."""

    a: Tensor  # [R, N] float64: how often picture n is in the first set
    b: Tensor  # [R, N] and in the second

    @staticmethod
    def of(first: int, second: int, device: torch.device) -> "Sides":
        """One row: the first `first` pictures against the `second` that follow."""
        a = (torch.arange(first + second, device=device) < first).double()[None]
        return Sides(a, 1 - a)

    def split(self, rounds: int) -> Iterator["Sides"]:
        """The same rows, at most `rounds` (and at least 1) at a time."""
        size = max(1, rounds)
        for a, b in zip(self.a.split(size), self.b.split(size), strict=True):
            yield Sides(a, b)


# --- features ---------------------------------------------------------------------------------------------------------


def frechet(a: Tensor, b: Tensor) -> float:
    """Frechet distance of the normal distributions fitted to features [n, F] and [m, F] (Heusel et al. 2017). Biased upwards by about
    1/n."""
    return frechet_over(torch.cat([a, b]), Sides.of(len(a), len(b), a.device)).item()


def frechet_over(features: Tensor, sides: Sides) -> Tensor:
    """The Frechet distance of every row of `sides`, [R]; features [N, F]."""
    x = features.double()
    x = x - x.mean(0)  # shifts change nothing, and moments about the middle lose fewer digits
    parts = sides.split(_ENTRIES // x.shape[1] ** 2)
    return torch.cat([frechet_of_normals(*_moments(x, part.a), *_moments(x, part.b)) for part in parts])


def frechet_of_normals(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> Tensor:
    """|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2)) for means [..., F] and covariances [..., F, F]; singular ones are fine, [...].

    C_a C_b is not symmetric, but root(C_a) C_b root(C_a) has the same eigenvalues and is.
    """
    values, vectors = torch.linalg.eigh(cov_a.double())
    root = vectors * values.clamp_min(0).sqrt()[..., None, :] @ vectors.mT
    product = root @ cov_b.double() @ root
    overlap = torch.linalg.eigvalsh((product + product.mT) / 2).clamp_min(0).sqrt().sum(-1)
    traces = (cov_a + cov_b).diagonal(dim1=-2, dim2=-1).double().sum(-1)
    return ((mean_a - mean_b).double().square().sum(-1) + traces - 2 * overlap).clamp_min(0)


def _moments(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Means [R, F] and unbiased covariances [R, F, F] of the sets that `counts` [R, N] makes of x [N, F]."""
    size, width = counts.sum(1), x.shape[1]
    mean = counts @ x / size[:, None]
    second = x.new_empty(len(counts), width, width)
    for i in range(width):
        second[:, i, i:] = second[:, i:, i] = counts @ (x[:, i, None] * x[:, i:])
    return mean, (second - size[:, None, None] * mean[:, :, None] * mean[:, None]) / (size - 1)[:, None, None]


def kernel_distance(a: Tensor, b: Tensor) -> float:
    """Squared maximum mean discrepancy of features [n, F] and [m, F], unbiased (KID, Binkowski et al. 2018).

    The kernel is (x.y / F + 1)^3. The mean over sets of one distribution is 0 at every size, so it may come out negative.
    """
    return kernel_over(torch.cat([a, b]), Sides.of(len(a), len(b), a.device)).item()


def kernel_over(features: Tensor, sides: Sides) -> Tensor:
    """The kernel distance of every row of `sides`, [R]; features [N, F]. The N x N kernel matrix is made a block at a time.

    A picture is never paired with itself, nor with its own copy in a bootstrap sample: such pairs would bias the distance.
    """
    x = features.double()
    a, b = sides.a.mT, sides.b.mT  # [N, R]
    within_a, within_b, across = (x.new_zeros(len(sides.a)) for _ in range(3))
    own = (x.square().sum(1) / x.shape[1] + 1) ** 3
    for rows in torch.arange(len(x), device=x.device).split(max(1, _ENTRIES // len(x))):
        kernel = (x[rows] @ x.mT / x.shape[1] + 1) ** 3
        met_b = kernel @ b
        within_a += (a[rows] * (kernel @ a)).sum(0)
        within_b += (b[rows] * met_b).sum(0)
        across += (a[rows] * met_b).sum(0)

    def mean_pair(within: Tensor, counts: Tensor) -> Tensor:
        return (within - own @ counts.square()) / (counts.sum(0).square() - counts.square().sum(0))

    return mean_pair(within_a, a) + mean_pair(within_b, b) - 2 * across / (a.sum(0) * b.sum(0))


def precision_recall(real: Tensor, made: Tensor, neighbours: int = 3) -> tuple[float, float]:
    """Shares of made pictures near a real one, and of real ones near a made one (Kynkaanniemi et al. 2019); features [n, F], [m, F].

    Near means within that picture's distance to its `neighbours`-th neighbour in its own set.
    """
    for name, side in (("real", real), ("made", made)):
        if len(side) <= neighbours:
            raise ValueError(f"{name} has {len(side)} pictures: it needs more than neighbours={neighbours}; make more, or ask for fewer")
    return _covered(made, real, neighbours), _covered(real, made, neighbours)


def _covered(points: Tensor, centres: Tensor, neighbours: int) -> float:
    points, centres = points.double(), centres.double()
    size = max(1, _ENTRIES // len(centres))
    exact = "donot_use_mm_for_euclid_dist"  # the quick way leaves a picture at a distance from itself
    radius = torch.cat([torch.cdist(c, centres, compute_mode=exact).kthvalue(neighbours + 1, 1).values for c in centres.split(size)])
    near = torch.cat([(torch.cdist(p, centres, compute_mode=exact) <= radius).any(1) for p in points.split(size)])
    return near.double().mean().item()


# --- codes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelTally:
    """How often each thing occurs in each picture; only things that occur are listed, so K^2 bigrams cost nothing."""

    counts: Tensor  # [U, N] float64, sparse
    tokens: int  # things a picture

    @staticmethod
    def of(things: Tensor) -> "LevelTally":
        """Of non-negative numbers [N, T]."""
        pictures, tokens = things.shape
        kinds, index = things.unique(return_inverse=True)  # [U], [N, T]
        cells = index * pictures + torch.arange(pictures, device=things.device)[:, None]
        cells, counts = cells.unique(return_counts=True)
        where = torch.stack([cells // pictures, cells % pictures])
        shape = (len(kinds), pictures)
        return LevelTally(torch.sparse_coo_tensor(where, counts.double(), shape, is_coalesced=True, check_invariants=False), tokens)

    def shares(self, weights: Tensor) -> Iterator[Tensor]:
        """Each thing's share when picture n weighs weights[r, n], a few rows at a time: [U, r]."""
        for part in weights.split(max(1, _ENTRIES // self.counts.shape[0])):
            yield torch.sparse.mm(self.counts, part.mT / self.tokens)


def horizontal(codes: Tensor) -> Tensor:
    """Pairs of side-by-side codes [n, H, W] as numbers, [n, H (W - 1)]."""
    return _pairs(codes[:, :, :-1], codes[:, :, 1:])


def vertical(codes: Tensor) -> Tensor:
    """Pairs of codes [n, H, W] one above the other as numbers, [n, (H - 1) W]."""
    return _pairs(codes[:, :-1], codes[:, 1:])


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    return (first.long() * 2**31 + second).flatten(1)  # any base above the codes will do, and one base suits every set


def histogram_distance(a: Tensor, b: Tensor) -> float:
    """Total variation between the histograms of codes [n, ...] and [m, ...], in [0, 1]. Biased upwards while codes are rare."""
    return variation_over(LevelTally.of(torch.cat([a.flatten(1), b.flatten(1)])), Sides.of(len(a), len(b), a.device)).item()


def bigram_distances(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Total variation between horizontal and between vertical bigrams of codes [n, H, W] and [m, H, W]."""
    return histogram_distance(horizontal(a), horizontal(b)), histogram_distance(vertical(a), vertical(b))


def variation_over(tally: LevelTally, sides: Sides) -> Tensor:
    """The total variation of every row of `sides`, [R]."""
    difference = sides.a / sides.a.sum(1, keepdim=True) - sides.b / sides.b.sum(1, keepdim=True)
    return torch.cat([shares.abs().sum(0) / 2 for shares in tally.shares(difference)])


def usage_entropy(codes: Tensor) -> float:
    """Entropy of the codes' histogram in nats; codes [n, ...]. It falls when a sampler repeats itself. Biased downwards."""
    return entropy_over(LevelTally.of(codes.flatten(1)), torch.ones(1, len(codes), dtype=torch.float64, device=codes.device)).item()


def entropy_over(tally: LevelTally, counts: Tensor) -> Tensor:
    """The usage entropy of every set in `counts` [R, N], [R]."""
    return torch.cat([torch.special.entr(p.clamp_min(0)).sum(0) for p in tally.shares(counts / counts.sum(1, keepdim=True))])


# --- levels -----------------------------------------------------------------------------------------------------------


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Share of pictures the classifier puts in the class they were asked for; both [n]."""
    return (predictions == labels).double().mean().item()


def nll_per_token(nll: Tensor) -> float:
    """Mean of -log p over tokens [n, T], in nats. A lossy rule that over-accepts likely tokens lowers it."""
    return nll.double().mean().item()


def mean_over(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of values [N] in every set of `counts` [R, N], [R]."""
    return counts @ values.double() / counts.sum(1)


def deviation_over(values: Tensor, counts: Tensor) -> Tensor:
    """The standard deviation of values [N] in every set of `counts` [R, N], [R]."""
    centred = values.double() - values.double().mean()
    return (mean_over(centred.square(), counts) - mean_over(centred, counts).square()).clamp_min(0).sqrt()
