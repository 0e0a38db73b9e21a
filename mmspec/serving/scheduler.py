"""Continuous batching: rows join and leave a running generation between its rounds (Orca, Yu et al. 2022).

A request begins in a generation of its own, whose prompt is run in pieces between the rounds of the running one; after its first rounds,
when target and drafter have run the prompt, its row joins. Rows that have ended leave before the next round, so that none is idle.

What a row generates does not depend on the rows beside it: noise is keyed by its seed and output positions, and every accept rule of an
engine commits the target's own tokens. So if a round fails, every request of it is run again, alone, and commits the tokens it had; the one
that fails again ends with its error, and the others go on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

from mmspec.core.control import ControlSession
from mmspec.core.decode import OnStep, Rounds
from mmspec.core.rows.changes import RunsPrompt
from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.base import EngineModel


@dataclass
class EngineCounts:
    """What an engine has done.

    Args:
        forwards: forwards of the target.
        columns: columns of these forwards, over all rows, padding included; a pair of rows under guidance counts once.
        rounds: rounds of the running generation.
        rows: rows of these rounds, summed.
        tokens: tokens committed.
        drafted, accepted: draft tokens, and those accepted.
        submitted: requests taken in.
        finished, failed, cancelled: requests that have ended, by how.
        restarted: requests that were run again because another one beside them failed.
    """

    forwards: int = 0
    columns: int = 0
    rounds: int = 0
    rows: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    submitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    restarted: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return all counts by name."""
        return asdict(self)


