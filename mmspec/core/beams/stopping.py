"""Where a beam search ends, and what it has found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from mmspec.core.beams.search import Forest, path_scores
from mmspec.core.beams.trie import NOWHERE
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.core.stopping import STOP


class BeamStopping(RowState):
    """The end of one search: every row commits `levels` levels. Then its beams are `state` [B, K] with `score` [B, K]."""

    by_row = ("left", "state", "score")

    def __init__(self, rows: int, levels: int, k: int, device: torch.device | str = "cpu"):
        self.left = torch.full((rows,), levels, device=device)
        self.remaining = [levels] * rows
        self.outputs: list[list[int]] = [[] for _ in range(rows)]
        self.state = torch.full((rows, k), NOWHERE, device=device)
        self.score = torch.full((rows, k), -torch.inf, device=device)

    @property
    def open(self) -> bool:
        return any(self.remaining)

    @property
    def finish_reasons(self) -> list[str | None]:
        """All beams are complete at the last level."""
        return [None if left else STOP for left in self.remaining]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        super().take_rows(rows)
        self.remaining = [self.remaining[row] for row in rows]
        self.outputs = [self.outputs[row] for row in rows]

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one of as many beams; see `core.rows.changes.ChangesRows`."""
        super().join_rows(other)
        self.remaining, self.outputs = self.remaining + other.remaining, self.outputs + other.outputs

    def budget(self, length: int) -> Budget:
        """The budget of a round of `length` levels of draft tokens."""
        return Budget(self.left, min(length, max(self.remaining) - 1))

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Record the beams of rows that are finished, and fetch the outcome to the host: the round's one synchronisation."""
        self.left = self.left - verdict.count
        ended = self.left <= 0
        pending, k = verdict.pending, self.state.shape[1]
        new = (ended & (verdict.count > 0))[:, None]
        self.state = torch.where(new, pending.aux.state[:, -k:], self.state)
        self.score = torch.where(new, path_scores(pending)[:, -k:], self.score)
        committed = self._fetch(draft, scored, verdict, ended)
        for row, values in enumerate(committed.values):
            self.outputs[row] += values
            self.remaining[row] -= len(values)
        found = [(self.state[row], self.score[row]) if over else None for row, over in enumerate(committed.ended)]
        aux = replace(pending.aux, state=torch.where(ended[:, None], NOWHERE, pending.aux.state))
        pending = replace(pending, parents=torch.where(ended[:, None], PAD, pending.parents), aux=aux)
        return replace(verdict, pending=pending), replace(committed, found=found)

    @staticmethod
    def _fetch(draft: Draft, scored: Scored, verdict: Verdict, ended: Tensor) -> Committed:
        """A level counts as one value, which is its number."""
        forest: Forest = draft.aux
        layers = draft.valid[:, draft.roots :].split(forest.layers, 1) if forest.layers else ()
        drafted = sum((layer.any(1).long() for layer in layers), torch.zeros_like(verdict.count))
        healthy = torch.ones_like(ended) if scored.healthy is None else scored.healthy
        columns = (verdict.count, verdict.accepted, drafted, ended, healthy, draft.start)
        table = torch.stack([column.long() for column in columns], 1).tolist()
        return Committed(
            values=[list(range(start, start + count)) for count, *_, start in table],
            accepted=[line[1] for line in table],
            judged=[min(line[1] + 1, line[2]) for line in table],
            drafted=[line[2] for line in table],
            ended=[bool(line[3]) for line in table],
            healthy=[bool(line[4]) for line in table],
            drift=[0.0] * len(table),
            expected=[0.0] * len(table),
        )
