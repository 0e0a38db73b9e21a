"""Gumbel-max draws over large vocabularies: the values with the largest sum of score and noise, with little of the noise computed.

A draw needs the largest of V sums of a score s and a Gumbel number g = -log(-log u). Most values cannot win, and it is cheap to see: with
L the sum of some value, another one wins only if g > L - s, that is -log u < exp(s - L), and -log u >= 1 - u. So values with
1 - u >= exp(s - L) are left out, which needs the random bits and one exponential in single precision; sums are computed in double
precision for the others only, about as many as exp(logsumexp(s) - L). The draws are the same as those of all V sums, bit for bit.

On a GPU one Triton kernel computes all sums without storing them (`core.gumbel_triton`).
"""

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.gumbel_triton import gumbel_argmax
from mmspec.core.hashing import GAMMA, gumbel, mix_in_place, stream_bits
from mmspec.core.masks import true_columns

LARGE = 8192
"""Vocabularies from this size on are searched block by block; below it, computing every sum takes fewer operations."""
_BLOCK = 1 << 15  # values hashed at once by a thread: their bits stay in the cache of a core
_GROUP, _GROUPS = 128, 16  # values of a group, and how many groups give the first bound with their best values
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
    ids = torch.arange(scores.shape[-1], device=scores.device) if ids is None else ids
    return _largest(scores + gumbel(stream_bits(words[..., None], ids)), count)


def _largest(sums: Tensor, count: int) -> Tensor:
    return sums.argmax(-1, keepdim=True) if count == 1 else sums.topk(count, -1).indices


def _searched(words: Tensor, scores: Tensor, count: int) -> Tensor:
    """`gumbel_top` of `words` [C] and `scores` [C, V] by blocks: [C, count]."""
    bound = _first_bound(words, scores, count)
    if not (bound > -torch.inf).all():  # fewer than `count` values are possible in the groups of some row
        return _largest(scores + gumbel(stream_bits(words[:, None], torch.arange(scores.shape[1]))), count)
    columns, real = true_columns(_possible(words, scores, bound))
    sums = scores.gather(1, columns) + gumbel(stream_bits(words[:, None], columns))
    return columns.gather(1, _largest(sums.masked_fill_(~real, -torch.inf), count))


def _first_bound(words: Tensor, scores: Tensor, count: int) -> Tensor:
    """The `count`-th largest sum among the best values of the best groups, [C]: no smaller sum is among the `count` largest."""
    taken, size = max(_GROUPS, 4 * count), _GROUP
    groups = scores.shape[1] // size
    if groups < taken:
        return scores.new_full((len(scores),), -torch.inf, dtype=torch.float64)
    table = scores[:, : groups * size].unflatten(1, (groups, size))
    group = table.amax(-1).topk(taken, -1).indices
    best, place = table.gather(1, group[..., None].expand(-1, -1, size)).max(-1)
    return (best + gumbel(stream_bits(words[:, None], group * size + place))).topk(count, -1).values[:, -1]


def _possible(words: Tensor, scores: Tensor, bound: Tensor) -> Tensor:
    """Which values may have a sum of at least `bound` [C]: bool [C, V], True for all that have."""
    columns, size = scores.shape
    possible = torch.empty(columns, size, dtype=torch.bool, device=scores.device)
    level = (bound - _MARGIN - 2e-7 * bound.abs()).float()[:, None]
    block = _BLOCK * torch.get_num_threads()
    width, rows = min(size, block), min(columns, max(1, block // size))
    steps = _steps(size)
    bits, spare, chance = torch.empty(rows, width, dtype=torch.long), torch.empty(rows, width, dtype=torch.long), torch.empty(rows, width)
    for top in range(0, columns, rows):
        here = slice(top, min(top + rows, columns))
        for left in range(0, size, width):
            part = slice(left, min(left + width, size))
            shape = (here.stop - here.start, part.stop - part.start)
            some, other, power = (each[: shape[0], : shape[1]] for each in (bits, spare, chance))
            torch.add(words[here, None], steps[part], out=some)
            mix_in_place(some, other)
            torch.bitwise_right_shift(some.bitwise_not_(), 12, out=other)  # the bits of 1 - u
            other.bitwise_and_((1 << 52) - 1)
            torch.sub(scores[here, part], level[here], out=power).exp_().mul_(2.0**52)
            torch.lt(other, power, out=possible[here, part])
    return possible


@lru_cache(maxsize=4)
def _steps(size: int) -> Tensor:
    """What is added to a stream's word for each of `size` numbers, int64 [size]."""
    return torch.arange(1, size + 1) * GAMMA
