"""Parallel Jacobi decoding (PJD, Liao et al. 2026, arXiv 2606.05703): a window of guesses in every row under way.

Rows start as in ZipAR, once the row above is covered far enough. What is left out of their contexts changes from round to round, so a
guess that fails in a row whose context is incomplete is not replaced for good: it and those behind it wait, as guesses drawn afresh.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import LOSSY, Token
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.raster import Raster
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict
from mmspec.drafters.couplers import Coupler, fresh
from mmspec.drafters.initialisers import Board, Initialiser, up
from mmspec.drafters.windows import Window, WindowSession
from mmspec.vision.lanes import Lines, TurnNoise, deferred
from mmspec.vision.row_target import RowSession
from mmspec.vision.rows import Way


@dataclass(frozen=True)
class PJD:
    """Every row under way settles at most `window` tokens a forward, and never catches up with the row above.

    A row starts when the share `coverage` of the row above is settled. At most `rows` rows are under way at once: None for twice as
    many as there are when all advance alike. Guesses are redrawn by `couple`, and are first what `init` says. Given everything before
    it a token follows no law that is at hand, so there is no meter.
    """

    window: int = 16
    coverage: float = 0.25
    couple: Coupler = fresh  # pyright: ignore[reportAssignmentType]
    init: Initialiser = up
    rows: int | None = None
    meter = False

    def __post_init__(self):
        if self.window < 2:
            raise ValueError(f"window is {self.window}: give at least 2 tokens, the last settled one and a guess")
        if not 0 < self.coverage <= 1:
            raise ValueError(f"coverage is {self.coverage}: the share of the row above must be above 0 and at most 1")
        if self.rows is not None and self.rows < 2:
            raise ValueError(f"rows is {self.rows}: at least 2 must be under way, or nothing is decoded side by side")
        if self.init.laws:
            raise ValueError(f"initialiser {self.init.name!r} copies laws, which rows decoded side by side do not share: use a copying one")

    def way(self, lines: Lines) -> Way:
        start = math.ceil(self.coverage * lines.raster.width)
        rows = self.rows or 2 * math.ceil(lines.raster.width / start)
        drafter = RowWindow(lines.raster, self.couple, self.init, self.window)
        return Way(start, min(rows, lines.raster.height), drafter, Deferring(), self.window)


@dataclass(frozen=True)
class Deferring:
    """The token rule where nothing is missing above; elsewhere a guess that fails is not replaced, but left for a later round."""

    exactness = LOSSY
    coupled, uses_q, trees = False, True, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        verdict = Token()(draft, scored, turned(noise, draft))
        return deferred(verdict, (verdict.judged > verdict.accepted) & ~draft.aux.complete)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        """Of a guess that is settled where something is missing: norm(min(p, q)). Otherwise it is p."""
        return Categorical.of(torch.minimum(p.probs(), q.probs()))


@dataclass(frozen=True)
class RowWindow:
    """A window in every lane, over one board a picture."""

    raster: Raster
    couple: Coupler
    init: Initialiser
    window: int

    def begin(self, prompt: Any, session: Any) -> "RowWindowSession":
        return RowWindowSession(self, session)


class RowWindowSession:
    """A window session whose rows are lanes: it is told where a lane begins another line, and what was only put off."""

    def __init__(self, plan: RowWindow, session: RowSession):
        self.inner = RowWindows(Window(plan.raster, plan.couple, plan.init, plan.window), session.pictures)
        self.expected: Tensor | None = None

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        seen = self.inner.seen
        if seen is not None:  # what was seen in one line says nothing of another
            self.inner.seen = replace(seen, left=torch.where(frontier.start == self.expected, seen.left[:, 0], 0)[:, None])
        return self.inner.propose(frontier, room, turned(noise, frontier))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        # The law of a value that was put off is not used up, so laws are counted by what was settled; lanes that ran nothing saw none.
        self.expected = torch.where(draft.valid[:, 0], draft.start + verdict.count, -1)
        self.inner.observe(draft, scored, replace(verdict, accepted=verdict.count - 1), settled)


class RowWindows(WindowSession):
    """What is settled in one lane is known in all lanes of its picture."""

    def __init__(self, plan: Window, pictures: int):
        super().__init__(plan)
        self.pictures = pictures

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        super().observe(draft, scored, verdict, settled)
        board = self._board(draft)
        assert isinstance(board, Board)  # the window has a raster
        lanes = board.values.unflatten(0, (self.pictures, -1))  # a position is settled in one lane, and 0 in the others
        board.values = lanes.amax(1, keepdim=True).expand_as(lanes).flatten(0, 1).clone()


def turned(noise: Noise, draft: Draft) -> TurnNoise:
    """`noise` for the round of `draft` alone."""
    return TurnNoise(noise.seeds, noise.coupled, draft.aux.turn << 32)
