"""Two-model speculative decoding (Leviathan et al. 2023; Chen et al. 2023): any target can be the drafter, with any shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.protocols import StartWork, Target, TargetSession
from mmspec.core.records import CONTEXT, PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import join_tensors, refuse_fixed_rows, rows_of
from mmspec.drafters.fallback import FallbackSession
from mmspec.drafters.shapes import Chain, Shape, for_source
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.views.base import View, same_prompt
from mmspec.drafters.views.sound import encoder_start
from mmspec.models.model_checks import model_name, refuse_unhealthy
from mmspec.utils.devices import to_device


@dataclass(frozen=True)
class ModelDrafter:
    """Drafts with a smaller model (Leviathan et al. 2023; Chen et al. 2023).

    Args:
        target: the drafter's model, such as an `HFTarget`.
        shape: form of a draft: `Chain`, `Comb`, `StaticTree`, `ExpandRerank` or `BestFirst`.
        view: maps the target's prompt to what the drafter reads; see `mmspec.drafters.views`.
    """

    target: Target
    shape: Shape = field(default_factory=Chain)
    view: View = same_prompt

    def begin(self, prompt: Any, session: TargetSession) -> "ModelSession":
        """Open the drafting session of one generation."""
        if getattr(self.view, "late", False):
            return self.later(prompt, session)
        return self._session(self._opened(prompt, session))

    def later(self, prompt: Any, session: TargetSession) -> "ModelSession":
        """Open a session whose model runs the prompt only when it first drafts."""
        after = session if getattr(self.view, "late", False) else None
        return self._session(partial(self._opened, prompt, session), after)

    def start_work(self, prompt: Any, session: TargetSession) -> StartWork | None:
        """Estimate the work of the drafter's own encoder; see `CostlyStart.start_work`."""
        own = getattr(self.target, "target", self.target)  # without the translation of its ids
        return encoder_start(self.view, getattr(own, "model", None), prompt, session)

    def capture(self, reserve: int) -> "ModelDrafter":
        """Return this drafter with its model's forwards captured as CUDA graphs, where supported; see `HFTarget.capture`."""
        capture = getattr(self.target, "capture", None)
        return self if capture is None else replace(self, target=capture(reserve))

    def _session(self, own: Any, after: Any = None) -> "ModelSession":
        return ModelSession(own, self.shape, after)

    def _opened(self, prompt: Any, session: TargetSession) -> TargetSession:
        own, _ = self.target.begin(self.view(prompt, session))
        return watching(own, getattr(self.shape, "reads", ()))


def watching(session: Any, states: tuple[int, ...]) -> Any:
    """Make `session` return hidden states `states` from now on. ValueError if it has none to return."""
    if states and not hasattr(session, "watch"):
        name = type(session).__name__
        raise ValueError(f"{name} returns no hidden states: a learned stop needs a transformers drafter of the target's vocabulary")
    if states:
        session.watch(states)
    return session


