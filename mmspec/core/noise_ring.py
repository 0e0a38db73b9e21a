"""Gumbel noise by output position, computed once a position instead of once a round.

A Jacobi window draws the same positions again in every round with the same noise, and so does the rule that judges it. The numbers of the
last positions of every row are kept in a ring. Draws are the same, bit for bit, as those of `Noise`. Used on CPUs for vocabularies below
`core.gumbel.LARGE`; larger ones are searched, and GPUs have a kernel that stores no noise.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.gumbel import LARGE
from mmspec.core.hashing import gumbel, stream_bits
from mmspec.core.noise import Keys, Noise, Role

_MOST = 1 << 24  # numbers kept, 8 bytes each


class GumbelRing:
    """The Gumbel numbers of the last `slots` output positions of every row.

    Args:
        rows: rows B.
        slots: positions held a row.
    """

    def __init__(self, rows: int, slots: int):
        self.held = torch.full((rows, slots), -1)  # the position in each slot
        self.table = torch.empty(rows, slots, 0, dtype=torch.float64)  # [B, slots, V]

    def fits(self, scores: Tensor) -> bool:
        """Return True if the noise of distributions `scores` [..., V] is kept.

        Args:
            scores: log-probabilities.

        Returns:
            Whether they are on a CPU, below `LARGE` and within the memory limit.
        """
        size = scores.shape[-1]
        return scores.device.type == "cpu" and size < LARGE and self.held.numel() * size <= _MOST

    def numbers(self, words: Tensor, rows: Tensor, position: Tensor, size: int) -> Tensor:
        """Return the first `size` Gumbel numbers of each stream.

        Args:
            words: streams, int64 [...].
            rows: row of each one [...].
            position: output position of each one [...].
            size: numbers a stream V.

        Returns:
            float64 [..., V].
        """
        if self.table.shape[-1] != size:
            self.held.fill_(-1)
            self.table = torch.empty(*self.held.shape, size, dtype=torch.float64)
        slot = position % self.held.shape[1]
        missing = self.held[rows, slot] != position
        if missing.any():
            place = rows[missing], slot[missing]
            self.table[place] = _hashed(words[missing], size)
            self.held[place] = position[missing]
            if (self.held[rows, slot] != position).any():  # more positions at once than slots
                self.held.fill_(-1)
                return _hashed(words, size)
        return self.table[rows, slot]


def _hashed(words: Tensor, size: int) -> Tensor:
    return gumbel(stream_bits(words[..., None], torch.arange(size)))


@dataclass(frozen=True, slots=True)
class RingKeys(Keys):
    """Streams whose Gumbel numbers are read from a ring.

    Args:
        words: int64 [...].
        rows: row of each stream [...].
        position: output position of each stream [...].
        ring: the ring.
    """

    rows: Tensor
    position: Tensor
    ring: GumbelRing

    def choose(self, scores: Tensor, ids: Tensor | None = None) -> Tensor:
        """Draw one index from each distribution; see `Keys.choose`."""
        if ids is not None or not self.ring.fits(scores):
            return Keys.choose(self, scores, ids)
        return (scores + self.ring.numbers(self.words, self.rows, self.position, scores.shape[-1])).argmax(-1)

    def __getitem__(self, index) -> "RingKeys":
        return RingKeys(self.words[index], self.rows[index], self.position[index], self.ring)


@dataclass(frozen=True)
class RingNoise(Noise):
    """Noise whose `value` and `shared` streams keep their Gumbel numbers in a ring.

    Args:
        seeds: one seed a row, int64 [B].
        coupled: as `Noise`.
        slots: positions kept a row: at least as many as one round draws.
    """

    slots: int = 0

    @staticmethod
    def of(noise: Noise, slots: int) -> "RingNoise":
        """Make the ring noise that draws what `noise` draws.

        Args:
            noise: the noise.
            slots: positions kept a row.

        Returns:
            A new noise.
        """
        return RingNoise(noise.seeds, noise.coupled, slots)

    @cached_property
    def _rings(self) -> dict[Role, GumbelRing]:
        return {}

    def value(self, position: Tensor) -> Keys:
        return self._kept(Role.VALUE, position)

    def shared(self, position: Tensor) -> Keys:
        return self._kept(Role.SHARED, position)

    def _kept(self, role: Role, position: Tensor) -> Keys:
        keys = self._keys(role, position)
        if self.slots < 1 or position.device.type != "cpu":
            return keys
        if role not in self._rings:
            self._rings[role] = GumbelRing(len(self.seeds), self.slots)
        rows = torch.arange(len(self.seeds))[:, None].expand_as(keys.words)
        return RingKeys(keys.words, rows, position.expand_as(keys.words), self._rings[role])
