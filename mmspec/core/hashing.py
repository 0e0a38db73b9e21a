"""SplitMix64 (Steele, Lea and Flood 2014) as a counter-based hash: random bits from integers, the same on every device."""

import torch
from torch import Tensor

GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_ROUNDS = ((30, MIX_1), (27, MIX_2), (31, None))
"""Shift and factor of each step of the finaliser."""


def shift(bits: Tensor, by: int) -> Tensor:
    """Shift signed 64-bit integers right, filling with zeros.

    Args:
        bits: int64 of any shape.
        by: places, 1 to 63.

    Returns:
        Shifted bits, int64 of the same shape.
    """
    return (bits >> by) & ((1 << (64 - by)) - 1)


def mix(bits: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser, wrapping.

    Args:
        bits: int64 of any shape.

    Returns:
        Mixed bits, int64 of the same shape.
    """
    for by, factor in _ROUNDS:
        bits = bits ^ shift(bits, by)
        bits = bits if factor is None else bits * factor
    return bits


def mix_in_place(bits: Tensor, spare: Tensor) -> None:
    """Apply `mix` without allocating memory.

    Args:
        bits: int64 of any shape, overwritten with the mixed bits.
        spare: int64 of the same shape, overwritten.
    """
    for by, factor in _ROUNDS:
        torch.bitwise_right_shift(bits, by, out=spare)
        bits.bitwise_xor_(spare.bitwise_and_((1 << (64 - by)) - 1))
        if factor is not None:
            bits.mul_(factor)


def stream_bits(words: Tensor, ids: Tensor) -> Tensor:
    """Hash the numbers of streams.

    Args:
        words: int64, one stream each.
        ids: int64 numbers in those streams, 0 and up; broadcast with `words`.

    Returns:
        64 random bits each, int64.
    """
    return mix(words + (ids + 1) * GAMMA)


def uniform(bits: Tensor) -> Tensor:
    """Turn 64 random bits into a number strictly between 0 and 1.

    52 of the bits are used: with one more, the largest number would round to 1.

    Args:
        bits: int64 of any shape.

    Returns:
        float64 of the same shape.
    """
    return shift(bits, 12).double().add_(0.5).mul_(2.0**-52)


def gumbel(bits: Tensor) -> Tensor:
    """Turn 64 random bits into a standard Gumbel number.

    Args:
        bits: int64 of any shape.

    Returns:
        float64 of the same shape.
    """
    return uniform(bits).log_().neg_().log_().neg_()
