"""Keyed noise: every random number is a pure function of (the row's seed, output position, role, round start, branch).

The generator is SplitMix64 (Steele, Lea and Flood 2014) used as a counter-based hash: a key is the mix of its words, and the
n-th number of a key's stream is mix(key + (n + 1) * gamma), so any token's noise can be had without its neighbours'. Only
wrapping 64-bit integer arithmetic is used: the bits, and the uniforms made from them, are the same on every device.

Roles that leave the round start out of the key give the same noise to a position in every round. That is a coupling: it is
exact for the target's own draws, because a position is committed once, and for draft tokens under the coupled rule. Draft tokens may share
numbers of their own between rounds where no draft token has a say in what is committed before it: not under block verification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


class Role(IntEnum):
    """What a number is drawn for. Distinct roles never share a number."""

    VALUE = 1  # the target's own draw of an output value
    DRAFT_TOKEN = 2  # a drafter's draft token
    ACCEPT = 3  # the uniform of an acceptance test
    RESIDUAL = 4  # the replacement after a rejection
    SHARED = 5  # a draft token drawn with the same numbers in every round, which the target does not use
    ALIGNED = 6  # what a sampler is fed before its last noise, the same for target and drafter


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors, wrapping."""
    bits = (bits ^ _shift(bits, 30)) * _MIX_1
    bits = (bits ^ _shift(bits, 27)) * _MIX_2
    return bits ^ _shift(bits, 31)


def _uniform(bits: Tensor) -> Tensor:
    """52 random bits as float64 strictly between 0 and 1: one bit more, and the largest would round to 1."""
    return _shift(bits, 12).double().add_(0.5).mul_(2.0**-52)


@dataclass(frozen=True, slots=True)
class Keys:
    """One stream of numbers for every entry of `words` [...]."""

    words: Tensor  # [...] int64

    def uniform(self) -> Tensor:
        """The first number of each stream, float64 in (0, 1), [...]."""
        return _uniform(mix(self.words + _GAMMA))

    def gumbel(self, size: int) -> Tensor:
        """`size` standard Gumbel numbers from each stream, float64 [..., size]; number v belongs to value v."""
        return self.gumbel_at(torch.arange(size, device=self.words.device))

    def gumbel_at(self, ids: Tensor) -> Tensor:
        """The numbers of values `ids` [..., S] among all that `gumbel` could give, had without the others: float64 [..., S]."""
        uniform = _uniform(mix(self.words[..., None] + (ids + 1) * _GAMMA))
        return uniform.log_().neg_().log_().neg_()

    def normal(self, size: int) -> Tensor:
        """`size` standard normal numbers from each stream, by inverting their distribution function: float64 [..., size]."""
        ids = torch.arange(size, device=self.words.device)
        return torch.special.ndtri(_uniform(mix(self.words[..., None] + (ids + 1) * _GAMMA)))

    def below(self, probability: Tensor) -> Tensor:
        """Bernoulli draws: True with the given probability [...]."""
        return self.uniform() < probability

    def choose(self, scores: Tensor) -> Tensor:
        """One index from each distribution exp(scores) [..., V], by the Gumbel maximum; `scores` need no normalising. [...]"""
        return (scores + self.gumbel(scores.shape[-1])).argmax(-1)

    def choose_distinct(self, scores: Tensor, count: int, ids: Tensor | None = None) -> Tensor:
        """`count` indices drawn one after the other without replacement (Gumbel top-k, Kool et al. 2019), [..., count].

        The first is what `choose` gives. Values of probability 0 come last, and only when nothing else is left. Where `ids` [..., V]
        names the values, the draw does not depend on where they stand.
        """
        noise = self.gumbel(scores.shape[-1]) if ids is None else self.gumbel_at(ids)
        return (scores + noise).topk(count, -1).indices

    def draw(self, weights: Tensor) -> Tensor:
        """An index from the distribution `weights` [..., V] for each of its streams [..., n], by inverting its distribution function. [...,
        n]

        The weights need not sum to 1, and those that are 0 may stand anywhere: the same values are drawn.
        """
        below = weights.cumsum(-1)
        total = below[..., -1:].contiguous()
        last = torch.searchsorted(below, total)  # the last value of any weight, should rounding lift a number to the total
        return torch.minimum(torch.searchsorted(below, self.uniform() * total, right=True), last)

    def __getitem__(self, index) -> "Keys":
        return Keys(self.words[index])

    def where(self, mask: Tensor, other: "Keys") -> "Keys":
        """These streams where `mask` [...], else the other ones."""
        return Keys(torch.where(mask, self.words, other.words))

    def branch(self, count: int, first: int = 0) -> "Keys":
        """`count` independent streams from each, [..., count]: those from number `first` on, the same however many are had at a time."""
        steps = torch.arange(first + 1, first + count + 1, device=self.words.device) * _MIX_2
        return Keys(mix(self.words[..., None] + steps))


