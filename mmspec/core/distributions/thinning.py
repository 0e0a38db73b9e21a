"""Distributions without a table of their values, and what is left of such a distribution after a rejection, drawn by thinning.

Frames of codes have V^K values and vectors have a continuum of them: nothing can be summed over. What rules ask of such a distribution is a
log-probability, a draw and the residual norm((w p - q)+), and the last follows from the first two: draw f from p, keep it with
(1 - q(f) / (w p(f)))+, try again where it is not kept.

A distribution says how many streams its draw branches off its key (`streams`), so that no test of a draw ever shares a number with it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.noise import Keys

_TRIES = 1 << 16
"""Tries after which thinning gives up and commits P's first draw. The distribution is then off by TV (1 - TV)^tries: never by more than
6e-6, and by less than 1e-9 from a TV of 2e-4 on. Where rounding is all there is between the distributions, trying on would not end."""
_ABREAST = 256
"""Values tried at a time, over all rows."""


class ImplicitDistribution(ABC):
    """What distributions without a table share. Whatever reads a table is refused in one line, `advice`."""

    advice: ClassVar[str] = "this distribution has no table over its values: judge by token, in chains"

    @property
    @abstractmethod
    def streams(self) -> int:
        """How many streams `sample` branches off each of its keys, counted from the first; 0 where it reads the key's own numbers."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Log-probability or log-density of `x` [..., *value]: [...]."""

    @abstractmethod
    def sample(self, keys: Keys) -> Tensor:
        """One value from each distribution, [..., *value]."""

    @abstractmethod
    def mode(self) -> Tensor: ...

    @abstractmethod
    def picked(self, rows: Tensor, columns: Tensor) -> Self:
        """The distributions at `rows` and `columns` of a [B, N] batch, in whatever shape these have in common."""

    def at(self, index: Tensor) -> Self:
        return self.picked(torch.arange(len(index), device=index.device)[:, None], index)

    def prob(self, x: Tensor) -> Tensor:
        return self.log_prob(x).exp()

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        """log p(x) / q(x); `q` None is a point mass on `x`."""
        own = self.log_prob(x)
        return own if q is None else own - q.log_prob(x)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        return same(self.at(columns).sample(keys[rows, columns]), x, 2)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return same(self.at(columns).mode(), x, 2)

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Any:
        return ResidualByThinning(self, q, x, weight)

    def without(self, x: Tensor) -> Any:
        """These distributions with value `x` struck out."""
        return ResidualByThinning(self, None, x)

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """(1 - p(x) / q(x))+: an estimate of the distance to `q`, unbiased for `x` drawn from it; exact for a point mass (`q` None)."""
        return (1 - self.log_ratio(q, x).exp()).clamp(min=0)

    def mass(self, q: Any, x: Tensor, weight: Tensor) -> Tensor:
        raise ValueError(self.advice)

    @property
    def scores(self) -> Tensor:
        raise ValueError(self.advice)

    def log_probs(self) -> Tensor:
        raise ValueError(self.advice)

    def probs(self) -> Tensor:
        raise ValueError(self.advice)


class Density(ImplicitDistribution):
    """Distributions over a continuum of values. No value has a probability of its own: they share nothing with a draft token that was not
    drawn."""

    advice = "a distribution of vectors has no table of values: judge by token, in chains; block and D-GRS need Gaussians of equal scales"

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        own = self.log_prob(x)
        return torch.full_like(own, -torch.inf) if q is None else own - q.log_prob(x)

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Any:
        return self if q is None else ResidualByThinning(self, q, x, weight)

    def without(self, x: Tensor) -> Any:
        return self


def same(one: Tensor, other: Tensor, batch: int) -> Tensor:
    """Are values equal in every entry? [*batch] for values [*batch, *value] with so many batch dimensions."""
    equal = one == other
    return equal if equal.dim() == batch else equal.flatten(batch).all(-1)


def spread(mask: Tensor, like: Tensor) -> Tensor:
    """`mask` [*batch] with dimensions of size 1 for those of the values `like` [*batch, *value]."""
    return mask.reshape(*mask.shape, *(1,) * (like.dim() - mask.dim()))


