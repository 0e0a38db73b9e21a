"""The horizontal cascade of CS Drafting (Chen et al. 2023): a smaller drafter for the guesses further on, which matter less."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmspec.core.decode import Drafter, DraftSession, TargetSession
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict
from mmspec.drafters.model import settled_values, told


@dataclass(frozen=True)
class Relay:
    """`first` makes the first `guesses` of a round, a chain, and `then` goes on from there: in rows in which `first` made them all.

    Both record q, or neither does. Either may be a relay or a cascade itself.
    """

    first: Drafter
    guesses: int
    then: Drafter

    def __post_init__(self):
        if self.guesses < 1:
            raise ValueError(f"guesses is {self.guesses}: the first drafter of a relay makes at least 1")

    def begin(self, prompt: Any, session: TargetSession) -> "RelaySession":
        return RelaySession(self.first.begin(prompt, session), self.guesses, self.then.begin(prompt, session))


class RelaySession:
    def __init__(self, first: DraftSession, guesses: int, then: DraftSession):
        self.first, self.guesses, self.then = first, guesses, then

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        head = self.first.propose(frontier, Room(room.left, min(self.guesses, room.length)), noise)
        made = head.size - head.roots
        if room.length <= self.guesses:
            return head
        if not head.linear:
            raise ValueError("the first drafter of a relay grew a tree: the second can only go on from a chain")
        # the guesses so far are roots to the second drafter, in the very columns that they have in the draft
        start = frontier.start + head.valid[:, head.roots :].sum(1)
        whole = settled_values(head.nodes, head.valid, start)
        rest = Room(room.left - made, room.length - self.guesses)
        tail = self.then.propose(whole, rest, LaterNoise(noise, frontier.start))  # type: ignore[arg-type]
        if tail.size == whole.roots:
            return head
        draft = head.extend(
            tail.guesses, tail.parents[:, head.size :], tail.q, linear=tail.linear, width=tail.width, levels=made + tail.height
        )
        return replace(draft, drafter_healthy=_both(head.drafter_healthy, tail.drafter_healthy))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        kept = told(draft, scored, verdict)
        self.first.observe(*kept, settled)
        self.then.observe(*kept, settled)


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one & other


@dataclass(frozen=True)
class LaterNoise:
    """The round's noise for drafters that begin in the middle of it.

    Their guesses are keyed by the round's own start. Keyed by where they begin, they would share numbers with the next round that
    starts there, and a rule that has seen the one guess would no longer judge the other fairly.
    """

    outer: Noise
    start: Tensor  # [B] of the round

    @property
    def coupled(self) -> bool:
        return self.outer.coupled

    def value(self, position: Tensor) -> Keys:
        return self.outer.value(position)

    def guess(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        return self.outer.guess(position, self.start, branch + (1 << 22))

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        return self.outer.accept(position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        return self.outer.residual(position, start)