@dataclass(frozen=True, slots=True)
class Noise:
    """The source of every random number in one generation.

    Under `coupled`, draft tokens are drawn with the very noise the target's own draws use.
    """

    seeds: Tensor  # [B] int64
    coupled: bool = False

    @staticmethod
    def from_seed(seed: int | Sequence[int], rows: int, device: torch.device | str = "cpu", coupled: bool = False) -> "Noise":
        """An int gives row r the seed `seed + r`; a sequence gives one seed a row. Seeds count modulo 2**64.

        Raises:
            ValueError: for anything else.
        """
        several = not isinstance(seed, str | bytes | Integral) and hasattr(seed, "__iter__")
        given: list[Any] = list(seed) if several else [seed]  # pyright: ignore[reportArgumentType]
        given = [int(each) if isinstance(each, Tensor) and each.dim() == 0 and not each.is_floating_point() else each for each in given]
        if wrong := [each for each in given if not isinstance(each, Integral)]:
            raise ValueError(f"seed is {wrong[0]!r:.60}: give a whole number, or one per row")
        seeds = given if several else [int(given[0]) + row for row in range(rows)]
        if len(seeds) != rows:
            raise ValueError(f"seed has {len(seeds)} entries for {rows} rows: give one int, or one seed per row")
        wrapped = [(int(s) + 2**63) % 2**64 - 2**63 for s in seeds]
        return Noise(torch.tensor(wrapped, dtype=torch.long, device=device), coupled)

    def value(self, position: Tensor) -> Keys:
        """For the target's own draws of output positions [B, N]: the same in every round, so plain decoding and any draft agree."""
        return self._keys(Role.VALUE, position)

    def draft_token(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        """For draft tokens at output positions [B, N] of the round that began at `start` [B]."""
        return self.value(position) if self.coupled else self._keys(Role.DRAFT_TOKEN, position, start, branch)

    def shared(self, position: Tensor) -> Keys:
        """For draft tokens at output positions [B, N] that are drawn alike in every round, independently of the target's own draws."""
        return self._keys(Role.SHARED, position)

    def aligned(self, position: Tensor) -> Keys:
        """For what samplers of output positions [B, N] are fed, target's and drafter's alike, the same in every round."""
        return self._keys(Role.ALIGNED, position)

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        """For acceptance tests at output positions [B, N]."""
        return self._keys(Role.ACCEPT, position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        """For replacements drawn at output positions [B, N]."""
        return self._keys(Role.RESIDUAL, position, start)

    def _keys(self, role: Role, position: Tensor, start: Tensor | None = None, branch: int | Tensor = 0) -> Keys:
        words = mix(self.seeds * _GAMMA + int(role))[:, None]
        words = mix(words ^ ((position + 1) * _MIX_1))
        if start is not None:
            words = mix(words ^ ((start[:, None] + 1) * _MIX_2 + branch))
        return Keys(words)