class ModelSession:
    """Drafting session of a model, with the committed values that it has not run yet.

    A drafter never runs the last value it drafts. Where that value is accepted, or where rounds pass without drafting, the value waits and
    is fed as an additional root of the next draft. Rows without waiting values hold PAD there, so shapes stay fixed.
    """

    def __init__(self, session: TargetSession | Callable[[], TargetSession], shape: Shape | None = None, after: Any = None):
        self._session = session
        self.shape = shape.begun() if isinstance(shape, Chain | BestFirst) else shape  # no shape: `_grow` is a subclass's own
        self.after = after  # the target's session, where a session is not to be opened before that has run the prompt
        self.waiting: tuple[Tensor, Tensor] | None = None  # values [B, W] and which of them are real
        self.fed: Tensor | None = None  # [B, W] which of them are roots of the draft under way
        self.origin: Tensor | None = None  # [B, G] own column of each proposed draft token
        self.lag = 0
        self.healthy: Tensor | None = None  # [B] bool: True while all logits of this session were finite
        self.reach = Reach()
        self.begun = False  # the model has run its prompt
        self.alive: Tensor | None = None  # [B, 1] bool: rows that take part in the draft under way; None for all
        self.held = False  # a row that does not may do so again, since some of its roots may be taken back

    @property
    def session(self) -> Any:
        """The model's own session; opened on first use where it was deferred."""
        if callable(self._session):
            self._session = self._session()
        return self._session

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        self._forget()
        if budget.length == 0 or (self.after is not None and self.after.context is not None):
            return pending
        room = self.reach.left(getattr(self.session, "room", None), pending.roots, len(pending.nodes))
        if room is not None and max(room) < 1 and self.begun:  # no row can be drafted; rows that join need a session that has begun
            return pending
        if room is not None and not self.begun:
            self.session.leave_out_long_prompts()
        budget, self.begun = self._within(budget, room), True
        own = self._rooted(pending)
        grown, self.origin = self._grow(pending, own, budget, noise)
        self.lag = own.roots - pending.roots
        parents = grown.parents[:, own.roots :]
        parents = torch.where(parents >= 0, parents - self.lag, parents)
        draft = pending.extend(grown.draft_tokens, parents, grown.q, linear=grown.linear, width=grown.width, levels=grown.levels)
        return draft if self.healthy is None else replace(draft, drafter_healthy=self.healthy)

    def score(self, draft: Draft) -> Scored:
        """Return the session's distributions, and record the rows whose logits are not finite."""
        scored = self.session.score(draft)
        if scored.healthy is not None:
            self.healthy = scored.healthy if self.healthy is None else self.healthy & scored.healthy
        return scored

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        self._record(committed)
        if draft.size == draft.roots and self.reach.over:
            return
        if draft.size == draft.roots:  # no drafts in this round, or its draft tokens were committed elsewhere
            self._forget()
            self._wait(draft.nodes, draft.valid)
            return
        if isinstance(self.shape, Chain | BestFirst):
            self.shape.learn(draft, verdict)
        kept = verdict.keep[:, 1:]  # draft tokens
        roots = torch.arange(self.lag + 1, device=kept.device).expand(len(kept), -1)
        roots = torch.where(verdict.keep[:, :1] >= 0, self._real_roots(roots), -1)
        column = torch.where(kept >= 0, self.origin.gather(1, (kept - 1).clamp_min(0)), -1)
        ran = column < self.session.scored
        if hasattr(self.session, "learn"):  # a session that adapts its distributions to the verdicts
            own = torch.cat([torch.full_like(verdict.keep[:, :1], self.lag), column], 1)
            real = (verdict.keep >= 0) & (own < self.session.scored)
            self.session.learn(scored.p.at(verdict.keep.clamp_min(0)), own, real)
        unrun = (kept >= 0) & ~ran
        rows = torch.arange(len(kept), device=kept.device)[:, None]
        self.session.commit(torch.cat([roots, torch.where(ran, column, -1)], 1), max(committed.accepted) + self.lag + 1)
        if getattr(self.shape, "replaces", False):
            self.waiting = (draft.nodes[rows, kept.clamp_min(0)], unrun)
        else:
            value = draft.nodes[rows, torch.where(unrun, kept, 0).amax(1, keepdim=True)]
            self.waiting = (value, unrun.any(1, keepdim=True))

    @property
    def joinable(self) -> bool:
        """True once the model has run its prompt; see `core.rows.changes.ChangesRows`."""
        refuse_fixed_rows(self.session, "the drafter")
        return self.session.joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.session.take_rows(rows)
        self.reach.take_rows(rows)
        if isinstance(stop := getattr(self.shape, "stop", None), FallbackSession):
            stop.take_rows(rows)
        self.fed = self.origin = None
        self.waiting = None if self.waiting is None else (rows_of(self.waiting[0], rows), rows_of(self.waiting[1], rows))
        self.healthy = None if self.healthy is None else rows_of(self.healthy, rows)

    def join_rows(self, other: "ModelSession") -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.session.join_rows(other.session)
        self.reach.join_rows(other.reach)
        mine, theirs = getattr(self.shape, "stop", None), getattr(other.shape, "stop", None)
        if isinstance(mine, FallbackSession) and isinstance(theirs, FallbackSession):
            mine.join_rows(theirs)
        self.fed = self.origin = None
        if self.waiting is not None and other.waiting is not None:
            self.waiting = (join_tensors(self.waiting[0], other.waiting[0]), join_tensors(self.waiting[1], other.waiting[1], pad=False))
        if self.healthy is not None and other.healthy is not None:
            self.healthy = torch.cat([self.healthy, other.healthy])

    def _record(self, committed: Committed) -> None:
        """Count what a round committed. FloatingPointError for logits that are not finite; synchronises with the device only where the
        round's outcome shows that there are some.
        """
        self.reach.advance(committed)
        if self.healthy is not None and committed.drafter_healthy is not None and not all(committed.drafter_healthy):
            refuse_unhealthy(self.healthy, [bool(values) for values in committed.values], _named(self.session))

    def _within(self, budget: Budget, room: list[int] | None) -> Budget:
        """The budget within the positions that each row has left; rows that have none do not take part in this draft."""
        self.alive, self.held = None, False
        if room is None or min(room) >= budget.length:
            return budget
        self.held = any(most < 1 and not past for most, past in zip(room, self.reach.past, strict=True))
        left = to_device(room, budget.left.device)
        self.alive = (left > 0)[:, None]
        return replace(budget, left=torch.minimum(budget.left, left + 1))

    def _grow(self, pending: Draft, own: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """The finished draft that grows from `own`, the roots this session runs, and its draft tokens' own columns."""
        shape, budget = for_source(self.shape, budget, getattr(self.session, "mixes_depths", True))
        return shape.grow(self.score, own, budget, noise)

    def _forget(self) -> None:
        """Drop the unfinished draft, if there is one. Values that waited are committed and have now been run."""
        if self.fed is None or self.session.scored == 0:
            return
        columns = torch.arange(self.fed.shape[1], device=self.fed.device)
        self.session.commit(torch.where(self.fed, columns, -1), len(columns))
        keep = self.held and self.waiting is not None and self.alive is not None
        self.waiting = (self.waiting[0], self.waiting[1] & ~self.alive) if keep else None  # type: ignore[operator, index]

    def _wait(self, value: Tensor, real: Tensor) -> None:
        old = self.waiting
        self.waiting = (value, real) if old is None else (torch.cat([old[0], value], 1), torch.cat([old[1], real], 1))

    def _real_roots(self, columns: Tensor) -> Tensor:
        """Columns of the roots that hold values, -1 where a row held PAD."""
        real = torch.ones_like(columns, dtype=torch.bool)
        if self.waiting is not None:
            real[:, :-1] = self.waiting[1]
        return torch.where(real if self.alive is None else real & self.alive, columns, -1)

    def _rooted(self, pending: Draft) -> Draft:
        """The pending token with the waiting values as roots before it."""
        if self.waiting is None:
            none = torch.zeros_like(pending.parents[:, :1], dtype=torch.bool)
            self.waiting = (torch.zeros_like(pending.nodes[:, :1]), none)
        values, real = self.waiting
        self.fed, roots = real & pending.valid[:, -1:], pending.valid
        if self.alive is not None:
            self.fed, roots = self.fed & self.alive, roots & self.alive
        return committed_values(torch.cat([values, pending.nodes], 1), torch.cat([self.fed, roots], 1), pending.start)


class Reach:
    """How far the rows of a drafter have come, for drafters that look positions up in a table, which has an end.

    A row that has come there is not run any more, and nothing is drafted for it.
    """

    def __init__(self) -> None:
        self.values: list[int] = []  # committed, by row
        self.past: list[bool] = []  # rows that have ended, or that have no position left for their pending token

    @property
    def over(self) -> bool:
        """True once no row is drafted any more."""
        return bool(self.past) and all(self.past)

    def left(self, room: list[int] | None, roots: int, rows: int) -> list[int] | None:
        """Return the draft tokens that each row may have, below 1 where it is not run.

        Args:
            room: positions behind the prompt, by row; see `models.session.Room`.
            roots: of the pending draft; all but one may be taken back.
            rows: their number.

        Returns:
            Draft tokens, all of which may be run; None without a table.
        """
        self._know(rows)
        if room is None:
            return None
        left = [0 if past else have - used for have, used, past in zip(room, self.values, self.past, strict=True)]
        self.past = [past or most < 1 for past, most in zip(self.past, left, strict=True)]
        return [most - roots + 1 for most in left]

    def advance(self, committed: Committed) -> None:
        """Count what a round committed."""
        self._know(len(committed.values))
        self.values = [used + len(new) for used, new in zip(self.values, committed.values, strict=True)]
        if committed.ended:
            self.past = [past or ended for past, ended in zip(self.past, committed.ended, strict=True)]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.values, self.past = [self.values[row] for row in rows], [self.past[row] for row in rows]

    def join_rows(self, other: "Reach") -> None:
        """Append the rows of another one; see `core.rows.changes.ChangesRows`."""
        self.values, self.past = self.values + other.values, self.past + other.past

    def _know(self, rows: int) -> None:
        if not self.values:
            self.values, self.past = [0] * rows, [False] * rows


def _named(session: Any) -> str:
    """The name that error messages give to the model of a session."""
    while hasattr(session, "session"):
        session = session.session
    return model_name(getattr(getattr(session, "target", session), "model", session))


def committed_values(values: Tensor, real: Tensor, start: Tensor) -> Draft:
    """Return a draft of roots only: `values` [B, R] in order, PAD where they are not `real` [B, R]."""
    columns = torch.arange(values.shape[1], device=values.device)
    before = torch.where(real, columns, CONTEXT).cummax(1).values
    before = torch.cat([torch.full_like(before[:, :1], CONTEXT), before[:, :-1]], 1)
    return Draft(values, torch.where(real, before, PAD), start, roots=values.shape[1])


def as_root(draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Draft, Scored, Verdict]:
    """Return a draft whose kept tokens have become roots, for drafters that made only a part of it; with its scores and verdict."""
    kept, real = verdict.keep.clamp_min(0), verdict.keep >= 0
    rows = torch.arange(len(kept), device=kept.device)[:, None]
    roots = committed_values(draft.nodes[rows, kept], real, draft.start)
    columns = torch.arange(kept.shape[1], device=kept.device)
    hidden = None if scored.hidden is None else scored.hidden[rows, kept]
    return roots, Scored(scored.p.at(kept), hidden, scored.context, scored.healthy), replace(verdict, keep=torch.where(real, columns, -1))
