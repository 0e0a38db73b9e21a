"""Frozen-target drafts for diffusion chains (De Bortoli et al. 2025, arXiv 2501.05370): the network's last output is reused.

A step of a chain is affine in the network's output. Draft tokens are drawn with the target's own noise schedule, state after state, with
one output held fixed. This needs no other model, no training and, by default, no additional network call, because the forward that
verified the last draft already ran the network there.
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
    """Drafts by one output of the target's network, held for a whole round (De Bortoli et al. 2025).

    The first round is not drafted with "parent" and "nearest", because no output exists before it.

    Args:
        reuse: which output is held. "parent": the one at the last kept state. "nearest": the same, but after a rejection the one at the
            rejected state nearest to the committed one, whose noise level is right. "root": the one at the committed state, for one more
            call a round; then the first draft token is always accepted.
        hold: what is held: the predicted clean "picture", from which an output is computed for every state and noise level, or the
            "output" itself. Equal for networks that predict the picture. Schedulers without such a prediction support "output" only.
        shape: form of a draft.

    Raises:
        ValueError: for unknown options.
    """

    reuse: str = "nearest"
    hold: str = "picture"
    shape: Shape = field(default_factory=Chain)

    def __post_init__(self):
        for name, value, known in (("reuse", self.reuse, REUSES), ("hold", self.hold, HOLDS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; valid: {', '.join(known)}")

    def begin(self, prompt: Any, session: Any) -> "FrozenSession":
        """Open a drafting session. ValueError if the target's distributions are not made of a network's outputs."""
        if not hasattr(session, "distribution_of"):
            name = type(session).__name__
            raise ValueError(f"frozen drafts need the outputs of a diffusion network, and {name} has none: use another drafter")
        return FrozenSession(session, self)


class FrozenSession:
    """Drafting session of one generation; holds one output [B, 1, D]."""

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
            raise ValueError("frozen drafts read the target's outputs, but its session returned none")
        kept = verdict.keep.amax(1).clamp_min(0)  # a path's last node is its last column
        self._hold(draft, scored.hidden, _nearest(draft, kept, verdict.pending.nodes[:, -1:]) if self.plan.reuse == "nearest" else kept)

    def _score(self, draft: Draft) -> Scored:
        """The target's distributions after every new node, computed from the held output."""
        x, positions = draft.nodes[:, self.scored :], draft.position()[:, self.scored :]
        self.scored = draft.size
        held = self.held.expand_as(x)
        return Scored(self.session.distribution_of(x, positions, self.session.said(x, positions, held) if self.pictures else held))

    def _hold(self, draft: Draft, outputs: Tensor, column: Tensor) -> None:
        """Hold the `outputs` [B, N, D] at `column` [B]."""
        rows, column = torch.arange(len(column), device=column.device)[:, None], column[:, None]
        self.held = outputs[rows, column]
        if self.pictures:
            self.held = self.session.picture(draft.nodes[rows, column], draft.position()[rows, column], self.held)


def _nearest(draft: Draft, kept: Tensor, value: Tensor) -> Tensor:
    """The child of column `kept` [B] that is nearest to the committed `value` [B, 1, D]; `kept` itself without children."""
    beside = (draft.parents == kept[:, None]) & (torch.arange(draft.size, device=kept.device) >= draft.roots)
    away = torch.where(beside, torch.linalg.vector_norm(draft.nodes - value, dim=-1), torch.inf)
    return torch.where(beside.any(1), away.argmin(1), kept)
