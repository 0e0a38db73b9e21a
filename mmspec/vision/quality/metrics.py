"""Is a method's output as good as plain decoding's? Every figure stands beside what plain decoding differs from itself by.

Most distances grow as sets shrink, so a figure means nothing without its size and nothing beside a figure of another size. Here
`value`, `floor` and `ceiling` are all taken at the same `size` h, half the plain set at most:

- `value`: h plain pictures against h of the other's, the mean over random draws;
- `floor`, `ceiling`: h plain pictures against h *other plain* ones (halves never share a picture), the mean over random halves and
  the 95th percentile; the absolute value is taken where the metric has a sign;
- `low`, `high`: a 95 % bootstrap interval for `value`, from resampling both sets whole. Resampled sets hold copies, which pushes most
  distances up, so the percentiles of the deviations from the resampled mean are put around `value`, not the percentiles themselves.
  For distances near their floor it is too wide;
- `p`: a permutation test on both sets whole: how often pictures dealt at random lie as far apart as the two sets do (the dealt
  one counted, Phipson and Smyth 2010). It is exact at every size, for biased distances too, so it alone decides `inside`; the floor
  only shows the scale.

The tests ask that pictures are independent: take different seeds for the two sets, as coupled methods repeat plain pictures seed by
seed and would look too good. Where both sets were made from one list of classes, give `labels`: sets are then drawn and
dealt class by class, and the luck of the classes does not count as spread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from mmspec.vision.quality.distances import (
    LevelTally,
    Sides,
    accuracy,
    bigram_distances,
    deviation_over,
    entropy_over,
    frechet,
    frechet_of_normals,
    frechet_over,
    histogram_distance,
    horizontal,
    kernel_distance,
    kernel_over,
    mean_over,
    nll_per_token,
    precision_recall,
    usage_entropy,
    variation_over,
    vertical,
)

__all__ = [
    "Distance",
    "PictureSet",
    "accuracy",
    "agree",
    "bigram_distances",
    "compare",
    "frechet",
    "frechet_of_normals",
    "histogram_distance",
    "kernel_distance",
    "nll_per_token",
    "precision_recall",
    "usage_entropy",
]

CONFIDENCE = 0.95
FEWEST = 10


@dataclass(frozen=True, slots=True)
class PictureSet:
    """What is known of n pictures; what is not given is not compared."""

    features: Tensor | None = None  # [n, F] of a classifier
    codes: Tensor | None = None  # [n, H, W] long
    nll: Tensor | None = None  # [n, T] -log p of each token under the target, nats
    hits: Tensor | None = None  # [n] bool: the classifier sees what was asked for
    labels: Tensor | None = None  # [n] long: the class or prompt asked for; pictures are only exchanged within one

    def __post_init__(self):
        given, ranks = self.given(), {"features": 2, "codes": 3, "nll": 2, "hits": 1, "labels": 1}
        if not given.keys() - {"labels"}:
            raise ValueError("Pictures holds nothing to compare: give features, codes, nll or hits")
        for name, tensor in given.items():
            if tensor.dim() != ranks[name]:
                raise ValueError(f"{name} has shape {list(tensor.shape)}, but needs {ranks[name]} dimensions, the first of them pictures")
            if not tensor.isfinite().all():
                raise ValueError(f"{name} of picture {(~tensor.isfinite()).nonzero()[0, 0].item()} is not finite: leave that picture out")
        sizes = {name: len(tensor) for name, tensor in given.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"fields are of different numbers of pictures, {sizes}: give every field for the same pictures")
        if self.codes is not None and (self.codes.is_floating_point() or (self.codes < 0).any()):
            raise ValueError(f"codes are {self.codes.dtype}, or some are below 0: give the integers from 0 that a decoder takes")

    def __len__(self) -> int:
        return len(next(iter(self.given().values())))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(iter(self.given().values())).device

    def given(self) -> dict[str, Tensor]:
        """The fields that are there."""
        return {f.name: tensor for f in fields(self) if (tensor := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True)
class Distance:
    """One metric between plain decoding and another method; the module says what each figure is taken over."""

    value: float  # signed metrics: the other's level minus plain's
    low: float
    high: float
    floor: float
    ceiling: float
    p: float
    inside: bool  # p > level: no difference from plain decoding was found
    size: int  # pictures a side in value, floor and ceiling
    plain: float | None = None  # signed metrics: the level of either set, whole; entropies of sets of different sizes do not compare
    other: float | None = None


def compare(plain: PictureSet, other: PictureSet, *, rounds: int = 200, level: float = 0.05, seed: int = 0) -> dict[str, Distance]:
    """Every metric both sets allow, by name.

    Distances: `frechet` and `kernel` on features; `histogram`, `horizontal` and `vertical`, total variations of codes and of
        bigrams.
    Signed: `entropy` of code usage and `nll`, the mean a token, both in nats; `nll_deviation` between pictures; `accuracy`.
    `rounds` draws are made of each kind, so the smallest possible p is 1 / (rounds + 1). Each metric is judged at `level` by itself:
    `agree` judges them together. Raises ValueError for sets that are too small or do not have the same fields and shapes.
    """
    if not 1 / (rounds + 1) <= level < 1:
        raise ValueError(f"level={level} is out of reach of {rounds} rounds: it must be at least 1 / (rounds + 1), and below 1")
    pooled = _pool(plain, other)
    size, sides = _draws(_strata(plain, other), rounds, seed)
    sides = Sides(sides.a.to(pooled.device), sides.b.to(pooled.device))
    found = {}
    for name, over in _distances(pooled).items():
        found[name] = _judge(over(sides), rounds, size, level, lowest=-torch.inf if name == "kernel" else 0.0)
    for name, of in _levels(pooled).items():
        first, second = of(sides.a), of(sides.b)
        found[name] = _judge(second - first, rounds, size, level, levels=(first[_WHOLE].item(), second[_WHOLE].item()))
    return found


def agree(distances: Mapping[str, Distance], level: float = 0.05) -> bool:
    """All metrics together: no p is small for the smallest of so many (Bonferroni), so plain decoding fails with chance `level` at most.

    It needs more than (metrics / level) - 1 rounds to be able to fail: the default of 200 is enough for ten metrics at 0.05.
    """
    return min(d.p for d in distances.values()) * len(distances) > level


# --- metrics ----------------------------------------------------------------------------------------------------------


def _distances(pooled: PictureSet) -> dict[str, Callable[[Sides], Tensor]]:
    """Metrics that only exist between two sets."""
    found = {}
    if pooled.features is not None:
        found |= {"frechet": partial(frechet_over, pooled.features), "kernel": partial(kernel_over, pooled.features)}
    if pooled.codes is not None:
        things = {"histogram": pooled.codes.flatten(1), "horizontal": horizontal(pooled.codes), "vertical": vertical(pooled.codes)}
        found |= {name: partial(variation_over, LevelTally.of(of)) for name, of in things.items() if of.shape[1]}
    return found


def _levels(pooled: PictureSet) -> dict[str, Callable[[Tensor], Tensor]]:
    """Metrics that each set has by itself, and that are compared by their difference."""
    found = {}
    if pooled.codes is not None:
        found["entropy"] = partial(entropy_over, LevelTally.of(pooled.codes.flatten(1)))
    if pooled.nll is not None:
        by_picture = pooled.nll.double().mean(1)
        found |= {"nll": partial(mean_over, by_picture), "nll_deviation": partial(deviation_over, by_picture)}
    if pooled.hits is not None:
        found["accuracy"] = partial(mean_over, pooled.hits)
    return found


# --- draws ------------------------------------------------------------------------------------------------------------

_WHOLE = 0
"""The first row of the draws: the two sets as they are. Then come `rounds` each of dealt, resampled, drawn and halved ones."""


def _draws(strata: list[tuple[Tensor, Tensor]], rounds: int, seed: int) -> tuple[int, Sides]:
    """All pairs of sets the figures are taken over, and the size of those drawn and halved. Every stratum is drawn by itself."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.zeros(1 + 4 * rounds, sum(len(members) for both in strata for members in both), dtype=torch.float64)
    b, size = torch.zeros_like(a), 0
    whole, dealt, resampled, drawn, halved = torch.arange(len(a)).split([1] + [rounds] * 4)

    def shuffled(of: Tensor) -> Tensor:
        return of[torch.rand(rounds, len(of), generator=generator).argsort(1)]

    def copies(of: Tensor) -> Tensor:
        return of[torch.randint(len(of), (rounds, len(of)), generator=generator)]

    def put(rows: Tensor, first: Tensor, second: Tensor) -> None:
        for side, members in ((a, first), (b, second)):
            side[rows] = side[rows].scatter_add(1, members, torch.ones(members.shape, dtype=side.dtype))

    for plain, other in strata:
        half = min(len(plain) // 2, len(other))
        put(whole, plain[None], other[None])
        put(dealt, *shuffled(torch.cat([plain, other])).tensor_split([len(plain)], 1))
        put(resampled, copies(plain), copies(other))
        put(drawn, shuffled(plain)[:, :half], shuffled(other)[:, :half])
        put(halved, *shuffled(plain)[:, : 2 * half].split(half, 1))
        size += half
    return size, Sides(a, b)


def _judge(
    all_values: Tensor, rounds: int, size: int, level: float, lowest: float = -torch.inf, levels: tuple[float, float] | None = None
) -> Distance:
    """One metric's figures from its values over all draws [1 + 4 rounds], in the order of `_draws`."""
    whole, dealt, resampled, drawn, halved = all_values.cpu().split([1] + [rounds] * 4)
    if levels is not None:
        whole, dealt, halved = whole.abs(), dealt.abs(), halved.abs()
    tie = 1e-9 * whole.abs() + 1e-12  # sums in another order must not tell equal sets apart
    p = (1 + (dealt >= whole - tie).sum().item()) / (1 + rounds)
    value = drawn.mean()
    spread = (resampled - resampled.mean()).quantile(torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64))
    low, high = (value + spread).clamp_min(lowest).tolist()
    floor, ceiling = halved.mean().item(), halved.quantile(0.95).item()
    return Distance(value.item(), low, high, floor, ceiling, p, p > level, size, *(levels or (None, None)))


