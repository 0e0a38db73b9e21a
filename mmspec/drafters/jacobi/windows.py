"""Jacobi windows: draft tokens redrawn every round from the target's last distributions (SJD, Teng et al. 2025; SCD, arXiv 2510.24211).

A forward over a window of draft tokens gives a distribution for every position after them, though after draft tokens that may be wrong.
The next round's draft tokens are drawn from those distributions by a coupler; positions without a distribution are filled by an
initialiser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.protocols import TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState, join_tensors, rows_of
from mmspec.drafters.jacobi.couplers import Before, Coupler, maximal, target_noise
from mmspec.drafters.jacobi.initialisers import Board, Initialiser, Line, WindowAhead, choose_neighbour, neighbour_distribution, uniform


@dataclass(frozen=True)
class Window:
    """Jacobi window (SJD, Teng et al. 2025; SCD, arXiv 2510.24211).

    Pair coupler and rule with `couplers.check_pairing`.

    Args:
        raster: the grid of pictures; the window then drafts in the first round too and knows neighbours and forced controls. None for
            texts, with `init` `uniform` or `left`, which are drafted from the second round on.
        couple: how draft tokens are drawn; see `mmspec.drafters.jacobi.couplers`.
        init: initialiser of positions without a distribution.
        window: tokens a forward, the pending token included; fewer where the budget is smaller.
        dtype: dtype of the first round's distributions.

    Raises:
        ValueError: for a window below 2, or an initialiser that needs a raster.
    """

    raster: Raster | None = None
    couple: Coupler = maximal
    init: Initialiser = uniform
    window: int = 32
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        if self.window < 2:
            raise ValueError(f"window is {self.window}: give at least 2 tokens, the last committed one and a draft token")
        if self.raster is None and any(walk[0] == "up" for walk in self.init.walks):
            raise ValueError(f"initialiser {self.init.name!r} looks at the value above: give the window a raster, or start with left")

    def begin(self, prompt: Any, session: TargetSession) -> "WindowSession":
        """Open the drafting session of one generation."""
        return WindowSession(self)


@dataclass(frozen=True, slots=True)
class LastRound:
    """Distributions and draft tokens of the round before at positions `start`, `start` + 1, ... of the next one."""

    draft_tokens: Tensor  # [B, G] those of that round
    q: Categorical | None  # [B, G] the distributions that they were drawn from, where they are recorded
    distribution: Categorical  # [B, N] the distributions after the draft's nodes
    column: Tensor  # [B, M] which of them stands at each position
    left: Tensor  # [B, 1] how many positions have one
    draft_token: Tensor  # [B, M] which draft token stands at each position: all positions with a distribution but the last have one
    drawn: Tensor | None = None  # [B, N] the target's own draws after the draft's nodes, where the rule made them

    @property
    def drafted(self) -> bool:
        """True if the round had draft tokens."""
        return self.draft_tokens.shape[1] > 0

    def take_rows(self, rows: Sequence[int]) -> "LastRound":
        """Return some rows."""
        draft_tokens, column, left, draft_token = (
            rows_of(part, rows) for part in (self.draft_tokens, self.column, self.left, self.draft_token)
        )
        q, drawn = None if self.q is None else _rows_of(self.q, rows), None if self.drawn is None else rows_of(self.drawn, rows)
        return LastRound(draft_tokens, q, _rows_of(self.distribution, rows), column, left, draft_token, drawn)

    def join_rows(self, other: "LastRound") -> "LastRound":
        """Return these rows followed by the `other` ones. What the columns hold that are added to a row is not read."""
        pairs = (
            (self.draft_tokens, other.draft_tokens), (self.column, other.column), (self.left, other.left),
            (self.draft_token, other.draft_token),
        )  # fmt: skip
        draft_tokens, column, left, draft_token = (join_tensors(*pair, left=False) for pair in pairs)
        q, drawn = None, None
        if self.q is not None or other.q is not None:
            q = _joined(self._recorded, other._recorded)
        if all(part.drawn is not None or not part.drafted for part in (self, other)):  # without draft tokens, no draw is kept
            drawn = join_tensors(self._draws, other._draws, left=False)
        return LastRound(draft_tokens, q, _joined(self.distribution, other.distribution), column, left, draft_token, drawn)

    @property
    def _recorded(self) -> Categorical:
        """`q`, with columns for a round without draft tokens."""
        return self.distribution.at(torch.zeros_like(self.draft_tokens)) if self.q is None else self.q

    @property
    def _draws(self) -> Tensor:
        """`drawn`, with columns for a round without draft tokens."""
        return self.column.new_zeros(self.distribution.scores.shape[:2]) if self.drawn is None else self.drawn

    def distributions(self, steps: Tensor) -> Categorical:
        """Return the distributions [B, W] at `steps` [W] from the start; arbitrary where none was seen."""
        return self.distribution.at(self.column[:, steps.clamp(max=self.column.shape[1] - 1)])

    def draws(self, steps: Tensor) -> Tensor:
        """Return the target's own draws [B, W] at `steps` [W] from the start; arbitrary where no distribution was seen."""
        assert self.drawn is not None
        return self.drawn.gather(1, self.column[:, steps.clamp(max=self.column.shape[1] - 1)])

    def before(self, steps: Tensor) -> Before | None:
        """Return the draft tokens at `steps`, None without any."""
        if not self.drafted:
            return None
        index = self.draft_token[:, steps.clamp(max=self.draft_token.shape[1] - 1)]
        return Before(self.draft_tokens, self.q, index, steps < self.left - 1)


