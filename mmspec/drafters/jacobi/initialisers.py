"""Initialisers: what is drafted at positions without a distribution, at the far end of a window and in the first round.

In a picture a cell may copy its neighbour to the left or above (Teng et al. 2025). Where that neighbour is unknown too, the nearest known
one in the same direction is used; committed values and values drafted from a distribution are known. Or a cell begins with the code that
stands there most often in the model's pictures: then the distributions of the first round follow a plausible picture, not noise. The
recorded distribution is the one a draft token was drawn from: uniform over the codes, a point mass on the neighbour's value or the usual
code, an equal mixture of both neighbours, or the distribution of the value above. Forced controls are drafted as such.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import FREE, Grammar, Raster
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import rows_of

_COIN = 1  # the branch of the round's draft token noise that chooses between neighbours


@dataclass(frozen=True)
class Initialiser:
    """Copies from neighbours, or from other pictures.

    Args:
        name: name of the initialiser.
        walks: directions to search for the nearest known neighbour, each with fallbacks. Several walks are equally likely; without any, or
            where all lead out of the picture, codes are drawn uniformly.
        distributions: copy the distribution the neighbour was drawn from instead of its value.
        codes: the code to draft at each output position; FREE where a neighbour is copied.
        from_pictures: `codes` are to be those that a model's pictures have there most often, if such are known.
    """

    name: str
    walks: tuple[tuple[str, ...], ...] = ()
    distributions: bool = False
    codes: tuple[int, ...] | None = None
    from_pictures: bool = False


uniform = Initialiser("uniform")
left = Initialiser("left", (("left", "up"),))
up = Initialiser("up", (("up", "left"),))
up_left = Initialiser("up-left", (("up",), ("left",)))
carried = Initialiser("carried", (("up",),), distributions=True)
usual = Initialiser("usual", up_left.walks, from_pictures=True)
INITIALISERS = {init.name: init for init in (uniform, left, up, up_left, carried, usual)}


@dataclass(frozen=True, slots=True)
class WindowAhead:
    """A round's window: its output positions, and which of them have a distribution. `last` is the last committed value."""

    position: Tensor  # [B, W]
    edge: Tensor  # [B, 1] the first position of which no distribution has been seen
    last: Tensor  # [B, 1]

    @property
    def start(self) -> Tensor:
        """First position of the window, [B]."""
        return self.position[:, :1]

    @property
    def seen(self) -> Tensor:
        """True where a position has a distribution, [B, W] bool."""
        return self.position < self.edge


