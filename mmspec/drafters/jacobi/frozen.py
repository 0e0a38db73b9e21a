"""Frozen-target drafts for diffusion chains (De Bortoli et al. 2025, arXiv 2501.05370): the network is taken to say what it said last.

A step of a chain is affine in the network's output. So draft tokens are drawn by the target's own kernel, state after state, with one
output
held fixed: no other model, no training and, by default, no call, for the forward that judged the last draft has run the network where it
is wanted. What is held is never a step's mean, which is made anew from every state.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.shapes import Chain, Shape

REUSES, HOLDS = ("nearest", "parent", "root"), ("picture", "output")


@dataclass(frozen=True)
class FrozenTarget:
    """Draft tokens, in the given `shape`, by one output of the target's network, held for the whole round.

    `reuse` says which output. "parent": at the last state that was kept, the parent of the one committed last. "nearest": the same, but
    where draft tokens were refused the output at the one nearest to the state that took their place: its noise level is the right one.
    "root": at the committed state itself, for one call more a round; the first draft token is then always right. Until the first forward
    has run nothing is known, and the first round of the other two is plain.

    `hold` says what of it is held: the "picture" it foresees, from which an output is made anew for every state and noise level, or the
    "output" as it is. The same for networks that predict the picture; those that predict noise or velocity say something else at each
    level of noise, even where they foresee the same picture all along. Schedulers that name no such picture have "output" alone.
    """

    reuse: str = "nearest"
    hold: str = "picture"
    shape: Shape = field(default_factory=Chain)

    def __post_init__(self):
        for name, value, known in (("reuse", self.reuse, REUSES), ("hold", self.hold, HOLDS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but frozen drafts know {', '.join(known)}")

    def begin(self, prompt: Any, session: Any) -> "FrozenSession":
        """ValueError where the target's distributions are not made of a network's outputs."""
        if not hasattr(session, "distribution_of"):
            name = type(session).__name__
            raise ValueError(f"frozen drafts are made of a diffusion network's outputs, which {name} has none of: take another drafter")
        return FrozenSession(session, self)


class FrozenSession:
    """One generation: what is held, [B, 1, D], once there is anything."""

    def __init__(self, session: Any, plan: FrozenTarget):
        self.session, self.plan, self.pictures = session, plan, plan.hold == "picture" and session.foresees
        self.held: Tensor | None = None
        self.scored = 0  # columns of the draft under way whose distributions were given

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if budget.length == 0:
            return pending
        if self.plan.reuse == "root":
            self._hold(pending, self.session.outputs(pending), torch.full_like(pending.start, pending.roots - 1))
        if self.held is None:
            return pending
        self.scored = 0
        return self.plan.shape.grow(self._score, pending, budget, noise)[0]

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        if self.plan.reuse == "root":
            return
        if scored.hidden is None:
            raise ValueError("frozen drafts read the target's outputs, but its session handed out none with the draft's distributions")
        kept = verdict.keep.amax(1).clamp_min(0)  # a path's last node is its last column
        self._hold(draft, scored.hidden, _nearest(draft, kept, verdict.pending.nodes[:, -1:]) if self.plan.reuse == "nearest" else kept)

    def _score(self, draft: Draft) -> Scored:
        """The target's distributions after every node not asked about before, were the network to say what is held."""
        x, positions = draft.nodes[:, self.scored :], draft.position()[:, self.scored :]
        self.scored = draft.size
        held = self.held.expand_as(x)
        return Scored(self.session.distribution_of(x, positions, self.session.said(x, positions, held) if self.pictures else held))

    def _hold(self, draft: Draft, outputs: Tensor, column: Tensor) -> None:
        """Hold what the network said, `outputs` [B, N, D], at `column` [B]."""
        rows, column = torch.arange(len(column), device=column.device)[:, None], column[:, None]
        self.held = outputs[rows, column]
        if self.pictures:
            self.held = self.session.picture(draft.nodes[rows, column], draft.position()[rows, column], self.held)


def _nearest(draft: Draft, kept: Tensor, value: Tensor) -> Tensor:
    """Of the draft tokens that hung on column `kept` [B] the one nearest to `value` [B, 1, D], which was committed there; `kept` without
    any."""
    beside = (draft.parents == kept[:, None]) & (torch.arange(draft.size, device=kept.device) >= draft.roots)
    away = torch.where(beside, torch.linalg.vector_norm(draft.nodes - value, dim=-1), torch.inf)
    return torch.where(beside.any(1), away.argmin(1), kept)
