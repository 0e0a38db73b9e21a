"""A pipeline for every row: requests of different settings in one generation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.processors.reported import ReportedScores, ReportingPipeline

Form = Callable[[Pipeline, Tensor, History], Tensor]
"""Maps a pipeline, scores [R, N, *value] and the history of their nodes to processed scores."""


@dataclass(frozen=True)
class RowPipelines:
    """One pipeline a row. Rows of equal pipelines are processed together; what a row gets does not depend on the other rows.

    Args:
        rows: the pipelines, each as for a batch of one row.
    """

    rows: tuple[Pipeline, ...]

    @cached_property
    def groups(self) -> list[tuple[Pipeline, list[int]]]:
        """Different pipelines, each with its rows."""
        found: list[tuple[Pipeline, list[int]]] = []
        for row, own in enumerate(self.rows):
            same = next((members for other, members in found if other == own), None)
            if same is None:
                found.append((own, [row]))
            else:
                same.append(row)
        return found

    @property
    def shared(self) -> Pipeline | None:
        """The pipeline of all rows; None if they differ."""
        return self.groups[0][0] if len(self.groups) == 1 else None

    @property
    def bare(self) -> Pipeline:
        """What makes distributions of the raw logits; see `Pipeline.bare`."""
        return Pipeline()

    @property
    def idle(self) -> bool:
        """True if every distribution is left as it is."""
        return all(own.idle for own in self.rows)

    @property
    def reads_paths(self) -> bool:
        """True if a processor of any row reads more of a history than positions."""
        return any(own.reads_paths for own in self.rows)

    @property
    def repairs(self) -> bool:
        """True if the processors of all rows replace NaN and infinities."""
        return all(own.repairs for own in self.rows)

    @cached_property
    def reporting(self) -> list[tuple[int, ReportingPipeline]]:
        """The rows whose committed tokens are reported, with their pipelines."""
        return [(row, own) for row, own in enumerate(self.rows) if isinstance(own, ReportingPipeline)]

    @property
    def silent(self) -> "RowPipelines":
        """These pipelines, of which none is reported."""
        return replace(self, rows=tuple(Pipeline(own.steps) if isinstance(own, ReportingPipeline) else own for own in self.rows))

    def report(self, scores: Tensor, history: History) -> ReportedScores | None:
        """Return the scores that are reported.

        Args:
            scores: raw scores [B, N, V].
            history: the paths of the nodes.

        Returns:
            The scores of the rows that ask for it, processed; None if none does.
        """
        if not self.reporting:
            return None
        found = []
        for row, own in self.reporting:
            place = torch.tensor([row], device=scores.device)
            found.append(own.reported(scores[row : row + 1], history.of_rows(place)))
        return ReportedScores([row for row, _ in self.reporting], [own.count for _, own in self.reporting], torch.cat(found))

    def keep(self, kinds: tuple[type[Processor], ...]) -> "RowPipelines":
        """Return these pipelines without processors of other classes than `kinds`."""
        return RowPipelines(tuple(own.keep(kinds) for own in self.rows))

    def take_rows(self, rows: Sequence[int]) -> "RowPipelines":
        """Return the pipelines of some rows."""
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def join_rows(self, other: "RowPipelines") -> "RowPipelines":
        """Return these pipelines followed by the `other` ones."""
        return replace(self, rows=(*self.rows, *other.rows))

    def by_group(self, scores: Tensor, history: History, form: Form) -> Tensor:
        """Form the scores of every group of equal pipelines, and put them in the order of the rows.

        Args:
            scores: raw scores of all rows [S, N, *value]; see `scored`.
            history: the paths of their nodes.
            form: maps a pipeline, scores and history of its rows to scores [B, N, *value].

        Returns:
            Scores [B, N, *value]. Values that the scores of a group lack, at the end, have none.
        """
        if self.shared is not None:
            return form(self.shared, scores, history)
        found = []
        for own, members in self.groups:
            rows = torch.tensor(self.scored(members), device=scores.device)
            found.append(form(own, scores[rows], history.of_rows(rows)).to(scores.dtype))
        most = max(part.shape[-1] for part in found)
        count = sum(len(members) for _, members in self.groups)
        joined = scores.new_full((count, *found[0].shape[1:-1], most), -torch.inf)
        for part, (_, members) in zip(found, self.groups, strict=True):
            joined[members, ..., : part.shape[-1]] = part
        return joined

    def scored(self, members: list[int]) -> list[int]:
        """Return the rows of scores that some rows are made of: their own."""
        return members

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return self.by_group(scores, history, lambda own, scores, history: own(scores, history))
