"""Frames: steps that settle K codes at once, as codecs with several codebooks have them.

`Frame` is the law of codes that are independent given what came before (delay patterns, as of MusicGen and Dia). Where each code has a
law given the codes before it in its frame (a depth transformer, as of CSM), `depth.DepthFrame` stands beside it. Both are laws like any
other, so every rule that asks a law no more than `core.laws.Law` offers judges whole frames as it judges tokens. The token rule then is
the maximal coupling of two laws of frames: accept with min(1, P/Q), else draw from norm((P - Q)+) by thinning. It accepts a frame with
1 - TV(P, Q), where code after code would accept the product of the codes' own chances.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.laws import Categorical
from mmspec.core.noise import Keys

_TRIES = 1 << 16
"""Tries after which thinning gives up and settles P's first draw. The law is then off by TV (1 - TV)^tries: never by more than 6e-6, and
by less than 1e-9 from a TV of 2e-4 on. Where rounding is all there is between the laws, trying on would not end."""
_ABREAST = 256
"""Frames tried at a time, over all rows."""


class FrameLaw(ABC):
    """What laws of whole frames share. They have no table of V^K entries: what reads one is refused in one line."""

    hangs: ClassVar[bool]  # does the law of a code hang on the codes before it in its frame?

    @property
    @abstractmethod
    def books(self) -> int: ...

    @abstractmethod
    def codes(self, x: Tensor) -> Categorical:
        """The law of every code, given the frame's codes before it in `x` [..., K]: [..., K]."""

    @abstractmethod
    def sample(self, keys: Keys) -> Tensor:
        """A frame from each law: code k by stream k of K."""

    @abstractmethod
    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        """`x` [..., K] with the codes from book `first` [...] on drawn anew, each by the stream that `sample` draws it by."""

    @abstractmethod
    def picked(self, rows: Tensor, columns: Tensor) -> Self:
        """The laws at `rows` and `columns` of a [B, N] batch, in whatever shape these have in common."""

    def at(self, index: Tensor) -> Self:
        return self.picked(torch.arange(len(index), device=index.device)[:, None], index)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.codes(x).log_prob(x).sum(-1)

    def prob(self, x: Tensor) -> Tensor:
        return self.log_prob(x).exp()

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> "Left":
        return Left(self, q, x, weight)

    def without(self, x: Tensor) -> "Left":
        """These laws with frame `x` struck out."""
        return Left(self, None, x)

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """(1 - P(x) / Q(x))+: an estimate of the distance to `q`, unbiased for `x` drawn from it; exact for a point mass (`q` None)."""
        log_p = self.log_prob(x)
        return (1 - (log_p if q is None else log_p - q.log_prob(x)).exp()).clamp(min=0)

    @property
    def scores(self) -> Tensor:
        raise _no_table()

    def log_probs(self) -> Tensor:
        raise _no_table()

    def probs(self) -> Tensor:
        raise _no_table()


def _no_table() -> ValueError:
    return ValueError("a law of frames has no table over its values: judge frames by coupled, match, greedy, token or PerCode, in chains")