@dataclass(frozen=True)
class ResidualByThinning:
    """norm((w P - Q)+) over any values, by thinning: f ~ P is kept with (1 - Q(f) / (w P(f)))+. Columns not `active` draw from P.

    Q None is a point mass on `x`. It takes 1 / TV(P, Q) tries in the mean, and 1 - P(x) / Q(x) is refused often enough to make that one
    try for every value judged. Tries are made side by side, twice as many each time, where none was kept yet: the device is looked at
    once a time. The first try of a column is what P draws by its keys, and the others are numbered: which is kept does not depend on how
    many are made at a time, and so not on the other rows.
    """

    p: Any
    q: Any
    x: Tensor  # [B, N, *value]
    weight: Tensor | None = None  # [B, N]
    active: Tensor | None = None  # [B, N] bool; None: all

    def sample(self, keys: Keys) -> Tensor:
        """Values [B, N, *value] by `keys` [B, N]."""
        found = self.p.sample(keys)
        beside = keys.branch(self.p.streams + 2)  # the value's own numbers took the first `streams`
        waiting = ~self._kept(found, beside[..., -2])
        if self.active is not None:
            waiting = waiting & self.active
        rows, columns = waiting.nonzero(as_tuple=True)
        keys, tried, count = beside[..., -1][rows, columns], 1, 1
        while tried < _TRIES and len(rows):
            fresh, kept = self._at(rows, columns, count)._tries(keys.branch(count, tried))
            found = found.index_put((rows[kept], columns[kept]), fresh[kept])
            keys, rows, columns = keys[~kept], rows[~kept], columns[~kept]
            tried, count = tried + count, max(1, min(2 * count, _ABREAST // max(1, len(rows))))
        return found

    def _at(self, rows: Tensor, columns: Tensor, count: int) -> "ResidualByThinning":
        """This distribution at `rows` and `columns` [W], `count` times side by side: [W, count]."""
        rows, columns = (index[:, None].expand(-1, count) for index in (rows, columns))
        q, weight = None if self.q is None else self.q.picked(rows, columns), None if self.weight is None else self.weight[rows, columns]
        return ResidualByThinning(self.p.picked(rows, columns), q, self.x[rows, columns], weight)

    def _tries(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """A try by each of `keys` [W, count]: the first value of every line that is kept [W, *value], and whether there is one [W]."""
        fresh = self.p.sample(keys)
        kept = self._kept(fresh, keys.branch(self.p.streams + 1)[..., -1])
        first = kept.long().argmax(-1)  # the earliest of the largest
        return fresh[torch.arange(len(first), device=first.device), first], kept.any(-1)

    def _kept(self, f: Tensor, keys: Keys) -> Tensor:
        """Is a try `f` kept, by `keys` of its own? Where a distribution is not a number, it is: the loop reports that, once it gets
        there."""
        return ~keys.below(1 - self.keep_prob(f))

    def keep_prob(self, f: Tensor) -> Tensor:
        """(1 - Q(f) / (w P(f)))+, [B, N], for values `f` that P has drawn."""
        if self.q is None:
            log_p = self.p.log_prob(f)
            ratio = (torch.where(same(f, self.x, log_p.dim()), 0.0, -torch.inf) - log_p).exp()
        else:
            ratio = (-self.p.log_ratio(self.q, f)).exp()
        return (1 - (ratio if self.weight is None else ratio / self.weight)).clamp(min=0)

    def where(self, mask: Tensor, other: Any) -> "ResidualByThinning":
        """This distribution where `mask` [B, N], elsewhere `other`: P itself, or what is left of the same two distributions by another
        rule."""
        if (
            isinstance(other, ResidualByThinning)
            and self.p is other.p
            and self.q is other.q
            and self.x is other.x
            and self.weight is other.weight
        ):
            return self
        if other is not self.p:
            raise ValueError("the residual of a distribution without a table mixes with it only: leave the budget out, or judge by PerCode")
        return replace(self, active=mask if self.active is None else self.active & mask)
