"""Distributions: what a target says comes next, and what a draft token was drawn from."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.noise import Keys


class Distribution(Protocol):
    """A batch of distributions over one step's value. One lossless rule serves discrete and continuous members alike."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-probability or log-density of values `x`, one per distribution."""
        ...

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        """log p(x) / q(x), one per distribution; `q` None is a point mass on `x`."""
        ...

    def sample(self, keys: Keys) -> Tensor:
        """One value from each distribution."""
        ...

    def mode(self) -> Tensor:
        """The most likely value of each distribution."""
        ...

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        """[B, G] bool: is `x` [B, G, *value] what the distributions at `columns` [B, G] draw by `keys` [B, N], the keys of all N
        columns?"""
        ...

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        """[B, G] bool: is `x` [B, G, *value] the mode of the distributions at `columns` [B, G]?"""
        ...

    def at(self, index: Tensor) -> Self:
        """The distributions at columns `index` [B, M] of a [B, N] batch."""
        ...

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Self:
        """Where to draw after rejecting `x`: norm((weight * self - q)+). `q` None is a point mass on `x`; `weight` defaults to 1."""
        ...

    def last(self, count: int) -> Self:
        """The distributions of the last `count` columns."""
        ...

    def where(self, mask: Tensor, other: Self) -> Self:
        """This distribution where `mask`, else `other`."""
        ...

    def cat(self, other: Self) -> Self:
        """Both batches, one after the other along the node axis."""
        ...


@dataclass(frozen=True, slots=True)
class Categorical:
    """Distributions over V values, held as unnormalised log-probabilities so that greedy and Gumbel draws never pay for a softmax."""

    scores: Tensor  # [..., V]

    @staticmethod
    def point(x: Tensor, size: int, dtype: torch.dtype = torch.float32) -> "Categorical":
        """Point masses on `x` [...]."""
        scores = torch.full((*x.shape, size), -torch.inf, dtype=dtype, device=x.device)
        return Categorical(scores.scatter_(-1, x[..., None], 0.0))

    @staticmethod
    def of(probabilities: Tensor) -> "Categorical":
        """From probabilities or any non-negative weights [..., V]."""
        return Categorical(probabilities.log())

    def log_probs(self) -> Tensor:
        return self.scores.log_softmax(-1)

    def probs(self) -> Tensor:
        return self.scores.softmax(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        return _pick(self.scores, x) - self.scores.logsumexp(-1)

    def prob(self, x: Tensor) -> Tensor:
        return self.log_prob(x).exp()

    def log_ratio(self, q: "Categorical | None", x: Tensor) -> Tensor:
        own = self.log_prob(x)
        return own if q is None else own - q.log_prob(x)

    def mode(self) -> Tensor:
        return self.scores.argmax(-1)

    def sample(self, keys: Keys) -> Tensor:
        return keys.choose(self.scores)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        return x == self.sample(keys).gather(1, columns)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return x == self.mode().gather(1, columns)

    def at(self, index: Tensor) -> "Categorical":
        return Categorical(self.scores.gather(1, index[..., None].expand(*index.shape, self.scores.shape[-1])))

    def last(self, count: int) -> "Categorical":
        return Categorical(self.scores[:, self.scores.shape[1] - count :])

    def where(self, mask: Tensor, other: "Categorical") -> "Categorical":
        return Categorical(torch.where(mask[..., None], self.scores, other.scores))

    def cat(self, other: "Categorical") -> "Categorical":
        return Categorical(torch.cat([self.scores, other.scores], 1))

    def without(self, x: Tensor) -> "Categorical":
        """These distributions with value `x` [...] struck out; a distribution that was a point mass on `x` stays as it is."""
        rest = self.scores.scatter(-1, x[..., None], -torch.inf)
        return Categorical(torch.where(rest.amax(-1, keepdim=True) > -torch.inf, rest, self.scores))

    def residual(self, q: "Categorical | None", x: Tensor, weight: Tensor | None = None) -> "Categorical":
        """norm((weight * p - q)+). When rounding leaves nothing positive, p itself: there the two distributions agree to the last bit."""
        if q is None and weight is None:
            return self.without(x)
        p = self.probs()
        weighted = p if weight is None else weight[..., None] * p
        rest = (weighted - (Categorical.point(x, p.shape[-1], p.dtype) if q is None else q).probs()).clamp_(min=0)
        return Categorical(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p).log())

    def mass(self, q: "Categorical", x: Tensor, weight: Tensor) -> Tensor:
        """What the residual weighs before it is normalised: the sum of (weight * p - q)+, [...]. The same for every `x`."""
        return (weight[..., None] * self.probs() - q.probs()).clamp_(min=0).sum(-1)

    def tv(self, q: "Categorical | None", x: Tensor) -> Tensor:
        """Total variation distance to `q`, or to the point mass on `x` when `q` is None. [...]"""
        if q is None:
            return 1 - self.prob(x)
        return 0.5 * (self.probs() - q.probs()).abs().sum(-1)


def _pick(scores: Tensor, x: Tensor) -> Tensor:
    return scores.gather(-1, x[..., None])[..., 0]
