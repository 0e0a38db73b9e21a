"""Gumbel-max draws over large vocabularies: the values with the largest sum of score and noise, with little of the noise computed.

A draw needs the largest of V sums of a score s and a Gumbel number g = -log(-log u). As -log u >= 1 - u, no sum is larger than
s - log(1 - u), which needs the random bits and one logarithm in single precision. The sum of the value where that is largest is a bound:
sums are computed in double precision only for the values whose s - log(1 - u) reaches it, a few. The draws are the same as those of all V
sums, bit for bit.

log(1 - u) depends on the stream alone, so that of the last streams is kept: a drafter and its target draw a position with the same noise,
and Jacobi decoding draws it again in every round.

On a GPU one Triton kernel computes all sums without storing them (`core.gumbel_triton`).
"""

from collections import OrderedDict
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.gumbel_triton import gumbel_argmax
from mmspec.core.hashing import GAMMA, gumbel, mix, mix_in_place, stream_bits, uniform
from mmspec.core.masks import GROUP, in_groups, true_columns

LARGE = 8192
"""Vocabularies from this size on are searched block by block; below it, computing every sum takes fewer operations."""
_BLOCK = 1 << 15  # values hashed at once by a thread: their bits stay in the cache of a core
_SUMS = 1 << 19  # upper limits of sums held at once
_KEPT = 1 << 24  # numbers log(1 - u) that are kept, 4 bytes each
_MARGIN = 1e-3  # in log space, far above the rounding errors of single precision


def gumbel_top(words: Tensor, scores: Tensor, count: int = 1, ids: Tensor | None = None) -> Tensor:
    """Find the values of the largest sums of score and Gumbel noise, largest first.

    Args:
        words: one random stream per distribution, int64 [...].
        scores: log-probabilities [..., V], unnormalised; -inf for values of probability 0.
        count: values to find, 1 to V.
        ids: names of the values, int64 [..., V]: number i of a stream belongs to the value named i. None for 0 to V - 1.

    Returns:
        Indices into the last axis of `scores` [..., count]. Among equal sums the lowest index comes first where `count` is 1.
    """
    if ids is None and scores.shape[-1] >= LARGE:
        if scores.device.type == "cpu" and scores.dtype == torch.float32:
            found = _searched(words.reshape(-1), scores.reshape(-1, scores.shape[-1]), count)
            return found.view(*scores.shape[:-1], count)
        if count == 1 and scores.device.type == "cuda":
            return gumbel_argmax(words, scores)[..., None]
    return _largest(_sums(words, scores, ids), count)


def gumbel_best(words: Tensor, scores: Tensor, ids: Tensor | None = None) -> Tensor:
    """Find the value of the largest sum of score and Gumbel noise.

    Args:
        words, scores, ids: as `gumbel_top` takes them.

    Returns:
        Indices into the last axis of `scores` [...]: the first of `gumbel_top`.
    """
    if ids is None and scores.shape[-1] >= LARGE:
        return gumbel_top(words, scores)[..., 0]
    return _sums(words, scores, ids).argmax(-1)


def _sums(words: Tensor, scores: Tensor, ids: Tensor | None) -> Tensor:
    """All sums [..., V]."""
    words = words[..., None]
    bits = mix(words + _steps(scores.shape[-1], scores.device)) if ids is None else stream_bits(words, ids)
    return scores - uniform(bits).log_().neg_().log_()  # less the Gumbel numbers, negated


def _largest(sums: Tensor, count: int) -> Tensor:
    return sums.argmax(-1, keepdim=True) if count == 1 else sums.topk(count, -1).indices


def _searched(words: Tensor, scores: Tensor, count: int) -> Tensor:
    """`gumbel_top` of `words` [C] and `scores` [C, V], some distributions at a time: [C, count]."""
    streams, size = words.tolist(), scores.shape[1]
    rows = max(1, _SUMS // size)
    limits, found = scores.new_empty(min(rows, len(streams)), size), []
    for first in range(0, len(streams), rows):
        here = slice(first, min(first + rows, len(streams)))
        some = limits[: here.stop - first]
        for limit, own, stream in zip(some, scores[here], streams[here], strict=True):
            torch.sub(own, _exponents(stream, size), out=limit)
        found.append(_best(words[here], scores[here], some, count))
    return torch.cat(found) if len(found) > 1 else found[0]


def _best(words: Tensor, scores: Tensor, limits: Tensor, count: int) -> Tensor:
    """The values of the largest sums [C, count], given `limits` [C, V] that no sum exceeds."""
    bound = _bound(words, scores, limits, count)
    if not bound.isfinite().all():  # fewer than `count` values are possible in some row, or scores are not finite
        return _largest(scores + gumbel(stream_bits(words[:, None], torch.arange(scores.shape[1]))), count)
    level = (bound - _MARGIN - 2e-7 * bound.abs()).float()
    columns, real = true_columns(limits >= level)
    sums = scores.gather(1, columns) + gumbel(stream_bits(words[:, None], columns))
    return columns.gather(1, _largest(sums.masked_fill_(~real, -torch.inf), count))


def _bound(words: Tensor, scores: Tensor, limits: Tensor, count: int) -> Tensor:
    """The smallest sum of `count` values with large limits [C, 1]: no smaller sum is among the `count` largest."""
    groups = in_groups(limits)
    if count == 1:
        place = limits.argmax(-1, keepdim=True)
    elif groups.shape[1] < count:
        place = limits.topk(count, -1).indices
    else:
        group = groups.amax(-1).topk(count, -1).indices
        place = group * GROUP + groups.gather(1, group[..., None].expand(-1, -1, GROUP)).argmax(-1)
    sums = scores.gather(1, place) + gumbel(stream_bits(words[:, None], place))
    return sums if count == 1 else sums.amin(-1, keepdim=True)


class _Kept:
    """The last results, up to a number of elements. Threads may lose one another's results, never mix them."""

    def __init__(self, most: int):
        self.most, self.found = most, OrderedDict[tuple[int, int], Tensor]()

    def get(self, stream: int, size: int) -> Tensor | None:
        found = self.found.pop((stream, size), None)
        if found is not None:
            self.found[stream, size] = found
        return found

    def put(self, stream: int, size: int, made: Tensor) -> None:
        while self.found and (1 + len(self.found)) * size > self.most:
            try:
                self.found.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        self.found[stream, size] = made


_kept = _Kept(_KEPT)


def _exponents(stream: int, size: int) -> Tensor:
    """log(1 - u) of the first `size` numbers of a stream, in single precision."""
    found = _kept.get(stream, size)
    if found is not None:
        return found
    made, steps, width = torch.empty(size), _steps(size, "cpu"), min(size, _BLOCK * torch.get_num_threads())
    bits, spare = torch.empty(width, dtype=torch.long), torch.empty(width, dtype=torch.long)
    for left in range(0, size, width):
        part = slice(left, min(left + width, size))
        some, other = bits[: part.stop - left], spare[: part.stop - left]
        torch.add(steps[part], stream, out=some)
        mix_in_place(some, other)
        torch.bitwise_right_shift(some.bitwise_not_(), 12, out=other)  # the bits of 1 - u
        made[part] = other.bitwise_and_((1 << 52) - 1)
    made.add_(0.5).mul_(2.0**-52).log_()
    _kept.put(stream, size, made)
    return made


@lru_cache(maxsize=16)
def _steps(size: int, device: torch.device | str) -> Tensor:
    """What is added to a stream's word for each of `size` numbers, int64 [size], cached, since every round reads it."""
    return torch.arange(1, size + 1, device=device) * GAMMA
