"""LANTERN (Jang et al. 2024, arXiv 2410.03355) and LANTERN++ (Park et al. 2025, 2502.06352): image codes absorb their neighbours' mass.

Codes that are close in the tokenizer's codebook decode to nearly the same patch, so a draft token is judged with the mass p gives to its
nearest codes added to its own: accept with min(1, (p(x) + absorbed) / q(x)). The two rules differ in how much may be absorbed.

The released code's corrections are not used. In its dynamic trees (EAGLE-2, point masses) p is set to zero at the draft token and at its
first k + 1 neighbours, absorbed or not, once anything was absorbed. In its static trees (EAGLE-1) it is q that is set to zero there, and
the replacement is drawn from norm((p - q)+) with that q. Where nothing is left, both draw from all codes alike. The paper's
norm((p^{k,delta} - q)+) changes with the draft token that failed. Here a rejected draft token is replaced from norm((p - q)+): as tokens
are accepted with at least min(1, p/q), no other distribution leaves less between output and target, and the distance is metered without
bias. `delta` does not bound that distance: it limits what one draft token may absorb, while the distance is what is accepted beyond the
token rule. Use `budget` to limit it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.lossy.base import GreedyLike, Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import ratio

_ENTRIES = 2**22
"""About how many distances are held at a time (32 MiB)."""


def normalised(codebook: Tensor) -> Tensor:
    """Scale the rows of a codebook to length 1, for quantisers that look codes up by angle (LlamaGen's, Janus's).

    Args:
        codebook: [K, d].

    Returns:
        [K, d], float64.
    """
    return torch.nn.functional.normalize(codebook.double(), dim=-1)


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours:
    """The nearest codes of every code, nearest first, itself excluded. Values from K on (controls such as row ends) have none."""

    table: Tensor  # [K, k] int32 values, -1 where there is none

    @staticmethod
    def of(codebook: Tensor, k: int = 100) -> "Neighbours":
        """Find neighbours by L2 distance. No K x K matrix is held.

        Args:
            codebook: [K, d] in the geometry the decoder sees: see `normalised`.
            k: neighbours a code.

        Returns:
            The table.

        Raises:
            ValueError: for shapes or k out of range.
        """
        codes = len(codebook)
        if codebook.dim() != 2 or not 1 <= k < codes:
            raise ValueError(f"k is {k} for a codebook of shape {tuple(codebook.shape)}: give [K, d] and 1 <= k < K")
        points, found = codebook.double(), []
        for own in torch.arange(codes, device=codebook.device).split(max(1, _ENTRIES // codes)):
            distance = torch.cdist(points[own], points, compute_mode="donot_use_mm_for_euclid_dist")
            distance.scatter_(1, own[:, None], torch.inf)
            near = distance.topk(k, largest=False).indices.sort(-1).values
            order = distance.gather(1, near).sort(dim=-1, stable=True).indices  # equal distances by number
            found.append(near.gather(1, order).int())
        return Neighbours(torch.cat(found))

    @property
    def k(self) -> int:
        """Neighbours a code."""
        return self.table.shape[1]

    def placed(self, values: Tensor) -> "Neighbours":
        """Renumber the codes for a model's vocabulary.

        Args:
            values: id of each code [K].

        Returns:
            A table over those ids.

        Raises:
            ValueError: unless there is one id for each code.
        """
        if values.shape != self.table.shape[:1]:
            raise ValueError(f"values has shape {tuple(values.shape)}: name one value for each of the {len(self.table)} codes")
        table = torch.full((int(values.max()) + 1, self.k), -1, dtype=torch.int32, device=self.table.device)
        table[values] = torch.where(self.table >= 0, values[self.table.clamp_min(0).long()].int(), -1)
        return Neighbours(table)

    def to(self, device: torch.device | str) -> "Neighbours":
        """Move the table to a device.

        Args:
            device: a torch device.

        Returns:
            A new table.
        """
        return Neighbours(self.table.to(device))

    def near(self, x: Tensor, k: int) -> Tensor:
        """Look up neighbours.

        Args:
            x: values [...].
            k: neighbours a value.

        Returns:
            [..., k]; -1 where there is none.

        Raises:
            ValueError: when the table is on another device.
        """
        if self.table.device != x.device:
            raise ValueError(f"the neighbours are on {self.table.device}, the draft tokens on {x.device}: move them with .to(device)")
        found = self.table[x.clamp(max=len(self.table) - 1), :k].long()
        return torch.where((x < len(self.table))[..., None], found, -1)

    def __repr__(self) -> str:
        return f"Neighbours({len(self.table)} codes, {self.k} each)"


def absorbed(p: Categorical, x: Tensor, neighbours: Neighbours, k: int, most: Tensor | float) -> Tensor:
    """Sum the mass under p of the longest prefix of x's neighbours that fits.

    Args:
        p: distributions [..., V].
        x: draft tokens [...].
        neighbours: the table.
        k: neighbours considered.
        most: largest mass, a number or [...].

    Returns:
        [...].
    """
    near = neighbours.near(x, k)
    scores = p.scores.gather(-1, near.clamp_min(0)) - p.scores.logsumexp(-1, keepdim=True)
    mass = torch.where(near >= 0, scores.exp(), 0).cumsum(-1)  # monotone, so what fits is a prefix
    fits = mass <= (most[..., None].to(mass.dtype) if isinstance(most, Tensor) else most)
    return torch.where(fits, mass, 0).amax(-1)


def _checked(rule: Any) -> None:
    if not 1 <= rule.k <= rule.neighbours.k:
        raise ValueError(f"k is {rule.k}: the table holds {rule.neighbours.k} neighbours a code, so 1 to {rule.neighbours.k}")
    check_budget(rule.budget)


class _Absorbing(Ratio):
    neighbours: Neighbours

    @abstractmethod
    def absorbed(self, p: Categorical, x: Tensor) -> Tensor:
        """Compute the mass draft tokens may add to their own.

        Args:
            p: distributions [..., V].
            x: draft tokens [...].

        Returns:
            [...].
        """
        ...

    @property
    def table_size(self) -> int:
        """Values of the table of neighbours."""
        return len(self.neighbours.table)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        own, more = ratio(p, q, x), self.absorbed(p, x)
        if q is not None:
            more = torch.where(more > 0, more / q.prob(x), 0)
        return (own + more).clamp(max=1)


@dataclass(frozen=True)
class Lantern(_Absorbing):
    """LANTERN: absorb neighbours while their mass stays within `delta`; accept with min(1, (p(x) + absorbed) / q(x)).

    At temperature 0 p is a point mass and the rule is greedy decoding. The published greedy form, `LanternGreedy`, reads the distribution
    before the temperature.

    Args:
        neighbours: the table of neighbours.
        delta: mass that may be absorbed, in [0, 1); 0 is exact.
        k: neighbours considered.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    neighbours: Neighbours
    delta: float = 0.1
    k: int = 100
    budget: float | None = None

    def __post_init__(self):
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta is {self.delta}: absorbed mass is at least 0 (exact) and below 1; LanternPlus takes factors")
        _checked(self)

    def absorbed(self, p: Categorical, x: Tensor) -> Tensor:
        return absorbed(p, x, self.neighbours, self.k, self.delta)


