"""Classifier-free guidance (Ho and Salimans 2022): one doubled batch, one distribution a row.

Rows come in pairs: row b of the conditional prompts, row B + b of the unconditional ones. Both score the same draft, and their scores are
mixed, uncond + scale (cond - uncond), before any processor. Guidance is part of p, so a drafter that approximates p must apply it, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

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
class Pairs:
    """A target over pairs of prompts with `Guided` processors; it has B rows for the loop. ValueError for other processors."""

    doubled: HFTarget  # over 2B rows

    def __post_init__(self):
        if not isinstance(self.doubled.processors, Guided):
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
