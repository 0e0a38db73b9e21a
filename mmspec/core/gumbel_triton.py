"""Gumbel-max draws on a GPU: one Triton kernel hashes, adds and compares, so that neither the noise nor the sums are stored.

A program takes one block of one distribution's values and keeps its largest sum and the value; a second, small pass takes the largest of
the blocks. Random bits and uniforms are those of `core.hashing`, so the draws are those of the dense sums up to the rounding of a device's
logarithm in double precision.

With a second distribution q the kernel draws what follows a chain in one pass over the vocabulary: the replacement of a rejected draft
token from norm((p - q)+), or a value from p where none was rejected (the fused verification of Wagner et al. 2024, without their
approximation of the softmax).
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mmspec.core.hashing import GAMMA, MIX_1, MIX_2, gumbel, stream_bits

_BLOCK = 4096
_FAR = 1e6  # what is taken from scores that only count where there are no others


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@torch.library.custom_op("mmspec::gumbel_argmax", mutates_args=())
def gumbel_argmax(words: Tensor, scores: Tensor) -> Tensor:
    """Find the value of the largest sum of score and Gumbel noise in each distribution.

    Args:
        words: one random stream per distribution, int64 [...].
        scores: log-probabilities [..., V], unnormalised.

    Returns:
        Indices [...], int64; the lowest among equal sums.
    """
    if scores.device.type != "cuda" or not _has_triton():
        return _dense(words, scores)
    return launch(words.flatten(), scores.flatten(0, -2)).view(words.shape)


@torch.library.custom_op("mmspec::accept_draw", mutates_args=())
def accept_draw(words: Tensor, p: Tensor, q: Tensor, rejected: Tensor) -> Tensor:
    """Draw from norm((p - q)+) where a draft token was rejected, and from p elsewhere.

    Args:
        words: one random stream per distribution, int64 [...].
        p: the target's log-probabilities [..., V], unnormalised.
        q: those the draft tokens were drawn from [..., V], unnormalised.
        rejected: bool [...].

    Returns:
        Values [...], int64.
    """
    if p.device.type != "cuda" or not _has_triton():
        rest = p.softmax(-1).double() - rejected[..., None] * q.softmax(-1).double()
        return _dense(words, torch.where(rest > 0, rest.log(), p - _FAR))
    return launch(words.flatten(), p.flatten(0, -2), q.flatten(0, -2), rejected.flatten()).view(words.shape)


@gumbel_argmax.register_fake
@accept_draw.register_fake
def _(words: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(words)


def _dense(words: Tensor, scores: Tensor) -> Tensor:
    ids = torch.arange(scores.shape[-1], device=scores.device)
    return (scores + gumbel(stream_bits(words[..., None], ids))).argmax(-1)


def launch(words: Tensor, scores: Tensor, other: Tensor | None = None, rejected: Tensor | None = None) -> Tensor:
    """Run the kernel.

    Args:
        words: int64 [C].
        scores: floating point [C, V].
        other: floating point [C, V], for `accept_draw`.
        rejected: bool [C], for `accept_draw`.

    Returns:
        Indices [C], int64.
    """
    columns, size = scores.shape
    blocks = -(-size // _BLOCK)
    words, scores = words.contiguous(), scores.contiguous()
    best = torch.empty(columns, blocks, dtype=torch.float64, device=scores.device)
    place = torch.empty(columns, blocks, dtype=torch.long, device=scores.device)
    if other is None or rejected is None:
        pair = (scores, best, best)
    else:
        other = torch.where(rejected[:, None], other, -torch.inf).contiguous()
        pair = (other, scores.logsumexp(-1).double(), torch.where(rejected, other.logsumexp(-1), 0).double())
    constants = {"BLOCK": _BLOCK, "PAIR": other is not None, "FAR": _FAR, "GAMMA": GAMMA, "MIX_1": MIX_1, "MIX_2": MIX_2}
    _kernel()[(columns, blocks)](words, scores, *pair, best, place, size, blocks, **constants)
    return place.gather(1, best.argmax(1, keepdim=True))[:, 0]


@cache
def _kernel() -> Any:
    """Compile the kernel; Triton is imported here only, since machines without a GPU may lack it."""
    import triton
    import triton.language as tl

    @triton.jit
    def sums(
        words, p, q, p_norm, q_norm, best, place, size, blocks,
        BLOCK: tl.constexpr, PAIR: tl.constexpr, FAR: tl.constexpr, GAMMA: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr,
    ):  # fmt: skip
        column, block = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        real = ids < size
        score = tl.load(p + column * size + ids, mask=real, other=float("-inf")).to(tl.float64)
        if PAIR:
            other = tl.load(q + column * size + ids, mask=real, other=float("-inf")).to(tl.float64)
            rest = tl.exp(score - tl.load(p_norm + column)) - tl.exp(other - tl.load(q_norm + column))
            score = tl.where(rest > 0, tl.log(rest), score - FAR)  # where rounding leaves nothing positive, p is drawn from
        bits = (tl.load(words + column) + (ids + 1) * GAMMA).to(tl.uint64)
        bits = ((bits ^ (bits >> 30)).to(tl.int64) * MIX_1).to(tl.uint64)
        bits = ((bits ^ (bits >> 27)).to(tl.int64) * MIX_2).to(tl.uint64)
        bits = bits ^ (bits >> 31)
        chance = ((bits >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
        total = tl.where(real, score - tl.log(-tl.log(chance)), float("-inf"))
        largest = tl.max(total, 0)
        tl.store(best + column * blocks + block, largest)
        first = tl.min(tl.where(total == largest, ids, size), 0)
        tl.store(place + column * blocks + block, tl.minimum(first, size - 1))

    return sums
