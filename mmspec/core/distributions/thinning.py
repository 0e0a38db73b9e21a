"""Distributions without a table of values, and their residuals, drawn by thinning.

Frames of codes have V^K values and vectors a continuum of them: nothing can be summed over. Rules need a log-probability, a draw, and the
residual norm((w p - q)+), which follows from the first two: draw f from p, keep it with probability (1 - q(f) / (w p(f)))+, and try again
where it is not kept.

A distribution states how many streams its draw branches off its key (`streams`), so that tests of a draw never share a number with it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.noise import Keys

_TRIES = 1 << 16
"""Tries after which thinning gives up and commits P's first draw. The distribution is then off by TV (1 - TV)^tries: never by more than
6e-6, and by less than 1e-9 from a TV of 2e-4 on. Where the distributions differ by rounding only, it would not terminate otherwise."""
_ABREAST = 256  # values tried at a time, over all rows


class ImplicitDistribution(ABC):
    """Base of distributions without a table. Methods that need one raise ValueError with the text of `advice`."""

    advice: ClassVar[str] = "this distribution has no table of values: judge by token, in chains"

    @property
    @abstractmethod
    def streams(self) -> int:
        """Streams that `sample` branches off each of its keys, counted from the first; 0 where it reads the key's own numbers."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Compute the log-probability or log-density of `x` [..., *value]: [...]."""

    @abstractmethod
    def sample(self, keys: Keys) -> Tensor:
        """Draw one value from each distribution: [..., *value]."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Find the most likely value of each distribution: [..., *value]."""

    @abstractmethod
    def picked(self, rows: Tensor, columns: Tensor) -> Self:
        """Select distributions of a [B, N] batch.

        Args:
            rows: LongTensor [...], row indices.
            columns: LongTensor [...], column indices.

        Returns:
            Distributions of that shape.
        """

    def at(self, index: Tensor) -> Self:
        return self.picked(torch.arange(len(index), device=index.device)[:, None], index)

    def prob(self, x: Tensor) -> Tensor:
        """Compute the probability of one value per distribution.

        Args:
            x: values [..., *value].

        Returns:
            [...].
        """
        return self.log_prob(x).exp()

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        """Compute log p(x) / q(x); `q` None is a point mass on `x`."""
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
        """Remove one value from each distribution.

        Args:
            x: values [..., *value].

        Returns:
            Distributions [...].
        """
        return ResidualByThinning(self, None, x)

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """Estimate the total variation distance to `q` by (1 - p(x) / q(x))+.

        Args:
            q: other distributions [...]; None for a point mass on `x`, for which the result is exact.
            x: values [..., *value]; the estimate is unbiased for values drawn from `q`.

        Returns:
            [...].
        """
        return (1 - self.log_ratio(q, x).exp()).clamp(min=0)

    def mass(self, q: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Sum over all values; only for distributions with a closed form, which override this method.

        Args:
            q: other distributions [...].
            x: values [..., *value].
            weight: float [...].

        Returns:
            [...], where it is overridden.

        Raises:
            ValueError: always.
        """
        raise ValueError(self.advice)

    @property
    def scores(self) -> Tensor:
        """Scores of all values; not available without a table.

        Raises:
            ValueError: always.
        """
        raise ValueError(self.advice)

    top = distinct = scores

    def log_probs(self) -> Tensor:
        """Log-probabilities of all values; not available without a table.

        Returns:
            [..., V] for distributions with a table.

        Raises:
            ValueError: always.
        """
        raise ValueError(self.advice)

    def probs(self) -> Tensor:
        """Probabilities of all values; not available without a table.

        Returns:
            [..., V] for distributions with a table.

        Raises:
            ValueError: always.
        """
        raise ValueError(self.advice)


class Density(ImplicitDistribution):
    """Distributions over a continuum of values. No single value has a probability: they share no mass with a point mass."""

    advice = "a distribution of vectors has no table of values: judge by token, in chains; block and D-GRS need Gaussians of equal scales"

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        own = self.log_prob(x)
        return torch.full_like(own, -torch.inf) if q is None else own - q.log_prob(x)

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Any:
        return self if q is None else ResidualByThinning(self, q, x, weight)

    def without(self, x: Tensor) -> Any:
        return self


def same(one: Tensor, other: Tensor, batch: int) -> Tensor:
    """Compare values entry by entry.

    Args:
        one: values [*batch, *value].
        other: values [*batch, *value].
        batch: number of batch dimensions.

    Returns:
        bool [*batch].
    """
    equal = one == other
    return equal if equal.dim() == batch else equal.flatten(batch).all(-1)


def spread(mask: Tensor, like: Tensor) -> Tensor:
    """Append dimensions of size 1 to a mask, for broadcasting over values.

    Args:
        mask: [*batch].
        like: values [*batch, *value].

    Returns:
        [*batch, 1, ..., 1].
    """
    return mask.reshape(*mask.shape, *(1,) * (like.dim() - mask.dim()))


@dataclass(frozen=True)
class ResidualByThinning:
    """norm((w P - Q)+) over any values, by thinning: f ~ P is kept with (1 - Q(f) / (w P(f)))+. Columns that are not `active` draw from P.

    It takes 1 / TV(P, Q) tries in the mean; since a rejection happens with probability TV(P, Q), that is one try for every value judged.
    Tries are made in parallel, twice as many each time, for the columns where none was kept yet, with one host synchronisation a time. The
    first try of a column is what P draws by its keys, and the others are numbered, so the result does not depend on how many are made at a
    time, nor on the other rows.

    Args:
        p: the target's distributions [B, N].
        q: the draft's distributions [B, N]; None for point masses on `x`.
        x: rejected values [B, N, *value].
        weight: w [B, N]; None for 1.
        active: bool [B, N]; None for all.
    """

    p: Any
    q: Any
    x: Tensor
    weight: Tensor | None = None
    active: Tensor | None = None

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
        """Decide by `keys` whether a try `f` is kept. It is where a probability is NaN: the loop reports that later."""
        return ~keys.below(1 - self.keep_prob(f))

    def keep_prob(self, f: Tensor) -> Tensor:
        """Compute the probability of keeping a try, (1 - Q(f) / (w P(f)))+.

        Args:
            f: values [B, N, *value] drawn from P.

        Returns:
            [B, N].
        """
        if self.q is None:
            log_p = self.p.log_prob(f)
            ratio = (torch.where(same(f, self.x, log_p.dim()), 0.0, -torch.inf) - log_p).exp()
        else:
            ratio = (-self.p.log_ratio(self.q, f)).exp()
        return (1 - (ratio if self.weight is None else ratio / self.weight)).clamp(min=0)

    def where(self, mask: Tensor, other: Any) -> "ResidualByThinning":
        """Select this distribution where `mask` [B, N], elsewhere `other`: P itself, or another residual of the same P, Q, x and weight.

        Args:
            mask: bool [B, N].
            other: distributions [B, N].

        Returns:
            Distributions [B, N].

        Raises:
            ValueError: for any other distribution.
        """
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