@dataclass(frozen=True)
class LanternPlus(_Absorbing):
    """LANTERN++: absorb neighbours while p(x) grows to no more than `lam` p(x), so that unlikely draft tokens stay unlikely.

    Args:
        neighbours: the table of neighbours.
        lam: factor p(x) may grow by, 1 (exact) or more.
        k: neighbours considered.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for numbers out of range.
    """

    neighbours: Neighbours
    lam: float = 2.0
    k: int = 10
    budget: float | None = None

    def __post_init__(self):
        if not self.lam >= 1:
            raise ValueError(f"lam is {self.lam}: the factor p(x) may grow by must be 1 (exact) or more")
        _checked(self)

    def absorbed(self, p: Categorical, x: Tensor) -> Tensor:
        return absorbed(p, x, self.neighbours, self.k, (self.lam - 1) * p.prob(x))


@dataclass(frozen=True)
class LanternGreedy(GreedyLike):
    """LANTERN's greedy form: keep a draft token if with absorbed mass it is the most likely value; commit the most likely.

    It reads the distribution before the temperature, so it is for targets run at temperature 1; where p is a point mass it is greedy
    decoding. It judges any tree. Drift: departures from greedy decoding, a bound.

    Args:
        rule: how much is absorbed.
    """

    rule: Lantern | LanternPlus
    reads_raw = False

    @property
    def budget(self) -> float | None:
        """Total variation a row may spend; None for no limit."""
        return self.rule.budget

    @property
    def table_size(self) -> int:
        """Values of the table of neighbours."""
        return self.rule.table_size

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        others = p.scores.scatter(-1, x[..., None], -torch.inf).amax(-1) - p.scores.logsumexp(-1)
        return p.prob(x) + self.rule.absorbed(p, x) > others.exp()


def lantern_tree(neighbours: Neighbours, delta: float = 0.1, k: int = 100, budget: float | None = None) -> Walk:
    """Make LANTERN for trees whose candidates are drawn without replacement (EAGLE-1) or deterministic (EAGLE-2).

    Args:
        neighbours, delta, k, budget: as `Lantern`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(Lantern(neighbours, delta, k, budget))


def lantern_plus_tree(neighbours: Neighbours, lam: float = 2.0, k: int = 10, budget: float | None = None) -> Walk:
    """Make LANTERN++ for trees whose candidates are drawn without replacement (EAGLE-1) or deterministic (EAGLE-2).

    Args:
        neighbours, lam, k, budget: as `LanternPlus`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(LanternPlus(neighbours, lam, k, budget))
