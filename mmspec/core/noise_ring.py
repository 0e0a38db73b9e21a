"""Gumbel noise by output position, computed once a position instead of once a round.

A Jacobi window draws the same positions again in every round with the same noise, and so does the rule that judges it. The numbers of the
last positions of every row are kept in a ring, which is filled ahead: a round then looks numbers up, and few rounds compute any. Draws are
the same, bit for bit, as those of `Noise`. Used on CPUs for vocabularies below `core.gumbel.LARGE`; larger ones are searched, and GPUs have
a kernel that stores no noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.gumbel import LARGE
from mmspec.core.hashing import MIX_1, gumbel, mix, stream_bits
from mmspec.core.noise import Keys, Noise, Role
from mmspec.core.rows.changes import rows_of

_MOST = 1 << 24  # numbers kept, 8 bytes each
_AHEAD = 4  # positions held for each that a round draws, where the memory allows it
_LEAST = 64  # positions held where a round draws few


class GumbelRing:
    """The Gumbel numbers of output positions of every row, up to `slots` that follow one another.

    Args:
        noise: whose numbers.
        role: the streams' role.
        slots: the least positions held a row.
    """

    def __init__(self, noise: "RingNoise", role: Role, slots: int):
        self.noise, self.role, self.least = noise, role, slots
        self.table = torch.empty(len(noise.seeds), 0, 0, dtype=torch.float64)  # [B, slots, V]
        self.held = torch.empty(len(noise.seeds), 0, dtype=torch.long)  # [B, slots] the position in each slot, -1 for none

    def take_rows(self, noise: "RingNoise", rows: Sequence[int]) -> "GumbelRing":
        """Return the ring of some rows, for their `noise`."""
        found = GumbelRing(noise, self.role, self.least)
        found.table, found.held = rows_of(self.table, rows), rows_of(self.held, rows)
        return found

    def join_rows(self, noise: "RingNoise", other: "GumbelRing") -> "GumbelRing":
        """Return the ring of these rows and the `other` ones, for their `noise`; an empty one where the two are not of one size."""
        found = GumbelRing(noise, self.role, self.least)
        if self.table.shape[1:] == other.table.shape[1:]:
            found.table, found.held = torch.cat([self.table, other.table]), torch.cat([self.held, other.held])
        return found

    def fits(self, scores: Tensor) -> bool:
        """Return True if the noise of distributions `scores` [..., V] is kept.

        Args:
            scores: log-probabilities.

        Returns:
            Whether they are on a CPU, below `LARGE` and within the memory limit.
        """
        size = scores.shape[-1]
        return scores.device.type == "cpu" and size < LARGE and len(self.held) * self.least * size <= _MOST

    def numbers(self, rows: Tensor, position: Tensor, size: int) -> Tensor:
        """Return the first `size` Gumbel numbers of each stream.

        Args:
            rows: row of each stream, int64 [..., N]; the same along the last axis, or of its length.
            position: output position of each one [..., N].
            size: numbers a stream V.

        Returns:
            float64 [..., N, V].
        """
        if self.table.shape[-1] < size:
            self._open(size)
        slot = position % self.held.shape[1]
        if (self.held[rows, slot] != position).any():
            self._fill(rows, position)
            if (self.held[rows, slot] != position).any():  # further apart than the ring is long
                return _hashed(self.noise.words(self.role, rows, position), size)
        found = self.table[rows, slot]
        return found if found.shape[-1] == size else found[..., :size]

    def _open(self, size: int) -> None:
        """Make an empty ring of numbers over `size` values."""
        rows = len(self.held)
        slots = min(max(_AHEAD * self.least, _LEAST), max(self.least, _MOST // (rows * size)))
        self.table = torch.empty(rows, slots, size, dtype=torch.float64)
        self.held = torch.full((rows, slots), -1)

    def _fill(self, rows: Tensor, position: Tensor) -> None:
        """Hold, of each row of which a position is missing, its first position and those that follow it."""
        rows = rows.expand_as(position)
        slots = self.held.shape[1]
        missing = self.held[rows, position % slots] != position
        first = torch.full((len(self.held),), torch.iinfo(torch.long).max)
        first.scatter_reduce_(0, rows.flatten(), position.flatten(), "amin")
        some = rows[missing].unique()
        wanted = first[some, None] + torch.arange(slots)
        new = self.held[some[:, None], wanted % slots] != wanted
        rows, position = some[:, None].expand_as(wanted)[new], wanted[new]
        place = rows, position % slots
        self.table[place] = _hashed(self.noise.words(self.role, rows, position), self.table.shape[-1])
        self.held[place] = position


def _hashed(words: Tensor, size: int) -> Tensor:
    return gumbel(stream_bits(words[..., None], torch.arange(size)))


class RingKeys(Keys):
    """Streams whose Gumbel numbers are read from a ring. Their words are computed where they are asked for.

    Args:
        rows: row of each stream [...].
        position: output position of each stream [...].
        ring: the ring.
    """

    __slots__ = ("position", "ring", "rows")

    def __init__(self, rows: Tensor, position: Tensor, ring: GumbelRing):
        for name, value in (("rows", rows), ("position", position), ("ring", ring)):
            object.__setattr__(self, name, value)

    @property
    def words(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The streams, int64 [...]."""
        return self.ring.noise.words(self.ring.role, self.rows, self.position)

    def choose(self, scores: Tensor, ids: Tensor | None = None) -> Tensor:
        """Draw one index from each distribution; see `Keys.choose`."""
        if ids is not None or not self.ring.fits(scores):
            return Keys.choose(self, scores, ids)
        return (scores + self.ring.numbers(self.rows, self.position, scores.shape[-1])).argmax(-1)

    def __getitem__(self, index) -> "RingKeys":
        return RingKeys(self.rows[index], self.position[index], self.ring)


