"""Windows that are redrawn every round: the target's last laws draft (SJD, Teng et al. 2025; SCD, arXiv 2510.24211).

A forward over a window of guesses gives a law for every position behind them, though after guesses that may be wrong. The next
round's guesses are drawn from those laws. How, given the guesses before, is the coupler's matter; what stands where no law has
been seen is the initialiser's.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decode import TargetSession
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.raster import Raster
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict
from mmspec.drafters.couplers import Before, Coupler, maximal
from mmspec.drafters.initialisers import Ahead, Board, Initialiser, Line, chosen, mixture, uniform


@dataclass(frozen=True)
class Window:
    """Drafts `window` tokens a forward, the frontier included; fewer where the round or a row's room asks for fewer.

    With a `raster` it drafts in the first round too, and knows neighbours and forced controls. Without one it drafts texts:
    `init` is `uniform` or `left`, and nothing is drafted before the target has said how many values there are.
    Pair coupler and rule with `couplers.check_pairing`. `dtype` is that of the first round's laws.
    """

    raster: Raster | None = None
    couple: Coupler = maximal
    init: Initialiser = uniform
    window: int = 32
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        if self.window < 2:
            raise ValueError(f"window is {self.window}: give at least 2 tokens, the last settled one and a guess")
        if self.raster is None and any(walk[0] == "up" for walk in self.init.walks):
            raise ValueError(f"initialiser {self.init.name!r} looks at the value above: give the window a raster, or start with left")

    def begin(self, prompt: Any, session: TargetSession) -> "WindowSession":
        return WindowSession(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the round before says of positions `start`, `start` + 1, ... of the next one."""

    draft: Draft
    law: Categorical  # [B, N] the laws after the draft's nodes
    column: Tensor  # [B, M] which of them stands at each position
    left: Tensor  # [B, 1] how many positions have one
    guess: Tensor  # [B, M] which of the draft's guesses stands at each position: all those with a law but the last have one

    def laws(self, steps: Tensor) -> Categorical:
        """[B, W] at `steps` [W] from the start; where none was seen, any."""
        return self.law.at(self.column[:, steps.clamp(max=self.column.shape[1] - 1)])

    def before(self, steps: Tensor) -> Before | None:
        """The guesses there, if there were any."""
        if self.draft.size == self.draft.roots:
            return None
        index = self.guess[:, steps.clamp(max=self.guess.shape[1] - 1)]
        return Before(self.draft.guesses, self.draft.q, index, steps < self.left - 1)


class WindowSession:
    """Draws one guess a position and lays them out as a chain. What is laid out otherwise overrides `levels`, `lay_out` and `places`."""

    branches = False  # whether laying out needs the laws, recorded or not

    def __init__(self, plan: Window):
        self.plan = plan
        self.board: Board | Line | None = None
        self.seen: Seen | None = None

    @property
    def levels(self) -> int:
        """The most positions a round looks ahead."""
        return self.plan.window - 1

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        length, seen, start = min(self.levels, room.length), self.seen, frontier.start
        steps = torch.arange(length, device=start.device)
        position = start[:, None] + steps
        ahead = Ahead(position, start[:, None] + (0 if seen is None else seen.left), frontier.nodes[:, -1:])
        board = self._board(frontier)
        law = board.laws(ahead, None if seen is None else seen.laws(steps)) if length else None
        if law is None:
            return frontier
        values, q = self.plan.couple(law, None if seen is None else seen.before(steps), noise, position, start)
        law = law if q is None else q
        neighbours = board.neighbours(ahead, values)
        if neighbours is not None:
            own = ahead.seen | (neighbours < 0).all(-1)
            values = torch.where(own, values, chosen(neighbours, noise, position, start))
            law = law.where(own, mixture(neighbours, law)) if self.branches or q is not None else law
        return self.lay_out(frontier, room, noise, values, law, q is not None)

    def lay_out(self, frontier: Draft, room: Room, noise: Noise, values: Tensor, law: Categorical, record: bool) -> Draft:
        """The draft made of one guess a position, `values` [B, W] drawn from `law`, which is q if it is to be recorded."""
        return frontier.extend_chain(values, room.guesses, law if record else None)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        column, guess, reach = self.places(draft, verdict)
        self.seen = Seen(draft, scored.p, column, (reach - verdict.accepted).clamp_min(0)[:, None], guess)
        self._board(draft).settle(draft, scored, verdict)

    def places(self, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
        """Columns of the laws and indices of the guesses at the next round's positions, both [B, M], and how many levels were guessed [B].

        The law after node i judges node i + 1. Those of the accepted guesses and of the value settled after them are used up, and so
        are the accepted guesses and the one the settled value took the place of.
        """
        steps = verdict.accepted[:, None] + torch.arange(max(1, draft.size - draft.roots), device=draft.start.device)
        column = (draft.roots + steps).clamp(max=draft.size - 1)
        return column, (steps + 1).clamp(max=max(0, draft.size - draft.roots - 1)), draft.valid[:, draft.roots :].sum(1)

    def _board(self, frontier: Draft) -> Board | Line:
        if self.board is None:
            plan = self.plan
            self.board = Line(plan.init) if plan.raster is None else Board(plan.raster, plan.init, plan.window, frontier.start, plan.dtype)
        return self.board
