"""Classifier-free guidance (Ho and Salimans 2022): one doubled batch, one distribution a row.

Rows come in pairs: row b of the conditional prompts, row B + b of the unconditional ones. Both score the same draft, and their scores are
mixed, uncond + scale (cond - uncond), before any processor. Guidance is part of p, so a drafter that approximates p must apply it, too.
Where rows are requests of their own, some of them may be guided: the unconditional rows of these come after all conditional ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.models.session import Room
from mmspec.models.target import HFSession, HFTarget, RankZeroChoice
from mmspec.utils.devices import to_device


@dataclass(frozen=True)
class PairedRows:
    """Which of B rows are guided. In the doubled batch the unconditional rows of these come after all B rows, in their order.

    Args:
        rows: B.
        guided: numbers of the guided rows, ascending.
    """

    rows: int
    guided: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """The row of the B ones that each row of the doubled batch belongs to."""
        return [*range(self.rows), *self.guided]

    def doubled(self, part: Tensor) -> Tensor:
        """Return `part` [B, ...] for the doubled batch."""
        if len(self.guided) == self.rows:
            return torch.cat([part, part])
        return part if not self.guided else part.index_select(0, self._indices(part.device)[0])

    @cached_property
    def places(self) -> dict[int, int]:
        """The unconditional row of each guided one, in the doubled batch."""
        return {row: self.rows + place for place, row in enumerate(self.guided)}

    def both(self, healthy: Tensor) -> Tensor:
        """Return which of the B rows are true, with their unconditional rows, in `healthy` [B + G] bool of the doubled batch."""
        own, others = healthy[: self.rows], healthy[self.rows :]
        if len(self.guided) == self.rows:
            return own & others
        return own if not self.guided else own & torch.ones_like(own).index_copy(0, self._indices(own.device)[1], others)

    def _indices(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`order` and `guided` as indices, moved to a device once."""
        if device not in self._moved:
            self._moved[device] = to_device(self.order, device, torch.long), to_device(list(self.guided), device, torch.long)
        return self._moved[device]

    @cached_property
    def _moved(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def take_rows(self, rows: Sequence[int]) -> tuple["PairedRows", list[int]]:
        """Return these pairs of some rows, and the rows of the doubled batch that they are made of, in order."""
        guided = tuple(new for new, row in enumerate(rows) if row in self.places)
        return PairedRows(len(rows), guided), [*rows, *(self.places[rows[new]] for new in guided)]

    def join_rows(self, other: "PairedRows") -> tuple["PairedRows", list[int]]:
        """Return these pairs followed by the `other` ones, and the order of the rows of both doubled batches, one after the other."""
        mine, theirs = self.rows + len(self.guided), other.rows + len(other.guided)
        order = [*range(self.rows), *range(mine, mine + other.rows), *range(self.rows, mine), *range(mine + other.rows, mine + theirs)]
        return PairedRows(self.rows + other.rows, (*self.guided, *(self.rows + row for row in other.guided))), order


def twice(draft: Draft, pairs: PairedRows) -> Draft:
    """`draft` for the doubled batch, without what only rules read."""
    nodes, parents, start = (pairs.doubled(part) for part in (draft.nodes, draft.parents, draft.start))
    return replace(draft, nodes=nodes, parents=parents, start=start, q=None, drift=None, score=None)


def twice_verdict(verdict: Verdict, pairs: PairedRows) -> Verdict:
    """`verdict` for the doubled batch, without its meters."""
    keep, values, count, accepted, judged = (
        pairs.doubled(part) for part in (verdict.keep, verdict.values, verdict.count, verdict.accepted, verdict.judged)
    )
    return Verdict(keep, values, count, twice(verdict.pending, pairs), accepted, judged)


@dataclass(frozen=True)
class Guided(Pipeline):
    """The processors of pairs: mix scores [2B, N, V] to [B, N, V], then continue as a pipeline. `scale`: one, or one a pair.

    Scale 1 gives the conditional row, bit by bit.
    """

    scale: float | Sequence[float] = 1.0

    @property
    def idle(self) -> bool:
        """False: scores are always mixed."""
        return False

    @property
    def bare(self) -> "Guided":
        """What makes distributions of the mixed logits; see `Pipeline.bare`."""
        return replace(self, steps=())

    def before(self, scores: Tensor, history: History) -> tuple[Tensor, History]:
        """Scores [2B, N, *value] of pairs as [B, N, *value], and the history of their conditional rows."""
        cond, uncond = scores.chunk(2)
        return self.mix(cond, uncond), history.rows(len(cond))

    def mix(self, cond: Tensor, uncond: Tensor) -> Tensor:
        """Conditional and unconditional scores [B, N, *value] as one."""
        if isinstance(self.scale, (int, float)):
            return cond if self.scale == 1 else uncond + self.scale * (cond - uncond)
        scale = to_device(list(self.scale), cond.device, cond.dtype).view(-1, *[1] * (cond.dim() - 1))
        return torch.where(scale == 1, cond, uncond + scale * (cond - uncond))


@dataclass(frozen=True)
class GuidedRows(RowPipelines):
    """A pipeline for every row, of which G of B are guided: scores [B + G, N, *value] of the doubled batch become [B, N, *value].

    Args:
        rows: a pipeline for each of the B rows, `Guided` by a number where the row is guided; then None for each unconditional row.
    """

    rows: tuple[Pipeline | None, ...]  # pyright: ignore[reportIncompatibleVariableOverride]

    idle = False  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def of(pipelines: Sequence[Pipeline]) -> "GuidedRows":
        """Make the processors of B rows, each with its own pipeline, `Guided` or not."""
        return GuidedRows((*pipelines, *(None for own in pipelines if isinstance(own, Guided))))

    @cached_property
    def own(self) -> RowPipelines:
        """The pipelines of the B rows."""
        return RowPipelines(tuple(each for each in self.rows if each is not None))

    @cached_property
    def pairs(self) -> PairedRows:
        """The rows that are guided."""
        guided = [row for row, each in enumerate(self.own.rows) if isinstance(each, Guided)]
        return PairedRows(len(self.own.rows), tuple(guided))

    @property
    def bare(self) -> "GuidedRows":  # pyright: ignore[reportIncompatibleMethodOverride]
        """What makes distributions of the mixed logits; see `Pipeline.bare`."""
        return GuidedRows(tuple(None if each is None else each.bare for each in self.rows))

    @property
    def groups(self) -> list[tuple[Pipeline, list[int]]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Different pipelines, each with its rows of the B ones."""
        return self.own.groups

    @property
    def reads_paths(self) -> bool:
        """True if a processor of any row reads more of a history than positions."""
        return self.own.reads_paths

    @property
    def repairs(self) -> bool:
        """True if the processors of all rows replace NaN and infinities."""
        return self.own.repairs

    def scored(self, members: list[int]) -> list[int]:
        """Return the rows of scores that some rows are made of: their own, and the unconditional ones of those that are guided."""
        places = self.pairs.places
        return [*members, *(places[row] for row in members if row in places)]


def is_guided(processors: Any) -> bool:
    """Return True if processors make one distribution of two rows, in all rows or in some.

    Args:
        processors: of a target.
    """
    return isinstance(processors, Guided | GuidedRows)


@dataclass(frozen=True)
class Pairs:
    """A target over pairs of prompts with `Guided` processors, or over some pairs with `GuidedRows`; it has B rows for the loop.

    ValueError for other processors.
    """

    doubled: HFTarget  # over B + G rows

    def __post_init__(self):
        if not is_guided(self.doubled.processors):
            raise ValueError("pairs need Guided processors, which make one distribution of two rows")

    @property
    def values(self) -> int | None:
        """As of the target over both rows; see `HFTarget.values`."""
        return self.doubled.values

    @property
    def codebook_size(self) -> int | None:
        """As of the target over both rows; see `HFTarget.codebook_size`."""
        return self.doubled.codebook_size

    def capture(self, reserve: int) -> "Pairs":
        """Return these pairs with their forwards captured; see `HFTarget.capture`."""
        return Pairs(self.doubled.capture(reserve))

    def one_choice(self) -> RankZeroChoice | None:
        """Return what makes several processes agree on draft lengths; see `HFTarget.one_choice`."""
        return self.doubled.one_choice()

    def require_columns(self, prompt: Any) -> None:
        """Test whether values that are scored together get the distributions of plain decoding; see `HFTarget.require_columns`."""
        self.doubled.require_columns(prompt, Pairs)

    def begin(self, prompt: Any) -> tuple["PairedSession", Draft]:
        """Open a session.

        `prompt` holds B + G rows, conditional ones first. The last prompt value of both rows of a pair must be the same.
        """
        session, pending = self.doubled.begin(prompt)
        found: Any = self.doubled.processors
        count = len(pending.start) // 2
        pairs = found.pairs if isinstance(found, GuidedRows) else PairedRows(count, tuple(range(count)))
        return PairedSession(session, pairs), Draft.root(pending.nodes[: pairs.rows, 0], pending.start[: pairs.rows])


class PairedSession:
    """One generation over rows of which some or all are pairs.

    Args:
        doubled: the session of the doubled batch.
        pairs: the rows that are guided.
    """

    def __init__(self, doubled: HFSession, pairs: PairedRows):
        self.doubled, self.pairs = doubled, pairs

    @property
    def scored(self) -> int:
        """Columns of the draft under way scored so far."""
        return self.doubled.scored

    @property
    def room(self) -> Room:
        """By row, the positions behind the prompt: the fewer of a guided row's two prompts; see `models.session.Room`."""
        own = self.doubled.room
        return own and [min(own[row], own[self.pairs.places.get(row, row)]) for row in range(self.pairs.rows)]

    def leave_out_long_prompts(self) -> None:
        """Leave out rows whose prompt is too long; see `HFSession.leave_out_long_prompts`."""
        self.doubled.leave_out_long_prompts()

    def score(self, draft: Draft) -> Scored:
        """One forward of all rows. Hidden states, if requested, are those of the doubled batch."""
        scored = self.doubled.score(twice(draft, self.pairs))
        assert scored.healthy is not None
        return replace(scored, healthy=self.pairs.both(scored.healthy))

    def commit(self, keep: Tensor, most: int) -> None:
        self.doubled.commit(self.pairs.doubled(keep), most)

    @property
    def context(self) -> Any:
        """The prompts while they wait; see `HFSession`."""
        return self.doubled.context

    @property
    def joinable(self) -> bool:
        """True once the prompts are cached; see `core.rows.changes.ChangesRows`. ValueError without `GuidedRows`."""
        if not isinstance(self.doubled.target.processors, GuidedRows):
            raise ValueError("guidance has one scale for the whole batch, so that rows cannot join: give every row its own")
        return self.doubled.joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.pairs, own = self.pairs.take_rows(rows)
        self.doubled.take_rows(own)

    def join_rows(self, other: "PairedSession") -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.pairs, order = self.pairs.join_rows(other.pairs)
        self.doubled.join_rows(other.doubled)
        self.doubled.take_rows(order)

    @property
    def waiting(self) -> int:
        """Columns of the prompts that have not been run."""
        return self.doubled.waiting

    def prefill(self, columns: int) -> bool:
        """Run a piece of the prompts; see `core.rows.changes.RunsPrompt`."""
        return self.doubled.prefill(columns)