@dataclass(frozen=True)
class RingNoise(Noise):
    """Noise whose `value` and `shared` streams keep their Gumbel numbers in a ring.

    Args:
        seeds: one seed a row, int64 [B].
        coupled: as `Noise`.
        slots: the least positions kept a row: as many as one round draws.
    """

    slots: int = 0

    @staticmethod
    def of(noise: Noise, slots: int) -> "RingNoise":
        """Make the ring noise that draws what `noise` draws.

        Args:
            noise: the noise.
            slots: the least positions kept a row.

        Returns:
            A new noise.
        """
        return RingNoise(noise.seeds, noise.coupled, slots)

    @cached_property
    def _rings(self) -> dict[Role, GumbelRing]:
        return {}

    @cached_property
    def _column(self) -> Tensor:
        """Row numbers [B, 1]."""
        return torch.arange(len(self.seeds))[:, None]

    def take_rows(self, rows: Sequence[int]) -> "RingNoise":
        """Return the noise of some rows, with the numbers that are kept of them."""
        found = RingNoise(rows_of(self.seeds, rows), self.coupled, self.slots)
        found._rings.update({role: ring.take_rows(found, rows) for role, ring in self._rings.items()})
        return found

    def join_rows(self, other: "RingNoise") -> "RingNoise":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the noise of these rows followed by the `other` ones, with the numbers that are kept of both."""
        found = RingNoise(torch.cat([self.seeds, other.seeds]), self.coupled, self.slots)
        both = self._rings.keys() & other._rings.keys()
        found._rings.update({role: self._rings[role].join_rows(found, other._rings[role]) for role in both})
        return found

    def value(self, position: Tensor) -> Keys:
        return self._kept(Role.VALUE, position)

    def shared(self, position: Tensor) -> Keys:
        return self._kept(Role.SHARED, position)

    def words(self, role: Role, rows: Tensor, position: Tensor) -> Tensor:
        """Compute streams that do not depend on the round's start, for any rows.

        Args:
            role: their role.
            rows: row of each stream, int64 [...].
            position: output position of each stream [...].

        Returns:
            Streams, int64 [...].
        """
        return mix(self._mixed(role)[rows, 0] ^ ((position + 1) * MIX_1))

    def _kept(self, role: Role, position: Tensor) -> Keys:
        if self.slots < 1 or position.device.type != "cpu":
            return self._keys(role, position)
        if role not in self._rings:
            self._rings[role] = GumbelRing(self, role, self.slots)
        if len(position) != len(self.seeds):
            position = position.expand(len(self.seeds), -1)
        return RingKeys(self._column.expand_as(position), position, self._rings[role])