class Line:
    """Context of a text: the value before each position."""

    def __init__(self, init: Initialiser):
        self.copies = bool(init.walks)

    def distributions(self, ahead: WindowAhead, seen: Categorical | None) -> Categorical | None:
        """Return `seen` [B, W], whose tables may be overwritten, with uniform distributions where none was seen."""
        return None if seen is None else Categorical(seen.scores.masked_fill_(~ahead.seen[..., None], 0))

    def neighbours(self, ahead: WindowAhead, drafted: Tensor) -> Tensor | None:
        """Return [B, W, S] the nearest known values, FREE where there is none. `drafted` [B, W] holds the values that have a
        distribution.
        """
        if not self.copies:
            return None
        known = (ahead.edge - ahead.start).clamp(max=drafted.shape[1])
        before = torch.where(known > 0, drafted.gather(1, (known - 1).clamp_min(0)), ahead.last)
        return before[..., None].expand(*drafted.shape, 1)

    def filled(self, ahead: WindowAhead, drafted: Tensor, noise: Noise) -> Tensor | None:
        """Return None: see `Board.filled`."""
        return None

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Record what the round committed."""
        pass

    def take_rows(self, rows: Sequence[int]) -> "Line":
        """Return the context of some rows: nothing of it is kept by row."""
        return self

    def join_rows(self, other: "Line") -> "Line":
        """Return the context of the rows of both."""
        return self


class Board:
    """Context of pictures: every row's committed values and, where distributions are copied, those of the last grid row."""

    def __init__(self, raster: Raster, init: Initialiser, window: int, like: Tensor, dtype: torch.dtype):
        """`window` bounds how far a round looks ahead; `like` [B] gives rows and device, `dtype` is that of the first round's
        distributions."""
        self.raster, self.grammar, self.init, self.dtype = raster, Grammar(raster), init, dtype
        self.values = like.new_zeros(len(like), raster.length + 1)  # the last column takes values that are not read
        self.codes = None if init.codes is None else _codes(raster, init.codes, like.device)
        copies = bool(init.walks) and (init.codes is None or any(map(_is_free, init.codes, raster.forced)))
        self.sources = _sources(raster, init.walks, window, like.device) if copies else None
        self.reach = max((here - above for here, above in enumerate(raster.up) if above != FREE), default=1)
        self.ring: Tensor | None = None  # [B, reach + 1, V] distributions by position modulo the reach, the last one not read

    def take_rows(self, rows: Sequence[int]) -> "Board":
        """Return the context of some rows."""
        ring = None if self.ring is None else rows_of(self.ring, rows)
        return self._of_rows(rows_of(self.values, rows), ring)

    def join_rows(self, other: "Board") -> "Board":
        """Return the context of these rows followed by that of the `other` ones, of the same raster and initialiser."""
        ring = None if self.ring is None or other.ring is None else torch.cat([self.ring, other.ring])
        return self._of_rows(torch.cat([self.values, other.values]), ring)

    def _of_rows(self, values: Tensor, ring: Tensor | None) -> "Board":
        found = copy(self)
        found.values, found.ring = values, ring
        return found

    def distributions(self, ahead: WindowAhead, seen: Categorical | None) -> Categorical:
        """Return `seen` [B, W]; where none was seen, the distribution above or a uniform one."""
        shape = *ahead.position.shape, self.raster.values
        scores = torch.zeros(shape, dtype=self.dtype if seen is None else seen.scores.dtype, device=ahead.position.device)
        distribution = Categorical(self.grammar.at(scores, ahead.position))
        if seen is None:  # nothing committed: there is no distribution to copy either
            return distribution
        if self.init.distributions and self.ring is not None:
            source = self._nearest(ahead)[..., 0]
            above = Categorical(self.ring).at(torch.where(source < 0, self.reach, source % self.reach))
            drafted = seen.at((source - ahead.start).clamp(0, shape[1] - 1))
            distribution = drafted.where(source >= ahead.start, above).where(source >= 0, distribution)
        return seen.where(ahead.seen, distribution)

    def neighbours(self, ahead: WindowAhead, drafted: Tensor) -> Tensor | None:
        """Return [B, W, S] the nearest known values, FREE where there is none. `drafted` [B, W] holds the values that have a
        distribution.
        """
        codes = None if self.codes is None else self.codes[ahead.position.clamp(max=self.raster.length - 1)][..., None]
        if self.init.distributions or self.sources is None:
            return codes
        source = self._nearest(ahead)
        flat = source.flatten(1)
        inside = drafted.gather(1, (flat - ahead.start).clamp(0, drafted.shape[1] - 1))
        value = torch.where(flat >= ahead.start, inside, self.values.gather(1, flat.clamp_min(0)))
        copied = torch.where(flat >= 0, value, FREE).view_as(source)
        return copied if codes is None else torch.where(codes == FREE, copied, codes)

    def filled(self, ahead: WindowAhead, drafted: Tensor, noise: Noise) -> Tensor | None:
        """Return the window's values where they need no distribution: `drafted` [B, W] as far as there were distributions.

        Behind them a neighbour's value is copied, or the last committed value where no neighbour is known; controls are forced. None for
        initialisers that do not copy values.
        """
        neighbours = self.neighbours(ahead, drafted)
        if neighbours is None:
            return None
        copied = choose_neighbour(neighbours, noise, ahead.position, ahead.start[:, 0])
        copied = torch.where((neighbours < 0).all(-1), ahead.last, copied)
        return self.grammar.forced(torch.where(ahead.seen, drafted, copied), ahead.position)

    def _nearest(self, ahead: WindowAhead) -> Tensor:
        """[B, W, S] the nearest known position of each walk, or FREE. Arbitrary at known positions."""
        assert self.sources is not None
        distance = (ahead.position - ahead.edge).clamp(0, self.sources.shape[1] - 1)
        return self.sources[ahead.position.clamp(max=len(self.sources) - 1), distance]

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Record what the round committed."""
        size = scored.p.size
        if size != self.raster.values:
            raise ValueError(
                f"the target's distributions are over {size} values, the raster has {self.raster.values}: restrict its head to those"
            )
        steps = torch.arange(verdict.values.shape[1], device=draft.start.device)
        position = draft.start[:, None] + steps
        new = steps < verdict.count[:, None]
        self.values.scatter_(1, torch.where(new, position, self.raster.length).clamp(max=self.raster.length), verdict.values)
        if self.init.distributions:
            if self.ring is None:
                self.ring = scored.p.scores.new_zeros(len(new), self.reach + 1, size)
            drawn_from = verdict.keep[:, draft.roots - 1 : draft.roots - 1 + len(steps)].clamp_min(0)
            latest = new & (steps >= verdict.count[:, None] - self.reach)
            slot = torch.where(latest, position % self.reach, self.reach)[:, : drawn_from.shape[1]]
            self.ring.scatter_(1, slot[..., None].expand(-1, -1, size), scored.p.at(drawn_from).scores)


@lru_cache(maxsize=64)
def _codes(raster: Raster, codes: tuple[int, ...], device: torch.device) -> Tensor:
    """[T] the code to draft at every output position, FREE at controls and where there is none."""
    if len(codes) != raster.length or not all(FREE <= code < raster.codes for code in codes):
        raise ValueError(f"{len(codes)} usual codes up to {max(codes, default=FREE)}: give {raster.length}, each below {raster.codes}")
    return torch.tensor([code if forced == FREE else FREE for code, forced in zip(codes, raster.forced, strict=True)], device=device)


def _is_free(code: int, forced: int) -> bool:
    return code == FREE == forced


def _lifts(raster: Raster, walk: tuple[str, ...], window: int, device: torch.device) -> list[Tensor]:
    """Tables [T + 1] that move a position 2^i neighbours further, the longest step first; FREE outside of the picture."""
    choices = [getattr(raster, direction) for direction in walk]
    parent = [next((place for place in places if place != FREE), FREE) for places in zip(*choices, strict=True)]
    lifts = [torch.tensor([*parent, FREE], device=device)]
    for _ in range(window.bit_length() - 1):
        lifts.append(lifts[-1][lifts[-1]])  # FREE is the index of the last entry
    return lifts[::-1]


def _sources(raster: Raster, walks: tuple[tuple[str, ...], ...], window: int, device: torch.device) -> Tensor:
    """Table [T + 1, window + 1, S]: the nearest known position by position, distance to the first unknown one, and walk; or FREE.

    Positions from the first unknown one on, the window's own included, count as unknown.
    """
    position = torch.arange(raster.length + 1, device=device)[:, None]
    edge = position - torch.arange(window + 1, device=device)
    found = []
    for lifts in (_lifts(raster, walk, window, device) for walk in walks):
        place = position.expand_as(edge)
        for lift in lifts:
            further = lift[place]
            place = torch.where(further >= edge, further, place)
        found.append(lifts[-1][place])
    return torch.stack(found, -1)


def choose_neighbour(neighbours: Tensor, noise: Noise, position: Tensor, start: Tensor) -> Tensor:
    """Return one of the `neighbours` [B, W, S] of each position, uniformly among those that are not FREE: [B, W]."""
    if neighbours.shape[-1] == 1:
        return neighbours[..., 0].clamp_min(0)
    scores = torch.zeros_like(neighbours, dtype=torch.float32).masked_fill(neighbours < 0, -torch.inf)
    coin = noise.draft_token(position, start, _COIN).choose(scores)
    return neighbours.gather(-1, coin[..., None])[..., 0].clamp_min(0)


def neighbour_distribution(neighbours: Tensor, like: Categorical) -> Categorical:
    """Return the distribution of `choose_neighbour`, over as many values as `like` [B, W]."""
    weights = torch.zeros_like(like.scores)
    return Categorical.of(weights.scatter_add_(-1, neighbours.clamp_min(0), (neighbours >= 0).to(weights.dtype)))
