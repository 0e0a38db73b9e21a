"""Classifier-free guidance (Ho and Salimans 2022): one doubled batch, one distribution a row.

Rows come in pairs: row b of the conditional prompts, row B + b of the unconditional ones. Both score the same draft, and their scores are
mixed, uncond + scale (cond - uncond), before any processor. Guidance is part of p, so a drafter that approximates p must apply it, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.by_row import Form, RowPipelines
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.models.target import HFSession, HFTarget, RankZeroChoice
from mmspec.utils.devices import to_device


def twice(draft: Draft) -> Draft:
    """`draft` for both halves of the batch, without what only rules read."""
    return replace(
        draft,
        nodes=torch.cat([draft.nodes, draft.nodes]),
        parents=torch.cat([draft.parents, draft.parents]),
        start=torch.cat([draft.start, draft.start]),
        q=None,
        drift=None,
        score=None,
    )


def twice_verdict(verdict: Verdict) -> Verdict:
    """`verdict` for both halves of the batch, without its meters."""
    keep, values, count, accepted, judged = (
        torch.cat([part, part]) for part in (verdict.keep, verdict.values, verdict.count, verdict.accepted, verdict.judged)
    )
    return Verdict(keep, values, count, twice(verdict.pending), accepted, judged)


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
class GuidedRows:
    """`Guided` processors of their own for every pair: requests of different settings in one generation.

    Args:
        pairs: the processors of every pair, each as for a batch of one pair.
    """

    pairs: RowPipelines

    idle = False

    @property
    def reads_paths(self) -> bool:
        """True if a processor of any pair reads more of a history than positions."""
        return self.pairs.reads_paths

    @property
    def repairs(self) -> bool:
        """True if the processors of all pairs replace NaN and infinities."""
        return self.pairs.repairs

    @property
    def silent(self) -> "GuidedRows":
        """These processors: none is reported."""
        return self

    def take_rows(self, rows: Sequence[int]) -> "GuidedRows":
        """Return the processors of some pairs."""
        return GuidedRows(self.pairs.take_rows(rows))

    def join_rows(self, other: "GuidedRows") -> "GuidedRows":
        """Return these processors followed by the `other` ones."""
        return GuidedRows(self.pairs.join_rows(other.pairs))

    def by_group(self, scores: Tensor, history: History, form: Form) -> Tensor:
        """As `RowPipelines.by_group`, for scores [2B, N, *value] of pairs."""
        return self.pairs.by_group(scores, history, form, rows_each=2)

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return self.by_group(scores, history, lambda own, scores, history: own(scores, history))


def is_guided(processors: Any) -> bool:
    """Return True if processors make one distribution of two rows.

    Args:
        processors: of a target.
    """
    return isinstance(processors, Guided | GuidedRows)


@dataclass(frozen=True)
class Pairs:
    """A target over pairs of prompts with `Guided` processors; it has B rows for the loop. ValueError for other processors."""

    doubled: HFTarget  # over 2B rows

    def __post_init__(self):
        if not is_guided(self.doubled.processors):
            raise ValueError("pairs need Guided processors, which make one distribution of two rows")

    def capture(self, reserve: int) -> "Pairs":
        """Return these pairs with their forwards captured; see `HFTarget.capture`."""
        return Pairs(self.doubled.capture(reserve))

    def one_choice(self) -> RankZeroChoice | None:
        """Return what makes several processes agree on draft lengths; see `HFTarget.one_choice`."""
        return self.doubled.one_choice()

    def begin(self, prompt: Any) -> tuple["PairedSession", Draft]:
        """Open a session.

        `prompt` holds 2B rows, conditional ones first. The last prompt value of both halves must be the same.
        """
        session, pending = self.doubled.begin(prompt)
        rows = len(pending.start) // 2
        return PairedSession(session), Draft.root(pending.nodes[:rows, 0], pending.start[:rows])


class PairedSession:
    """One generation over pairs of rows."""

    def __init__(self, doubled: HFSession):
        self.doubled = doubled

    @property
    def scored(self) -> int:
        """Columns of the draft under way scored so far."""
        return self.doubled.scored

    def score(self, draft: Draft) -> Scored:
        """One forward of both halves. Hidden states, if requested, are those of all 2B rows."""
        scored = self.doubled.score(twice(draft))
        assert scored.healthy is not None
        return replace(scored, healthy=scored.healthy.view(2, -1).all(0))

    def commit(self, keep: Tensor, most: int) -> None:
        self.doubled.commit(torch.cat([keep, keep]), most)

    # --- rows that join and leave -------------------------------------------------------------------------------------

    @property
    def context(self) -> Any:
        """The prompt while it waits; see `HFSession`."""
        return self.doubled.context

    @property
    def waiting(self) -> int:
        """Columns of the prompt that have not been run; see `core.rows.changes.RunsPrompt`."""
        return self.doubled.waiting

    def prefill(self, columns: int) -> bool:
        """Run a piece of the prompt; see `core.rows.changes.RunsPrompt`."""
        return self.doubled.prefill(columns)

    @property
    def joinable(self) -> bool:
        """True once the prompt is cached; see `core.rows.changes.ChangesRows`."""
        return self.doubled.joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some pairs; see `core.rows.changes.ChangesRows`."""
        pairs = len(self.doubled.lengths) // 2
        self._form(lambda processors: processors.take_rows(rows))
        self.doubled.take_rows([*rows, *(pairs + row for row in rows)])

    def join_rows(self, other: "PairedSession") -> None:
        """Append the pairs of another session; see `core.rows.changes.ChangesRows`. Conditional rows stay the first ones."""
        mine, theirs = len(self.doubled.lengths) // 2, len(other.doubled.lengths) // 2
        self._form(lambda processors: processors.join_rows(other.doubled.target.processors))
        self.doubled.join_rows(other.doubled)
        halves = [[*_half(half, mine), *(2 * mine + row for row in _half(half, theirs))] for half in (0, 1)]
        self.doubled.take_rows(halves[0] + halves[1])

    def _form(self, change: Callable[[Any], Any]) -> None:
        """Change the processors of the pairs, where they are by pair."""
        target = self.doubled.target
        if isinstance(target.processors, GuidedRows):
            self.doubled.target = replace(target, processors=change(target.processors))


def _half(half: int, pairs: int) -> range:
    """The rows of one half of some pairs."""
    return range(half * pairs, (half + 1) * pairs)
