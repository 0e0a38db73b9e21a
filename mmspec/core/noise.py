"""Keyed noise: every random number is a pure function of (the row's seed, output position, role, round start, branch).

The generator is a counter-based hash (`core.hashing`): a key is the mix of its words, and the n-th number of a key's stream is mix(key +
(n + 1) * gamma), so any token's noise can be computed without its neighbours'. Only wrapping 64-bit integer arithmetic is used: the bits,
and the uniforms made from them, are the same on every device.

Roles that leave the round start out of the key give a position the same noise in every round. This couples the rounds. It is exact for
the target's own draws, since a position is committed once, and for draft tokens under the coupled rule. Other draft tokens may share
numbers between rounds only under rules where no draft token affects what is committed before it, so not under block verification.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mmspec.core.gumbel import gumbel_best, gumbel_top
from mmspec.core.hashing import GAMMA, MIX_1, MIX_2, gumbel, mix, stream_bits, uniform
from mmspec.core.rows.changes import rows_of
from mmspec.utils.names import shown


class Role(IntEnum):
    """The purpose a number is drawn for. Distinct roles never share a number."""

    VALUE = 1  # the target's own draw of an output value
    DRAFT_TOKEN = 2  # a drafter's draft token
    ACCEPT = 3  # the uniform of an acceptance test
    RESIDUAL = 4  # the replacement after a rejection
    SHARED = 5  # a draft token drawn with the same numbers in every round, which the target does not use
    ALIGNED = 6  # what a sampler is fed before its last noise, the same for target and drafter


@dataclass(frozen=True, slots=True)
class Keys:
    """A batch of random streams, one for every entry of `words`."""

    words: Tensor  # [...] int64

    def uniform(self) -> Tensor:
        """Draw the first number of each stream.

        Returns:
            Uniforms in (0, 1), float64 [...].
        """
        return uniform(mix(self.words + GAMMA))

    def uniforms(self, size: int) -> Tensor:
        """Draw several numbers of each stream. The first is that of `uniform`; `normal` inverts these.

        Args:
            size: numbers a stream.

        Returns:
            Uniforms in (0, 1), float64 [..., size].
        """
        return uniform(stream_bits(self.words[..., None], torch.arange(size, device=self.words.device)))

    def gumbel(self, size: int) -> Tensor:
        """Draw standard Gumbel numbers; number v belongs to value v.

        Args:
            size: numbers a stream.

        Returns:
            float64 [..., size].
        """
        return self.gumbel_at(torch.arange(size, device=self.words.device))

    def gumbel_at(self, ids: Tensor) -> Tensor:
        """Draw the Gumbel numbers of some values only, equal to those `gumbel` gives them.

        Args:
            ids: values [..., S].

        Returns:
            float64 [..., S].
        """
        return gumbel(stream_bits(self.words[..., None], ids))

    def normal(self, size: int) -> Tensor:
        """Draw standard normal numbers, by inverting their distribution function.

        Args:
            size: numbers a stream.

        Returns:
            float64 [..., size].
        """
        return torch.special.ndtri(self.uniforms(size))

    def below(self, probability: Tensor) -> Tensor:
        """Draw Bernoulli variables from the first number of each stream.

        Args:
            probability: probability of True [...].

        Returns:
            bool [...].
        """
        return self.uniform() < probability

    def choose(self, scores: Tensor, ids: Tensor | None = None) -> Tensor:
        """Draw one index from each distribution, by the Gumbel maximum.

        Args:
            scores: log-probabilities [..., V]; they need not be normalised.
            ids: names of the values [..., V], as in `choose_distinct`.

        Returns:
            Indices [...].
        """
        return gumbel_best(self.words, scores, ids)

    def choose_distinct(self, scores: Tensor, count: int, ids: Tensor | None = None) -> Tensor:
        """Draw indices one after the other without replacement (Gumbel top-k, Kool et al. 2019).

        The first index is the one that `choose` gives. Values of probability 0 come last, and only when no others are left.

        Args:
            scores: log-probabilities [..., V].
            count: indices to draw.
            ids: names of the values [..., V]; with them the draw does not depend on the order of the values.

        Returns:
            Indices [..., count], in the order drawn.
        """
        return gumbel_top(self.words, scores, count, ids)

    def draw(self, weights: Tensor) -> Tensor:
        """Draw one index for each stream, by inverting the distribution function.

        Args:
            weights: non-negative weights [..., V], which need not sum to 1. Zeros may stand anywhere without changing the draw.

        Returns:
            Indices [..., n] for streams [..., n].
        """
        below = weights.cumsum(-1)
        total = below[..., -1:].contiguous()
        last = torch.searchsorted(below, total)  # the last value of any weight, should rounding lift a number to the total
        return torch.minimum(torch.searchsorted(below, self.uniform() * total, right=True), last)

    def __getitem__(self, index) -> "Keys":
        return Keys(self.words[index])

    def where(self, mask: Tensor, other: "Keys") -> "Keys":
        """Select these streams where `mask` [...] is true, the other ones elsewhere."""
        return Keys(torch.where(mask, self.words, other.words))

    def branch(self, count: int, first: int = 0) -> "Keys":
        """Split each stream into independent ones. A branch depends on its number only, not on how many are made.

        Args:
            count: branches a stream.
            first: number of the first branch.

        Returns:
            Streams [..., count].
        """
        steps = torch.arange(first + 1, first + count + 1, device=self.words.device) * MIX_2
        return Keys(mix(self.words[..., None] + steps))


@dataclass(frozen=True)
class Noise:
    """The source of all random numbers of one generation.

    Args:
        seeds: one seed a row, int64 [B].
        coupled: draw draft tokens with the same noise as the target's own draws.
    """

    seeds: Tensor  # [B] int64
    coupled: bool = False

    @staticmethod
    def from_seed(seed: int | Sequence[int], rows: int, device: torch.device | str = "cpu", coupled: bool = False) -> "Noise":
        """Make the noise of a batch.

        Args:
            seed: an int, which gives row r the seed `seed + r`, or one seed a row; seeds are taken modulo 2**64.
            rows: number of rows B.
            device: where the numbers are computed.
            coupled: as the attribute.

        Returns:
            The noise of `rows` rows.

        Raises:
            ValueError: for a sequence of another length than `rows`, and for anything but whole numbers.
        """
        several = not isinstance(seed, str | bytes | Integral) and hasattr(seed, "__iter__")
        given: list[Any] = list(seed) if several else [seed]  # pyright: ignore[reportArgumentType]
        given = [int(each) if isinstance(each, Tensor) and each.dim() == 0 and not each.is_floating_point() else each for each in given]
        if wrong := [each for each in given if not isinstance(each, Integral)]:
            raise ValueError(f"seed is {shown(wrong[0])}: give a whole number, or one per row")
        seeds = given if several else [int(given[0]) + row for row in range(rows)]
        if len(seeds) != rows:
            raise ValueError(f"seed has {len(seeds)} entries for {rows} rows: give one int, or one seed per row")
        wrapped = torch.tensor([(int(s) + 2**63) % 2**64 - 2**63 for s in seeds], dtype=torch.long, device=device)
        return Noise(wrapped, coupled)

    def take_rows(self, rows: Sequence[int]) -> "Noise":
        """Return the noise of some rows."""
        return replace(self, seeds=rows_of(self.seeds, rows))

    def join_rows(self, other: "Noise") -> "Noise":
        """Return the noise of these rows followed by the `other` ones."""
        return replace(self, seeds=torch.cat([self.seeds, other.seeds]))

    @cached_property
    def _rows(self) -> dict[Role, Tensor]:
        """The mixed seeds [B, 1], by role."""
        return {}

    def value(self, position: Tensor) -> Keys:
        """Streams for the target's own draws, the same in every round, so that plain decoding and any draft agree.

        Args:
            position: output positions [B, N].

        Returns:
            Streams [B, N].
        """
        return self._keys(Role.VALUE, position)

    def draft_token(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        """Streams for draft tokens.

        Args:
            position: output positions [B, N].
            start: output values committed before this round [B].
            branch: number of the branch, an int or LongTensor [B, N], for drafts that draw several tokens at a position.

        Returns:
            Streams [B, N]; those of `value` if `coupled`.
        """
        return self.value(position) if self.coupled else self._keys(Role.DRAFT_TOKEN, position, start, branch)

    def shared(self, position: Tensor) -> Keys:
        """Streams for draft tokens that are drawn alike in every round, independent of the target's own draws.

        Args:
            position: output positions [B, N].

        Returns:
            Streams [B, N].
        """
        return self._keys(Role.SHARED, position)

    def aligned(self, position: Tensor) -> Keys:
        """Streams for the inputs of samplers, the same for target and drafter and in every round.

        Args:
            position: output positions [B, N].

        Returns:
            Streams [B, N].
        """
        return self._keys(Role.ALIGNED, position)

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        """Streams for acceptance tests.

        Args:
            position: output positions [B, N].
            start: output values committed before this round [B].

        Returns:
            Streams [B, N].
        """
        return self._keys(Role.ACCEPT, position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        """Streams for replacements after a rejection.

        Args:
            position: output positions [B, N].
            start: output values committed before this round [B].

        Returns:
            Streams [B, N].
        """
        return self._keys(Role.RESIDUAL, position, start)

    def _mixed(self, role: Role) -> Tensor:
        """The mixed seeds [B, 1] of a role, the same in every round."""
        if role not in self._rows:
            self._rows[role] = mix(self.seeds * GAMMA + int(role))[:, None]
        return self._rows[role]

    def _keys(self, role: Role, position: Tensor, start: Tensor | None = None, branch: int | Tensor = 0) -> Keys:
        words = mix(self._mixed(role) ^ ((position + 1) * MIX_1))
        return Keys(words if start is None else mix(words ^ ((start[:, None] + 1) * MIX_2 + branch)))
