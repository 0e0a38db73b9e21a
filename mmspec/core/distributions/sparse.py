"""Categorical distributions held on their support: after top-k, top-p or min-p a vocabulary of 262,144 values has a few dozen left."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys


class SparseCategorical(Categorical):
    """Distributions over V values of which at most K have a probability.

    Everything that rules and drafters ask of a distribution is computed on the K values; `scores` is the whole table, made when first
    read. Draws are those of the table, bit for bit.

    Args:
        ids: values in ascending order, int64 [..., K]; V after the last one.
        kept: their unnormalised log-probabilities [..., K]; -inf for values of no probability, and after the last one.
        size: number of values V.
    """

    __slots__ = ("_size", "_table", "ids", "kept")
    ids: Tensor
    kept: Tensor

    def __init__(self, ids: Tensor, kept: Tensor, size: int):
        for name, value in (("ids", ids), ("kept", kept), ("_size", size), ("_table", [])):
            object.__setattr__(self, name, value)

    @property
    def scores(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unnormalised log-probabilities of all values [..., V]."""
        if not self._table:
            table = self.kept.new_full((*self.kept.shape[:-1], self._size + 1), -torch.inf)
            self._table.append(table.scatter_(-1, self.ids, self.kept)[..., :-1])
        return self._table[0]

    @property
    def size(self) -> int:
        return self._size

    @property
    def searched(self) -> bool:
        return False

    def log_prob(self, x: Tensor) -> Tensor:
        return self._found(self.kept, x[..., None], -torch.inf)[..., 0] - self.kept.logsumexp(-1)

    def probs_at(self, ids: Tensor) -> Tensor:
        return self._found(self.kept.softmax(-1), ids, 0.0)

    def mode(self) -> Tensor:
        return self._named(self.kept.argmax(-1, keepdim=True))[..., 0]

    def sample(self, keys: Keys) -> Tensor:
        return self._named(keys.choose(self.kept, self.ids)[..., None])[..., 0]

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        scores, place = self._wide(count).topk(count, -1)
        return scores, self._named(place)

    def distinct(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        kept = self._wide(count)
        ids = pad(self.ids, (0, kept.shape[-1] - self.ids.shape[-1]), value=self._size)
        place = keys.choose_distinct(kept, count, ids)
        return ids.gather(-1, place).clamp(max=self._size - 1), kept.gather(-1, place)

    def at(self, index: Tensor) -> "SparseCategorical":
        wide = index[..., None].expand(*index.shape, self.kept.shape[-1])
        return SparseCategorical(self.ids.gather(1, wide), self.kept.gather(1, wide), self._size)

    def last(self, count: int) -> "SparseCategorical":
        first = self.kept.shape[1] - count
        return SparseCategorical(self.ids[:, first:], self.kept[:, first:], self._size)

    def where(self, mask: Tensor, other: Categorical) -> Categorical:
        if not isinstance(other, SparseCategorical):
            return Categorical(self.scores).where(mask, other)
        one, two = _same_width(self, other)
        mask = mask[..., None]
        return SparseCategorical(torch.where(mask, one.ids, two.ids), torch.where(mask, one.kept, two.kept), self._size)

    def cat(self, other: Categorical) -> Categorical:
        if not isinstance(other, SparseCategorical):
            return Categorical(self.scores).cat(other)
        one, two = _same_width(self, other)
        return SparseCategorical(torch.cat([one.ids, two.ids], 1), torch.cat([one.kept, two.kept], 1), self._size)

    def without(self, x: Tensor) -> "SparseCategorical":
        rest = self.kept.masked_fill(self.ids == x[..., None], -torch.inf)
        return self._with(torch.where(rest.amax(-1, keepdim=True) > -torch.inf, rest, self.kept))

    def residual(self, q: Categorical | None, x: Tensor, weight: Tensor | None = None) -> "SparseCategorical":
        if q is None and weight is None:
            return self.without(x)
        p = self.kept.softmax(-1)
        rest = self._rest(p, q, x, weight)
        return self._with(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p).log())

    def mass(self, q: Categorical, x: Tensor, weight: Tensor) -> Tensor:
        return self._rest(self.kept.softmax(-1), q, x, weight).sum(-1)

    def tv(self, q: Categorical | None, x: Tensor) -> Tensor:
        if q is None:
            return 1 - self.prob(x)
        theirs = self._probs_of(q, x)
        return 0.5 * ((self.kept.softmax(-1) - theirs).abs().sum(-1) + (1 - theirs.sum(-1)))

    def _rest(self, p: Tensor, q: Categorical | None, x: Tensor, weight: Tensor | None) -> Tensor:
        """(weight * p - q)+ of the values kept [..., K]: all others have none of it."""
        weighted = p if weight is None else weight[..., None] * p
        return (weighted - self._probs_of(q, x)).clamp_(min=0)

    def _probs_of(self, q: Categorical | None, x: Tensor) -> Tensor:
        """Probabilities under `q` of the values kept [..., K]; None is a point mass on `x`."""
        if q is None:
            return (self.ids == x[..., None]).to(self.kept.dtype)
        return q.probs_at(self.ids.clamp(max=self._size - 1)).masked_fill(self.ids == self._size, 0)

    def _found(self, table: Tensor, ids: Tensor, missing: float) -> Tensor:
        """Entries of `table` [..., K] for values `ids` [..., S]; `missing` for values that are not kept."""
        place = torch.searchsorted(self.ids, ids.contiguous()).clamp_(max=self.ids.shape[-1] - 1)
        return torch.where(self.ids.gather(-1, place) == ids, table.gather(-1, place), missing)

    def _with(self, kept: Tensor) -> "SparseCategorical":
        return SparseCategorical(self.ids, kept, self._size)

    def _named(self, place: Tensor) -> Tensor:
        """The values at places of the table; some value where there is none."""
        width = self.ids.shape[-1]
        return self.ids.gather(-1, place.clamp(max=width - 1)).clamp(max=self._size - 1)

    def _wide(self, count: int) -> Tensor:
        """`kept` with at least `count` columns."""
        return pad(self.kept, (0, max(0, count - self.kept.shape[-1])), value=-torch.inf)


def _same_width(*distributions: SparseCategorical) -> list[SparseCategorical]:
    width = max(each.kept.shape[-1] for each in distributions)
    return [_padded(each, width - each.kept.shape[-1]) for each in distributions]


def _padded(distribution: SparseCategorical, more: int) -> SparseCategorical:
    if more == 0:
        return distribution
    size: Any = distribution.size
    return SparseCategorical(pad(distribution.ids, (0, more), value=size), pad(distribution.kept, (0, more), value=-torch.inf), size)