class Scheduler:
    """Runs requests in one generation, without threads: `step` runs what is due between two rounds, and a round.

    Args:
        model: target and drafter.
        max_rows: most rows, those whose prompts are being run included.
        piece: columns of prompts that are run between two rounds.
        take: returns the next request that may start, or None; called with the most tokens of its prompt, or None: see `may_begin`.
        on_step: called with every round, those of starting requests included.
    """

    def __init__(
        self, model: EngineModel, max_rows: int, piece: int, take: Callable[[int | None], RequestHandle | None], on_step: OnStep = None
    ):
        self.model, self.max_rows, self.piece, self.take, self.on_step = model, max_rows, piece, take, on_step
        self.counts = EngineCounts()
        self.controller: ControlSession = model.control.begin()
        self.running: _Running | None = None
        self.starting: _Running | None = None
        self.apart: deque[RequestHandle] = deque()  # to run alone: a round in which they took part has failed
        self.alone = False

    @property
    def rows(self) -> int:
        """Requests that have a row."""
        return sum(len(part.handles) for part in (self.running, self.starting) if part is not None)

    @property
    def idle(self) -> bool:
        """True if no request has been started."""
        return not self.rows and not self.apart

    def step(self) -> None:
        """Let rows leave, begin requests, run a piece of their prompts, let them join, and run a round."""
        self._leave()
        self._begin()
        if self.starting is not None and self._try(self._advance, self.starting):
            self._try(self._join, self.starting, self.running)
        if self.running is not None:
            self._try(self._round, self.running)

    def end_all(self, error: BaseException | None = None) -> None:
        """End every request that has been started.

        Args:
            error: what ended them; None for cancelled.
        """
        for handle in (*self._handles(), *self.apart):
            self._end(handle, error, cancelled=error is None)
        self.running = self.starting = None
        self.apart.clear()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handles(self) -> list[RequestHandle]:
        return [handle for part in (self.running, self.starting) if part is not None for handle in part.handles]

    def _leave(self) -> None:
        """Drop the rows of requests that have ended or were cancelled."""
        for name in ("running", "starting"):
            part: _Running | None = getattr(self, name)
            if part is None:
                continue
            for handle in part.handles:
                if handle.cancelled and not handle.done:
                    self._end(handle, None, cancelled=True)
            staying = [row for row, handle in enumerate(part.handles) if not handle.done]
            if not staying:
                setattr(self, name, None)
            elif len(staying) < len(part.handles) and part.rounds.joinable:
                self._try(partial(part.take_rows, _compacted(staying)), part)
        self.alone = self.alone and self.rows > 0

    def _begin(self) -> None:
        """Open a generation for the next requests, if rows are free: several, if their prompts fit one piece together."""
        if self.starting is not None or self.alone:
            return
        if self.apart:
            if self.running is None:
                self.alone = True
                self._open([self.apart.popleft()])
            return
        found: list[RequestHandle] = []
        longest = 0
        while self.rows + len(found) < self.max_rows:
            handle = self.take(None if not found else self.piece // (len(found) + 1))
            if handle is None:
                break
            longest = max(longest, handle.work.columns)
            found.append(handle)
            if not handle.work.together or longest * (len(found) + 1) > self.piece:
                break
        if found:
            self._open(found)

    def _open(self, handles: list[RequestHandle]) -> None:
        try:
            self.starting = _Running(self.model.open([handle.work for handle in handles]), handles)
        except Exception as error:
            self._fail(handles, error)

    # --- work ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Run a piece of the starting requests' prompts, or one of their first rounds. True where they can join."""
        assert self.starting is not None
        part, session = self.starting, cast(RunsPrompt, self.starting.rounds.session)
        rest = session.waiting
        if not part.read:
            part.read = session.prefill(self.piece)
            done, rest = rest - session.waiting, session.waiting
            self._count(done * len(part.handles), int(done > 0))
            if not part.read or done:
                return False
        self._run(part, rest)
        return part.rounds.open and part.rounds.joinable

    def _join(self) -> bool:
        """Let the rows of the starting requests join the running ones."""
        part = self.starting
        assert part is not None
        staying = [row for row, handle in enumerate(part.handles) if not handle.done]
        if len(staying) < len(part.handles):
            part.take_rows(_compacted(staying))
        if self.running is None:
            self.running = part
            part.rounds.controller, part.rounds.length, part.rounds.fixed = self.controller, None, False
        else:
            self.running.join(part)
        self.starting = None
        return True

    def _round(self) -> bool:
        part = self.running
        assert part is not None
        if part.rounds.open:
            self._run(part, 0)
            self.counts.rounds += 1
            self.counts.rows += len(part.handles)
        return True

    def _run(self, part: "_Running", prompt: int) -> None:
        """Run a round, which also runs `prompt` columns of prompts, and hand every request its row of it."""
        before = part.rounds.session.scored  # roots of a beam search that have been run
        step = part.rounds.run()
        self._count((prompt + step.draft.size - before) * len(part.handles), 1)
        if self.on_step is not None:
            self.on_step(step)
        committed = step.committed
        for row, handle in enumerate(part.handles):
            if handle.done:
                continue
            self.counts.tokens += len(committed.values[row])
            self.counts.drafted += committed.drafted[row]
            self.counts.accepted += committed.accepted[row]
            try:
                handle.add(step, row)
            except Exception as error:  # of its output, such as its sound, which no other request has
                self._end(handle, error)
            else:
                if committed.ended[row]:
                    self._end(handle, None)

    def _count(self, columns: int, forwards: int) -> None:
        self.counts.columns += columns
        self.counts.forwards += forwards

    def _end(self, handle: RequestHandle, error: BaseException | None, cancelled: bool = False) -> None:
        name = "cancelled" if cancelled else "finished" if error is None else "failed"
        setattr(self.counts, name, getattr(self.counts, name) + 1)
        handle.drop() if cancelled else handle.end(error)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _try(self, work: Callable[[], Any], *parts: "_Running | None") -> Any:
        """Return what some work returns. Where it fails, the requests of `parts` are run again, each alone; then False."""
        try:
            return work()
        except Exception as error:
            there = [part for part in parts if part is not None]
            self.running, self.starting = (None if part in there else part for part in (self.running, self.starting))
            self._fail([handle for part in there for handle in part.handles if not handle.done], error)
            return False

    def _fail(self, handles: Sequence[RequestHandle], error: Exception) -> None:
        if len(handles) == 1:
            self._end(handles[0], error)
            self.alone = False
            return
        for handle in handles:
            handle.restart()
            self.counts.restarted += 1
        self.apart.extend(handles)


class _Running:
    """A generation, and the request of each of its rows."""

    def __init__(self, rounds: Rounds, handles: Iterable[RequestHandle]):
        self.rounds, self.handles = rounds, list(handles)
        self.read = False  # all but the last piece of the prompt has been run

    def take_rows(self, rows: Sequence[int]) -> None:
        self.rounds.take_rows(rows)
        self.handles = [self.handles[row] for row in rows]

    def join(self, other: "_Running") -> None:
        self.rounds.join_rows(other.rounds)
        self.handles += other.handles


def _compacted(staying: list[int]) -> list[int]:
    """The rows that stay, in an order in which few of them move: the last ones fill the places of those that leave."""
    count, found = len(staying), {row: row for row in staying if row < len(staying)}
    moved = iter(row for row in staying if row >= count)
    return [found[place] if place in found else next(moved) for place in range(count)]