def _rows_of(distribution: Categorical, rows: Sequence[int]) -> Categorical:
    return Categorical(rows_of(distribution.scores, rows))


def _joined(one: Categorical, other: Categorical) -> Categorical:
    return Categorical(join_tensors(one.scores, other.scores, left=False))


class WindowSession(RowState):
    """Draws one draft token per position and lays them out as a chain. Subclasses override `levels`, `lay_out` and `places`."""

    by_row = ("board", "seen")
    branches = False  # whether laying out needs the distributions, recorded or not

    def __init__(self, plan: Window):
        self.plan = plan
        self.board: Board | Line | None = None
        self.seen: LastRound | None = None

    @property
    def levels(self) -> int:
        """Largest number of positions a round looks ahead."""
        return self.plan.window - 1

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        length, seen, start = min(self.levels, budget.length), self.seen, pending.start
        steps = torch.arange(length, device=start.device)
        position = start[:, None] + steps
        ahead = WindowAhead(position, start[:, None] + (0 if seen is None else seen.left), pending.nodes[:, -1:])
        board = self._board(pending)
        if length and seen is not None and seen.drawn is not None and not self.branches and self.plan.couple is target_noise:
            filled = board.filled(ahead, seen.draws(steps), noise)  # the couple would draw the same values again
            if filled is not None:
                return pending.extend_chain(filled, budget.draft_tokens)
        distribution = board.distributions(ahead, None if seen is None else seen.distributions(steps)) if length else None
        if distribution is None:
            return pending
        values, q = self.plan.couple(distribution, None if seen is None else seen.before(steps), noise, position, start)
        distribution = distribution if q is None else q
        neighbours = board.neighbours(ahead, values)
        if neighbours is not None:
            own = ahead.seen | (neighbours < 0).all(-1)
            values = torch.where(own, values, choose_neighbour(neighbours, noise, position, start))
            distribution = (
                distribution.where(own, neighbour_distribution(neighbours, distribution))
                if self.branches or q is not None
                else distribution
            )
        return self.lay_out(pending, budget, noise, values, distribution, q is not None)

    def lay_out(self, pending: Draft, budget: Budget, noise: Noise, values: Tensor, distribution: Categorical, record: bool) -> Draft:
        """Return the draft with one draft token per position.

        Args:
            pending: the pending token.
            budget: what the round may draft.
            noise: the noise of the round.
            values: [B, W] draft tokens drawn from `distribution`.
            distribution: [B, W] their distributions.
            record: record `distribution` as q.
        """
        return pending.extend_chain(values, budget.draft_tokens, distribution if record else None)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        column, draft_token, reach = self.places(draft, verdict)
        left = (reach - verdict.accepted).clamp_min(0)[:, None]
        self.seen = LastRound(draft.draft_tokens, draft.q, scored.p, column, left, draft_token, verdict.drawn)
        self._board(draft).commit(draft, scored, verdict)

    def places(self, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
        """Return columns of distributions and indices of draft tokens at the next round's positions, both [B, M], and the levels drafted
        [B].
        The distribution after node i judges node i + 1. The distributions of accepted draft tokens and of the value committed after them
        are used up, and so are the accepted draft tokens and the one that the committed value replaces.
        """
        steps = verdict.accepted[:, None] + torch.arange(max(1, draft.size - draft.roots), device=draft.start.device)
        column = (draft.roots + steps).clamp(max=draft.size - 1)
        return column, (steps + 1).clamp(max=max(0, draft.size - draft.roots - 1)), draft.valid[:, draft.roots :].sum(1)

    def _board(self, pending: Draft) -> Board | Line:
        if self.board is None:
            plan = self.plan
            self.board = Line(plan.init) if plan.raster is None else Board(plan.raster, plan.init, plan.window, pending.start, plan.dtype)
        return self.board
