"""Shapes a model drafter grows: chains and combs, and how guesses are drawn. Trees stand in `trees` (static) and `search`.

A shape calls `score` on its growing draft and decides what hangs where. It returns the finished draft and, for each guess, the
column it has in the draft that was scored; guesses that were never run get a column past its end. In a chain these are the last ones,
unless the shape `replaces` what it had scored: a class attribute, True where no guess of the finished chain has been run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.laws import Categorical, Law
from mmspec.core.noise import Keys, Noise
from mmspec.core.processors import Pipeline
from mmspec.core.records import PAD, Draft, Room, Scored
from mmspec.drafters.stops import Stop

Score = Callable[[Draft], Scored]
UNRUN = 1 << 30


class Shape(Protocol):
    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]: ...


# --- chains -----------------------------------------------------------------------------------------------------------

Draw = Callable[[Law, Keys], tuple[Tensor, Law | None]]
"""How a guess comes from the drafter's law: the value, and the law it was drawn from (None: a point mass on it)."""


def sampled(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """Drawn from the drafter's law, which is recorded: for rules that read q."""
    return law.sample(keys), law


def drawn(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """Drawn from the drafter's law without recording it: for coupled and match, which need no q."""
    return law.sample(keys), None


def best(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """The drafter's most likely value: a point mass."""
    return law.mode(), None


@dataclass(frozen=True)
class Warped:
    """Drawn after `warp`, temperature and truncation; the distribution before it is recorded: for rules that read that one."""

    warp: Pipeline

    def __call__(self, law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
        warped = self.warp(law.scores, None)  # type: ignore[arg-type]
        return Categorical(warped).sample(keys), law


@dataclass(frozen=True)
class Chain:
    """As many guesses as the round asks for, one by one; a row's chain ends early where `stop` says so.

    Rows that have ended hold PAD and cost their columns. With `early`, drafting ends when no row goes on: one look at the device
    for every guess, and drafts of changing size, in exchange for the drafter's forwards.
    """

    draw: Draw = sampled
    stop: Stop | None = None
    early: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """The drafter's hidden states that `grow` needs to see."""
        return () if self.stop is None else self.stop.reads

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        allowed, stop = room.guesses, self.stop
        reach = torch.ones_like(draft.start, dtype=torch.float32)
        steps = torch.arange(room.length, device=draft.start.device)
        keys = noise.guess(draft.start[:, None] + steps, draft.start)
        for step in range(room.length):
            if self.early and step and not (allowed > step).any():
                break
            scored = score(draft)
            law = scored.p.last(1)
            if stop is not None:
                allowed = _ended(allowed, stop.before(law), step)
            value, q = self.draw(law, keys[:, step : step + 1])
            draft = draft.extend_chain(value, allowed, q)
            if stop is not None:  # the guess just drawn stays whatever its value: its law given that it stays must be q
                ends, reach = stop.after(scored, value, reach)
                allowed = _ended(allowed, ends, step + 1)
        return draft, _in_order(draft)


def _ended(allowed: Tensor, ends: Tensor | None, guesses: int) -> Tensor:
    """`allowed` [B], but no more than `guesses` in rows that end [B]."""
    return allowed if ends is None else torch.where(ends, allowed.clamp(max=guesses), allowed)


def _in_order(draft: Draft) -> Tensor:
    columns = torch.arange(draft.roots, draft.size, device=draft.start.device)
    return columns.expand(len(draft.start), -1)


# --- siblings ---------------------------------------------------------------------------------------------------------

Pick = Callable[[Any, Keys, int], tuple[Tensor, Tensor, bool]]
"""`count` siblings from each law [B, n]: values [B, n, count, *value], which are real [B, n, count], and whether q is to be recorded."""


def without_replacement(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Gumbel top-k: for WithoutReplacement, and with the target's own noise for coupled."""
    values = keys.choose_distinct(law.scores, count)
    return values, law.scores.gather(-1, values) > -torch.inf, True


def with_replacement(law: Law, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Independent draws, from a law of any values: for WithReplacement, KSeq and DGRS."""
    streams = keys.branch(count)
    values = torch.stack([law.sample(streams[..., sibling]) for sibling in range(count)], 2)
    return values, torch.ones(values.shape[:3], dtype=torch.bool, device=values.device), True


def at_most(law: Law, count: int) -> int:
    """`count` siblings, or as many as the law has values."""
    return min(count, law.scores.shape[-1]) if isinstance(law, Categorical) else count


def top(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """The most likely values: for match, greedy, TopK and threshold rules."""
    scores, values = law.scores.topk(count, -1)
    return values, scores > -torch.inf, False


def top_and_one(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """The most likely values and one drawn from the rest: for Hybrid."""
    if count == 1:
        return without_replacement(law, keys, 1)
    values = law.scores.topk(count - 1, -1).values, law.scores.topk(count - 1, -1).indices
    rest = law.scores.scatter(-1, values[1], -torch.inf)
    last = keys.choose(rest)[..., None]
    real = torch.cat([values[0] > -torch.inf, rest.gather(-1, last) > -torch.inf], -1)
    return torch.cat([values[1], last], -1), real, True


@dataclass(frozen=True)
class Comb:
    """A chain whose every node has `width - 1` siblings that are not drafted on: a tree at the drafter's cost of a chain.

    A refused guess is often replaced by the drafter's next choice, and a sibling that is taken still earns the value after it.
    """

    width: int = 3
    pick: Pick = without_replacement

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}: a comb needs at least 1 guess a level (1 is a chain)")

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        spine, beside = draft, []
        steps = torch.arange(room.length, device=draft.start.device)
        keys = noise.guess(draft.start[:, None] + steps, draft.start)
        for level in range(room.length):
            law = score(spine).p.last(1)
            values, real, keep_q = self.pick(law, keys[:, level : level + 1], at_most(law, self.width))
            parent = spine.size - 1
            spine = spine.extend_chain(values[:, :, 0], room.guesses, law if keep_q else None)
            beside.append((values[:, 0, 1:], torch.where(real[:, 0, 1:] & spine.valid[:, -1:], parent, PAD), law))
        if not beside:
            return spine, _in_order(spine)
        values, parents = (torch.cat([level[i] for level in beside], 1) for i in (0, 1))
        q = None if spine.q is None else joined([law.at(torch.zeros_like(above)) for _, above, law in beside])
        final = spine.extend(values, parents, q, width=self.width, levels=room.length)
        return final, torch.cat([_in_order(spine), torch.full_like(parents, UNRUN)], 1)


def joined(laws: Sequence[Any]) -> Any:
    """Batches of laws, one after the other along the node axis."""
    return reduce(lambda one, two: one.cat(two), laws)
