"""Parallel Jacobi decoding (PJD, Liao et al. 2026, arXiv 2606.05703): a window of draft tokens in every active row.

Rows start as in ZipAR, once enough of the row above is committed. The missing part of their contexts changes from round to round, so a
draft token that is rejected in a row with an incomplete context is not replaced: it and those after it are drawn afresh.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY
from mmspec.core.rules.token import Token
from mmspec.drafters.jacobi.couplers import Coupler, fresh
from mmspec.drafters.jacobi.initialisers import Board, Initialiser, up
from mmspec.drafters.jacobi.windows import Window, WindowSession
from mmspec.vision.codes.row_streams import RasterRows, TurnNoise, deferred
from mmspec.vision.codes.row_target import RowSession
from mmspec.vision.codes.rows import RowMethod


@dataclass(frozen=True)
class PJD:
    """PJD (Liao et al. 2026, arXiv 2606.05703): every active row commits at most `window` tokens a forward and never passes the row above.
    Not metered.

    Args:
        window: tokens a forward and row, at least 2.
        coverage: share of the row above that must be committed before a row starts.
        couple: how draft tokens are redrawn.
        init: initialiser of new draft tokens.
        rows: largest number of active rows; None for twice as many as there are when all advance alike.

    Raises:
        ValueError: for values out of range.
    """

    window: int = 16
    coverage: float = 0.25
    couple: Coupler = fresh  # pyright: ignore[reportAssignmentType]
    init: Initialiser = up
    rows: int | None = None
    meter = False

    def __post_init__(self):
        if self.window < 2:
            raise ValueError(f"window is {self.window}: give at least 2 tokens, the last committed one and a draft token")
        if not 0 < self.coverage <= 1:
            raise ValueError(f"coverage is {self.coverage}: the share of the row above must be above 0 and at most 1")
        if self.rows is not None and self.rows < 2:
            raise ValueError(f"rows is {self.rows}: at least 2 must be under way, or nothing is decoded side by side")
        if self.init.distributions:
            raise ValueError(
                f"initialiser {self.init.name!r} copies distributions, which rows decoded side by side do not share: use a copying one"
            )

    def way(self, lines: RasterRows) -> RowMethod:
        """The decoding method as the engine runs it."""
        start = math.ceil(self.coverage * lines.raster.width)
        rows = self.rows or 2 * math.ceil(lines.raster.width / start)
        drafter = RowWindow(lines.raster, self.couple, self.init, self.window)
        return RowMethod(start, min(rows, lines.raster.height), drafter, Deferring(), self.window)


@dataclass(frozen=True)
class Deferring:
    """The token rule where the context is complete; elsewhere a rejected draft token is not replaced, but left for a later round."""

    exactness = LOSSY
    coupled, uses_q, trees = False, True, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        verdict = Token()(draft, scored, turned(noise, draft))
        return deferred(verdict, (verdict.judged > verdict.accepted) & ~draft.aux.complete)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """Of a draft token that is committed where something is missing: norm(min(p, q)). Otherwise it is p."""
        return Categorical.of(torch.minimum(p.probs(), q.probs()))


@dataclass(frozen=True)
class RowWindow:
    """A window in every lane, over one board a picture."""

    raster: Raster
    couple: Coupler
    init: Initialiser
    window: int

    def begin(self, prompt: Any, session: Any) -> "RowWindowSession":
        """Open the drafting session of one generation."""
        return RowWindowSession(self, session)


class RowWindowSession:
    """Window session whose rows are lanes: it handles lanes that begin another line, and deferred draft tokens."""

    def __init__(self, plan: RowWindow, session: RowSession):
        self.inner = RowWindows(Window(plan.raster, plan.couple, plan.init, plan.window), session.pictures)
        self.expected: Tensor | None = None

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        seen = self.inner.seen
        if seen is not None:  # what was seen in one line says nothing of another
            self.inner.seen = replace(seen, left=torch.where(pending.start == self.expected, seen.left[:, 0], 0)[:, None])
        return self.inner.propose(pending, budget, turned(noise, pending))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        # The distribution of a value that was put off is not used up, so distributions are counted by what was committed; lanes that ran
        # nothing saw none.
        self.expected = torch.where(draft.valid[:, 0], draft.start + verdict.count, -1)
        self.inner.observe(draft, scored, replace(verdict, accepted=verdict.count - 1), committed)


class RowWindows(WindowSession):
    """Window session in which values committed in one lane are known in all lanes of the picture."""

    def __init__(self, plan: Window, pictures: int):
        super().__init__(plan)
        self.pictures = pictures

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        super().observe(draft, scored, verdict, committed)
        board = self._board(draft)
        assert isinstance(board, Board)  # the window has a raster
        lanes = board.values.unflatten(0, (self.pictures, -1))  # a position is committed in one lane, and 0 in the others
        board.values = lanes.amax(1, keepdim=True).expand_as(lanes).flatten(0, 1).clone()


def turned(noise: Noise, draft: Draft) -> TurnNoise:
    """`noise` for the round of `draft` alone."""
    return TurnNoise(noise.seeds, noise.coupled, draft.aux.turn << 32)
