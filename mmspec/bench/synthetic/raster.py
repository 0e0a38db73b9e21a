"""A synthetic picture model, for counting the forwards of window methods without weights or data.

A cell depends on its left, upper and upper right neighbours, and in sequences of frames on the same cell of the frame before, through
random tables, with an entropy similar to that of picture models. Tokens per forward are meaningful; seconds are not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import FREE, Raster
from mmspec.core.protocols import Drafter
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.base import Accept
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import fresh, gumbel, maximal, target_noise
from mmspec.drafters.jacobi.initialisers import Initialiser, uniform
from mmspec.drafters.jacobi.proactive import Proactive
from mmspec.drafters.jacobi.windows import Window
from mmspec.drafters.none import NoDraft

SIDE, CODES = 16, 128
SPREAD = 1.33
"""Standard deviation of the logits. The entropy of a cell is about 4 nats at 1.33, 4.6 at 0.65 and 2.6 at 2.4; that of a
uniform distribution is 4.85."""


@dataclass(frozen=True)
class SyntheticRaster:
    """A target over `side` x `side` pictures of `codes` codes, or sequences of such frames; the prompt is the number of rows."""

    tables: Tensor  # [3 or 4, codes + 1, codes] logits given each neighbour; the last code is no neighbour
    raster: Raster

    @staticmethod
    def make(spread: float = SPREAD, side: int = SIDE, codes: int = CODES, seed: int = 0, frames: int = 1) -> "SyntheticRaster":
        """Return a target with random tables.

        Args:
            spread: standard deviation of the logits.
            side: height and width of the pictures, in codes.
            codes: size of the codebook.
            seed: seed of the tables.
            frames: pictures written one after the other.
        """
        near = 3 if frames == 1 else 4
        tables = torch.randn(near, codes + 1, codes, generator=torch.Generator().manual_seed(seed))
        raster = frame = Raster.grid(side, side, codes)
        for _ in range(frames - 1):
            raster = frame.behind(raster)
        return SyntheticRaster(tables * spread / near**0.5, raster)

    def begin(self, prompt: int) -> tuple["SyntheticSession", Draft]:
        zeros = torch.zeros(prompt, dtype=torch.long)
        return SyntheticSession(self, prompt), Draft.root(zeros, zeros)


class SyntheticSession:
    """Holds one picture per row, and one per node while a draft is scored."""

    def __init__(self, target: SyntheticRaster, rows: int):
        raster = target.raster
        self.target, self.length, self.scored = target, raster.length, 0
        self.picture = torch.full((rows, raster.length + 1), raster.codes)  # the last column takes the prompt's value
        right = [above + 1 if above != FREE and (above + 1) % raster.width else FREE for above in raster.up]
        before = [place - raster.height * raster.width for place in range(raster.length)]
        before = [place if place >= 0 else FREE for place in before]
        near = (raster.left, raster.up, right, before)[: len(target.tables)]
        self.near = torch.tensor([[*places, FREE] for places in near])  # [3 or 4, T + 1]

    def score(self, draft: Draft) -> Scored:
        position = (draft.start[:, None] + draft.depth()).clamp(max=self.length)  # [B, N] of the value each node calls for
        own = torch.where(draft.ancestors(), ((position - 1) % (self.length + 1))[:, None], self.length)
        pictures = self.picture[:, None].repeat(1, draft.size, 1).scatter_(2, own, draft.nodes[:, None].expand_as(own))
        pictures[..., -1] = self.target.raster.codes
        self.pictures, self.scored = pictures, draft.size
        near = pictures.gather(2, self.near[:, position].permute(1, 2, 0) % (self.length + 1))  # [B, N, 3 or 4]
        return Scored(Categorical(torch.stack([table[near[..., i]] for i, table in enumerate(self.target.tables)]).sum(0)))

    def commit(self, keep: Tensor, most: int) -> None:
        kept = keep >= 0
        last = keep.gather(1, (kept.sum(1, keepdim=True) - 1).clamp_min(0))[:, 0].clamp_min(0)
        self.picture = torch.where(kept.any(1, keepdim=True), self.pictures[torch.arange(len(keep)), last], self.picture)
        self.scored = 0


def _shape(couple) -> Callable[[Raster, Initialiser, int], Drafter]:
    return lambda raster, init, window: Window(raster, couple, init, window)


METHODS: dict[str, tuple[Callable[[Raster, Initialiser, int], Drafter], Accept]] = {
    "plain": (lambda raster, init, window: NoDraft(), Match()),
    "sjd": (_shape(fresh), Token()),
    "scd": (_shape(maximal), Token()),
    "scd-gumbel": (_shape(gumbel), Token()),
    "coupled": (_shape(target_noise), Coupled()),
    "pac": (lambda raster, init, window: Proactive(raster, maximal, init, window, width=3), without_replacement_rule()),
}
"""Drafters, given raster, initialiser and window, and the rule that judges them."""


def compression(
    method: str,
    window: int,
    *,
    init: Initialiser = uniform,
    spread: float = SPREAD,
    rows: int = 8,
    seed: int = 0,
    side: int = SIDE,
    frames: int = 1,
) -> float:
    """Return the tokens per forward of `method` with a window of `window` tokens, over `rows` pictures, or sequences, of one model."""
    target = SyntheticRaster.make(spread, side, frames=frames)
    make, rule = METHODS[method]
    calls = 0

    def count(step) -> None:
        nonlocal calls
        calls += sum(map(bool, step.committed.values))

    stopping, noise = DefaultStopping(rows, target.raster.length), Noise.from_seed(seed, rows)
    drafter = make(target.raster, init, window)
    generate(target, drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(window - 1), on_step=count)
    return rows * target.raster.length / calls
