"""Frozen-target drafts for diffusion chains (De Bortoli et al. 2025, arXiv 2501.05370): the network is taken to say what it said last.

A step of a chain is affine in the network's output. So guesses are drawn by the target's own kernel, state after state, with one output
held fixed: no other model, no training and, by default, no call, for the forward that judged the last draft has run the network where it
is wanted. What is held is never a step's mean, which is made anew from every state.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict

REUSES, HOLDS = ("nearest", "parent", "root"), ("picture", "output")


@dataclass(frozen=True)
class FrozenTarget:
    """Chains of guesses by one output of the target's network, held for the whole round.

    `reuse` says which output. "parent": at the last state that was kept, the parent of the one settled last. "nearest": the same, but
    where a guess was refused the output at that guess, which has the noise level of the state that took its place. "root": at the settled
    state itself, for one call more a round; the first guess is then always right. Until the first forward has run nothing is known, and
    the first round of the other two is plain.

    `hold` says what of it is held: the "picture" it foresees, from which an output is made anew for every state and noise level, or the
    "output" as it is. The same for networks that predict the picture; those that predict noise or velocity say something else at each
    level of noise, even where they foresee the same picture all along. Schedulers that name no such picture have "output" alone.
    """

    reuse: str = "nearest"
    hold: str = "picture"

    def __post_init__(self):
        for name, value, known in (("reuse", self.reuse, REUSES), ("hold", self.hold, HOLDS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but frozen drafts know {', '.join(known)}")

    def begin(self, prompt: Any, session: Any) -> "FrozenSession":
        """ValueError where the target's laws are not made of a network's outputs."""
        if not hasattr(session, "law_of"):
            name = type(session).__name__
            raise ValueError(f"frozen drafts are made of a diffusion network's outputs, which {name} has none of: take another drafter")
        return FrozenSession(session, self.reuse, self.hold == "picture" and session.foresees)


class FrozenSession:
    """One generation: what is held, [B, 1, D], once there is anything."""

    def __init__(self, session: Any, reuse: str, pictures: bool):
        self.session, self.reuse, self.pictures = session, reuse, pictures
        self.held: Tensor | None = None

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        if room.length == 0:
            return frontier
        if self.reuse == "root":
            self._hold(frontier, self.session.outputs(frontier), torch.full_like(frontier.start, frontier.roots - 1))
        if self.held is None:
            return frontier
        draft = frontier
        positions = draft.start[:, None] + torch.arange(room.length, device=draft.start.device)
        keys = noise.guess(positions, draft.start)
        for step in range(room.length):
            x, here = draft.nodes[:, -1:], positions[:, step : step + 1]
            law = self.session.law_of(x, here, self.session.said(x, here, self.held) if self.pictures else self.held)
            draft = draft.extend_chain(law.sample(keys[:, step : step + 1]), room.guesses, law)
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        if self.reuse == "root":
            return
        if scored.hidden is None:
            raise ValueError("frozen drafts read the target's outputs, but its session handed out none with the draft's laws")
        column = draft.roots - 1 + verdict.accepted
        if self.reuse == "nearest":
            column = column + (verdict.judged > verdict.accepted)
        self._hold(draft, scored.hidden, column)

    def _hold(self, draft: Draft, outputs: Tensor, column: Tensor) -> None:
        """Hold what the network said, `outputs` [B, N, D], at `column` [B]."""
        rows, column = torch.arange(len(column), device=column.device)[:, None], column[:, None]
        self.held = outputs[rows, column]
        if self.pictures:
            self.held = self.session.picture(draft.nodes[rows, column], draft.position()[rows, column], self.held)
