"""Frames: steps that settle K codes at once, as codecs with several codebooks have them.

`Frame` is the law of codes that are independent given what came before (delay patterns, as of MusicGen and Dia). Where each code has a
law given the codes before it in its frame (a depth transformer, as of CSM), `depth.DepthFrame` stands beside it. Both are laws like any
other, so every rule that asks a law no more than `core.laws.Law` offers judges whole frames as it judges tokens. The token rule then is
the maximal coupling of two laws of frames: accept with min(1, P/Q), else draw from norm((P - Q)+) by thinning. It accepts a frame with
1 - TV(P, Q), where code after code would accept the product of the codes' own chances.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.laws import Categorical
from mmspec.core.noise import Keys

_TRIES = 4096
"""Tries after which thinning gives up: what is left there is rounding."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Laws over frames of K codes, independent of one another."""

    scores: Tensor  # [..., K, V] unnormalised log-probabilities; -inf where a book has fewer codes

    @property
    def books(self) -> int:
        return self.scores.shape[-2]

    def codes(self, x: Tensor) -> Categorical:
        """The law of every code, given the frame's codes before it in `x` [..., K]: [..., K]."""
        return Categorical(self.scores)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.codes(x).log_prob(x).sum(-1)

    def sample(self, keys: Keys) -> Tensor:
        return keys.branch(self.books).choose(self.scores)

    def mode(self) -> Tensor:
        return self.scores.argmax(-1)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.sample(keys), columns)).all(-1)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.mode(), columns)).all(-1)

    def completed(self, x: Tensor, settled: Tensor, keys: Keys) -> Tensor:
        """`x` [..., K] whose codes up to the first that is not `settled` [..., K] stay, with the others as they must be behind it.

        Here no code hangs on another: all stay.
        """
        return x

    def at(self, index: Tensor) -> "Frame":
        return Frame(_at(self.scores, index))

    def last(self, count: int) -> "Frame":
        return Frame(self.scores[:, self.scores.shape[1] - count :])

    def where(self, mask: Tensor, other: "Frame") -> "Frame":
        return Frame(torch.where(mask[..., None, None], self.scores, other.scores))

    def cat(self, other: "Frame") -> "Frame":
        return Frame(torch.cat([self.scores, other.scores], 1))

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> "Left":
        return Left(self, q, x, weight)

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """An unbiased estimate of the distance to `q` from `x` drawn from it; exact for the point mass on `x`, when `q` is None."""
        return rejection(self, q, x)


def rejection(p: Any, q: Any, x: Tensor) -> Tensor:
    """(1 - p(x) / q(x))+; q None is a point mass on x."""
    log_p = p.log_prob(x)
    return (1 - (log_p if q is None else log_p - q.log_prob(x)).exp()).clamp(min=0)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, N, ...] at columns `index` [B, M]."""
    return values[torch.arange(len(index), device=index.device)[:, None], index]


@dataclass(frozen=True)
class Left:
    """norm((w P - Q)+) by thinning: f ~ P is kept with (1 - Q(f) / (w P(f)))+, in about 1 / TV(P, Q) tries. Rows not `active` draw from P.

    Q None is a point mass on `x`. A batch goes on until every row has kept a frame, and looks at the device once a try.
    """

    p: Any
    q: Any
    x: Tensor  # [..., K]
    weight: Tensor | None = None  # [...]
    active: Tensor | None = None  # [...] bool; None: all

    def sample(self, keys: Keys) -> Tensor:
        found = self.p.sample(keys)
        waiting = torch.ones_like(keys.words, dtype=torch.bool) if self.active is None else self.active
        tried = found
        for _ in range(_TRIES):
            beside = keys.branch(self.p.books + 2)  # the frame's own draws take the first `books` streams
            keep = beside[..., -2].below(self.keep_prob(tried)) & waiting
            found = torch.where(keep[..., None], tried, found)
            waiting = waiting & ~keep
            if not waiting.any():
                break
            keys = beside[..., -1]
            tried = self.p.sample(keys)
        return found

    def keep_prob(self, f: Tensor) -> Tensor:
        """(1 - Q(f) / (w P(f)))+, [...]."""
        if self.q is None:
            ratio = (f == self.x).all(-1) / self.p.log_prob(f).exp().clamp_min(torch.finfo(torch.float32).tiny)
        else:
            ratio = (self.q.log_prob(f) - self.p.log_prob(f)).exp()
        return (1 - (ratio if self.weight is None else ratio / self.weight)).clamp(min=0)

    def where(self, mask: Tensor, other: Any) -> "Left":
        """This law where `mask`, elsewhere `other`, which must be P itself."""
        if other is not self.p:
            raise ValueError("what is left of a frame's law is mixed with that law only: lossy rules with a budget judge single codes")
        return replace(self, active=mask if self.active is None else self.active & mask)
