"""Classifier-free guidance (Ho and Salimans 2022): one doubled batch, one law a row.

Rows come in pairs: row b of the conditional prompts, row B + b of the unconditional ones. Both see the same draft, and what they say is
mixed, uncond + scale (cond - uncond), before any processor. Guidance is part of p, so a drafter that speaks of p must go through it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.hf import HFSession, HFTarget
from mmspec.core.laws import Categorical
from mmspec.core.processors import History, Pipeline
from mmspec.core.records import Draft, Scored, Verdict


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
    return Verdict(keep, values, count, twice(verdict.frontier), accepted, judged)


def mix(logits: Tensor, scale: Tensor) -> Tensor:
    """Logits [2B, N, V] of the pairs as guided ones [B, N, V]; `scale` [B]. Scale 1 is the conditional row, to the bit."""
    cond, uncond = logits.chunk(2)
    scale = scale[:, None, None]
    return torch.where(scale == 1, cond, uncond + scale * (cond - uncond))


@dataclass(frozen=True)
class GuidedTarget:
    """A target over pairs of prompts. `twins` must have no processors of its own: `processors` go over the mixed logits.

    `scale` is one number, or one per pair.
    """

    twins: HFTarget
    scale: float | Sequence[float]
    processors: Pipeline = field(default_factory=Pipeline)

    def __post_init__(self):
        if self.twins.processors.steps:
            raise ValueError("the twins of a guided target have processors: give them to the guided target, they go over mixed logits")

    def begin(self, prompt: Any) -> tuple["GuidedSession", Draft]:
        """`prompt` holds 2B rows, conditional ones first. The last prompt value of both halves must be the same."""
        session, frontier = self.twins.begin(prompt)
        rows = len(frontier.start) // 2
        scale = torch.as_tensor(self.scale, dtype=torch.float32, device=frontier.start.device).expand(rows)
        return GuidedSession(session, scale, self.processors), Draft.root(frontier.nodes[:rows, 0], frontier.start[:rows])


class GuidedSession:
    """One generation over pairs of rows; it looks like a session of B rows."""

    def __init__(self, twins: HFSession, scale: Tensor, processors: Pipeline):
        self.twins, self.scale, self.processors = twins, scale, processors

    @property
    def scored(self) -> int:
        return self.twins.scored

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """One forward of both halves. Hidden states, where asked for, are those of the pairs, [2B, N, F]."""
        first, both = self.twins.scored, twice(draft)
        ran = self.twins.run(both)
        self.twins.ids.scatter_(1, ran.layout.slots, ran.layout.ids)
        p = self.law(ran.logits, self.twins.history(both, ran.layout, first))
        return ran.said(p, ran.healthy().view(2, -1).all(0))

    def law(self, logits: Tensor, history: History) -> Categorical:
        """The one place where logits of pairs [2B, N, V] become laws [B, N, V]; drafters of their own pairs come here too."""
        rows = len(self.scale)
        own = History(history.ids[:rows], history.visible[:rows], history.position[:rows])
        return Categorical(self.processors(mix(logits.float(), self.scale), own))

    def commit(self, keep: Tensor, most: int) -> None:
        self.twins.commit(torch.cat([keep, keep]), most)