def _pool(plain: PictureSet, other: PictureSet) -> PictureSet:
    """Both sets one after the other."""
    ours, theirs = plain.given(), other.given()
    if ours.keys() != theirs.keys():
        raise ValueError(f"plain has {sorted(ours)} and other has {sorted(theirs)}: give both sets the same fields")
    for name in ours.keys() - {"nll"}:
        if ours[name].shape[1:] != theirs[name].shape[1:]:
            shapes = f"{list(ours[name].shape)} for plain and {list(theirs[name].shape)} for other"
            raise ValueError(f"{name} is {shapes}: only the number of pictures may differ; make both the same way")
    if "nll" in ours:  # lengths may differ: only means over tokens are compared
        ours, theirs = ({**side, "nll": side["nll"].double().mean(1, keepdim=True)} for side in (ours, theirs))
    return PictureSet(**{name: torch.cat([ours[name].to(plain.device), theirs[name].to(plain.device)]) for name in ours})


def _strata(plain: PictureSet, other: PictureSet) -> list[tuple[Tensor, Tensor]]:
    """Which pictures of the pool may be exchanged for each other: (plain's, other's) of every class."""
    ours = torch.zeros(len(plain), dtype=torch.long) if plain.labels is None else plain.labels.cpu()
    theirs = torch.zeros(len(other), dtype=torch.long) if other.labels is None else other.labels.cpu()
    if min(len(plain), len(other)) < FEWEST:
        raise ValueError(f"{len(plain)} plain and {len(other)} other pictures: at least {FEWEST} of each are needed; make more of them")
    found = []
    for label in torch.cat([ours, theirs]).unique().tolist():
        first, second = (ours == label).nonzero()[:, 0], (theirs == label).nonzero()[:, 0]
        if len(first) < 2 or len(second) < 1:
            raise ValueError(f"class {label} has {len(first)} plain and {len(second)} other pictures: make at least 2 and 1 of them")
        found.append((first, second + len(plain)))
    return found
