"""Jacobi decoding (Santilli et al. 2023) and speculative Jacobi decoding (SJD, Teng et al. 2025): the target's last laws draft."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decode import TargetSession
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict
from mmspec.drafters.shapes import Draw, best

Fill = Callable[[Tensor, Categorical], Categorical]
"""(the likeliest value before the window's end [B, 1], laws over the same values [B, W]) -> laws for where none was seen [B, W]."""


def repeat(before: Tensor, like: Categorical) -> Categorical:
    """The value before, over and over: point masses."""
    return Categorical.point(before.expand(like.scores.shape[:2]), like.scores.shape[-1], like.scores.dtype)


def uniform(before: Tensor, like: Categorical) -> Categorical:
    """Any value of the vocabulary, all equally likely."""
    return Categorical(torch.zeros_like(like.scores))


@dataclass(frozen=True)
class Jacobi:
    """Guesses a window from the laws the target gave in the round before, given guesses that have since been judged.

    `draw` is one of shapes' draws: `best` is greedy Jacobi; `sampled` is SJD, whose q is the law of the round before, for rules
    that read q; `drawn` leaves q out, for coupled and match. `fill` gives the laws at the window's end, where none has been seen.
    The window is as long as the round asks for, at most `window`; rows advance each at its own pace.
    """

    window: int = 8
    draw: Draw = best
    fill: Fill = repeat

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window is {self.window}: give at least 1 guess")

    def begin(self, prompt: Any, session: TargetSession) -> "JacobiSession":
        return JacobiSession(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """The laws of the round before. Row b's next guesses follow laws `past[b]`, `past[b]` + 1, ..., of which it has `left[b]`."""

    law: Categorical  # [B, N]
    past: Tensor  # [B, 1]
    left: Tensor  # [B, 1]


class JacobiSession:
    def __init__(self, plan: Jacobi):
        self.plan = plan
        self.seen: Seen | None = None

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        length, seen = min(self.plan.window, room.length), self.seen
        if length == 0 or seen is None:  # the first round runs the prompt: no law has been seen, not even how many values there are
            return frontier
        steps = torch.arange(length, device=frontier.start.device)
        law = seen.law.at((seen.past + steps).clamp(max=seen.law.scores.shape[1] - 1))
        last = law.mode().gather(1, (seen.left - 1).clamp(0, length - 1))
        before = torch.where(seen.left > 0, last, frontier.nodes[:, -1:])
        law = law.where(steps < seen.left, self.plan.fill(before, law))
        value, q = self.plan.draw(law, noise.guess(frontier.start[:, None] + steps, frontier.start))
        return frontier.extend_chain(value, room.guesses, q)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        # The law after node i judges node i + 1. Those of the accepted guesses and of the value settled after them are used up.
        past = draft.roots + verdict.accepted
        left = draft.valid[:, draft.roots :].sum(1) - verdict.accepted
        self.seen = Seen(scored.p, past[:, None], left[:, None])