@dataclass(frozen=True)
class Frame(FrameLaw):
    """Laws over frames of K codes, independent of one another."""

    heads: Tensor  # [..., K, V] unnormalised log-probabilities of every code; -inf where a book has fewer codes
    hangs = False

    @property
    def books(self) -> int:
        return self.heads.shape[-2]

    def codes(self, x: Tensor) -> Categorical:
        return Categorical(self.heads)

    def sample(self, keys: Keys) -> Tensor:
        return keys.branch(self.books).choose(self.heads)

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        return torch.where(torch.arange(self.books, device=x.device) < first[..., None], x, self.sample(keys))

    def mode(self) -> Tensor:
        return self.heads.argmax(-1)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.sample(keys), columns)).all(-1)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.mode(), columns)).all(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> "Frame":
        return Frame(self.heads[rows, columns])

    def last(self, count: int) -> "Frame":
        return Frame(self.heads[:, self.heads.shape[1] - count :])

    def where(self, mask: Tensor, other: "Frame") -> "Frame":
        return Frame(torch.where(mask[..., None, None], self.heads, other.heads))

    def cat(self, other: "Frame") -> "Frame":
        return Frame(torch.cat([self.heads, other.heads], 1))


def _at(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, N, K] at columns `index` [B, M]."""
    return values[torch.arange(len(index), device=index.device)[:, None], index]


@dataclass(frozen=True)
class Left:
    """norm((w P - Q)+) over frames, by thinning: f ~ P is kept with (1 - Q(f) / (w P(f)))+. Columns not `active` draw from P.

    Q None is a point mass on `x`. It takes 1 / TV(P, Q) tries in the mean, and 1 - P(x) / Q(x) is refused often enough to make that one
    try for every frame judged. Tries are made side by side, twice as many each time, where none was kept yet: the device is looked at
    once a time. The first try of a column is what P draws by its keys.
    """

    p: Any
    q: Any
    x: Tensor  # [B, N, K]
    weight: Tensor | None = None  # [B, N]
    active: Tensor | None = None  # [B, N] bool; None: all

    def sample(self, keys: Keys) -> Tensor:
        """Frames [B, N, K] by `keys` [B, N]."""
        found = self.p.sample(keys)
        beside = keys.branch(self.p.books + 2)  # the frame's own codes took the first `books` streams
        waiting = ~self._kept(found, beside[..., -2])
        if self.active is not None:
            waiting = waiting & self.active
        rows, columns = waiting.nonzero(as_tuple=True)
        keys, tried, count = beside[..., -1][rows, columns], 1, 1
        while tried < _TRIES and len(rows):
            streams = keys.branch(count + 1)  # [W, count + 1]: the last is for the next time
            fresh, kept = self._at(rows, columns, count)._tries(streams[:, :-1])
            found = found.index_put((rows[kept], columns[kept]), fresh[kept])
            keys, rows, columns = streams[:, -1][~kept], rows[~kept], columns[~kept]
            tried, count = tried + count, max(1, min(2 * count, _ABREAST // max(1, len(rows))))
        return found

    def _at(self, rows: Tensor, columns: Tensor, count: int) -> "Left":
        """This law at `rows` and `columns` [W], `count` times side by side: [W, count]."""
        rows, columns = (index[:, None].expand(-1, count) for index in (rows, columns))
        q, weight = None if self.q is None else self.q.picked(rows, columns), None if self.weight is None else self.weight[rows, columns]
        return Left(self.p.picked(rows, columns), q, self.x[rows, columns], weight)

    def _tries(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """A try by each of `keys` [W, count]: the first frame of every line that is kept [W, K], and whether there is one [W]."""
        fresh = self.p.sample(keys)
        kept = self._kept(fresh, keys.branch(self.p.books + 1)[..., -1])
        first = kept.long().argmax(-1)  # the earliest of the largest
        return fresh[torch.arange(len(first), device=first.device), first], kept.any(-1)

    def _kept(self, f: Tensor, keys: Keys) -> Tensor:
        """Is a try `f` kept, by `keys` of its own? Where a law is not a number, it is: the loop reports that, once it gets there."""
        return ~keys.below(1 - self.keep_prob(f))

    def keep_prob(self, f: Tensor) -> Tensor:
        """(1 - Q(f) / (w P(f)))+, [B, N], for frames `f` that P has drawn."""
        log_p = self.p.log_prob(f)
        log_q = torch.where((f == self.x).all(-1), 0.0, -torch.inf) if self.q is None else self.q.log_prob(f)
        ratio = (log_q - log_p).exp()
        return (1 - (ratio if self.weight is None else ratio / self.weight)).clamp(min=0)

    def where(self, mask: Tensor, other: Any) -> "Left":
        """This law where `mask` [B, N], elsewhere `other`: P itself, or what is left of the same two laws by another rule."""
        if isinstance(other, Left) and self.p is other.p and self.q is other.q and self.x is other.x and self.weight is other.weight:
            return self
        if other is not self.p:
            raise ValueError("what is left of a law of frames mixes with that law only: leave the budget out, or judge by PerCode")
        return replace(self, active=mask if self.active is None else self.active & mask)
