"""Rows of a target's session that join and leave between rounds, and prompts that are run piece by piece before the first round."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.reported import ReportedScores
from mmspec.core.records import Draft
from mmspec.core.rows.changes import changes_rows, join_tensors, rows_of

if TYPE_CHECKING:
    from mmspec.models.layout import Layout
    from mmspec.models.session import HFSession
    from mmspec.models.slot_cache import SlotCache
    from mmspec.models.target import HFTarget


class SessionRows:
    """The part of `HFSession` that changes its rows; see `core.rows.changes.ChangesRows`."""

    target: "HFTarget"
    cache: "SlotCache"
    state: Any
    lengths: Tensor
    ids: Tensor
    context: tuple[Tensor, Tensor] | None
    room: list[int] | None

    @property
    def joinable(self) -> bool:
        """True once the prompt is cached and no draft is under way. ValueError for sessions whose rows cannot change."""
        self._refuse_fixed()
        begun = self.context is None and self.slots is None  # type: ignore[attr-defined]
        return begun and (self.state is None or self.state.joinable)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.cache.take_rows(rows)
        self.lengths, self.ids = rows_of(self.lengths, rows), rows_of(self.ids, rows)
        self.room = None if self.room is None else [self.room[row] for row in rows]
        if self.state is not None:
            self.state = _new(self.state, self.state.take_rows(rows))
        processors = self.target.processors
        if isinstance(processors, RowPipelines):
            self.target = replace(self.target, processors=processors.take_rows(rows))  # pyright: ignore[reportArgumentType]
        self._measure()

    def join_rows(self, other: Self) -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.cache.join_rows(other.cache)
        more = self.cache.capacity
        ids = [torch.nn.functional.pad(part, (0, more - part.shape[1])) for part in (self.ids, other.ids)]
        self.lengths, self.ids = join_tensors(self.lengths, other.lengths), torch.cat(ids)
        self.room = None if self.room is None or other.room is None else self.room + other.room
        if self.state is not None:
            self.state = _new(self.state, self.state.join_rows(other.state))
        mine, theirs = self.target.processors, other.target.processors
        if isinstance(mine, RowPipelines) and isinstance(theirs, RowPipelines):
            self.target = replace(self.target, processors=mine.join_rows(theirs))  # pyright: ignore[reportArgumentType]
        self._measure()

    def reported(self, logits: Tensor, draft: Draft, layout: "Layout", first: int) -> ReportedScores | None:
        """Return the scores whose log-probabilities are asked for.

        Args:
            logits: [B, M, V] after the draft's columns from `first` on.
            draft: the draft.
            layout: where those columns are.
            first: the first of the columns.

        Returns:
            The processed scores of the rows that ask; None if none does.
        """
        processors = self.target.processors
        if not isinstance(processors, RowPipelines) or not processors.reporting:
            return None
        return processors.report(logits, self._history(draft, layout, first))  # type: ignore[attr-defined]

    def _measure(self: Any) -> None:
        """Bounds of the rows' lengths, read from the device once a change; processors of the new rows."""
        lengths = self.lengths.tolist()
        self.bound, self.floor = max(lengths, default=0), min(lengths, default=-1)
        self.even = self.bound == self.floor
        self._rows = torch.arange(len(lengths), device=self.lengths.device)[:, None]
        self.reads_paths = self._own_distributions or getattr(self.target.processors, "reads_paths", True)
        self.draft = self.ahead = None

    def _refuse_fixed(self) -> None:
        """ValueError for what cannot let rows join: states other than slots, captured forwards."""
        name = type(self.target.model).__name__
        if self.target.captured is not None:
            raise ValueError(f"{name} is captured for one number of rows, so that none can join: leave capture out")
        if hasattr(self.target.family, "scored") or not self.cache.joinable or not (self.state is None or changes_rows(self.state)):
            raise ValueError(
                f"{name} keeps more than keys and values of its own text, so that rows cannot join a running generation: "
                "use the modality's own call, such as mmspec.text.generate"
            )

    @property
    def waiting(self) -> int:
        """Columns of the prompt that have not been run."""
        return 0 if self.context is None else self.context[0].shape[1] - self.bound  # type: ignore[attr-defined]

    @torch.no_grad()
    def prefill(self, columns: int) -> bool:
        """Run a piece of the prompt, before the first round. What remains is run with the first draft.

        Args:
            columns: columns to run, at least 1.

        Returns:
            True if no more than `columns` columns of the prompt remain, or if the family runs prompts whole.
        """
        session: HFSession = self  # type: ignore[assignment]
        family = self.target.family
        if self.context is None or not hasattr(family, "pieces") or hasattr(family, "scored"):  # as in `HFSession._prefill`
            return True
        sizes, (ids, lengths) = family.pieces(self.target.model, self.state), self.context  # type: ignore[attr-defined]
        if sizes is None or ids.shape[1] - session.bound <= columns:
            return True
        session.make_room(1)
        start, stop = session.bound, session.bound + min(columns, sizes[1])
        session.pieces += session._piece(ids[:, start:stop], lengths, start)
        return ids.shape[1] - stop <= columns


def _new(state: Any, changed: Any) -> Any:
    """What a family keeps once its rows have changed: `changed`, or `state` itself where that changed in place and returned None."""
    return state if changed is None else changed
