"""Cascades: a drafter whose model is itself decoded speculatively.

Staged speculative decoding (Spector and Re 2023), the vertical cascade of CS Drafting (Chen et al. 2023), the hierarchy of TriForce
(Sun et al. 2024). The middle model's draft is one growing tree: what the inner rule keeps goes on growing, what it refuses stays
behind as columns nobody hangs on, and the next inner round scores new columns only.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import LAW_EXACT, Accept
from mmspec.core.decode import Drafter, DraftSession, Target, TargetSession
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import CONTEXT, PAD, Draft, Room, Scored, Settled, Verdict
from mmspec.drafters.guided import Guide, Source, on_frontier
from mmspec.drafters.model import ModelSession, settled_values, told
from mmspec.drafters.shapes import UNRUN
from mmspec.drafters.views import View, same_prompt


@dataclass(frozen=True)
class Cascade:
    """Drafts with `middle`, decoded in `rounds` inner rounds that `inner` guesses for and `accept` judges, `guesses` at a time.

    The inner rule settles what is exported, a chain: with a law-exact rule (token, block) it is distributed by the middle's law
    exactly, and that law is recorded as q; with any other rule guesses count as point masses. So give greedy under greedy, coupled
    under coupled, token or block under token or block. Every inner round exports one value at least, so a round of n guesses takes
    at most n inner rounds. `inner` is a ModelDrafter, a model-free drafter or a cascade; no inner round waits for the device, but
    for drafters that think on the host, which fetch what the middle has settled. `view` is the middle's view of the prompt.

    `middle` may also be the target itself run short, such as `Windowed`: with a tiny `inner` that is TriForce.
    """

    middle: Target | Source
    inner: Drafter
    accept: Accept
    rounds: int = 2
    guesses: int = 4
    view: View = same_prompt

    def __post_init__(self):
        if min(self.rounds, self.guesses) < 1:
            raise ValueError(f"rounds and guesses are {self.rounds} and {self.guesses}: each must be at least 1")

    def begin(self, prompt: Any, session: TargetSession) -> "CascadeSession":
        if hasattr(self.middle, "guide"):
            return CascadeSession(self, Beside(self.middle.guide(session)), self.inner.begin(prompt, session))  # type: ignore[arg-type]
        own, _ = self.middle.begin(self.view(prompt, session))  # type: ignore[union-attr]
        return CascadeSession(self, own, self.inner.begin(prompt, own))


class Beside:
    """A guide that looks into the target's cache, as the session of a middle model. There is nothing of its own to commit."""

    def __init__(self, guide: Guide):
        self.guide, self.scored = guide, 0

    def ready(self, frontier: Draft) -> bool:
        """Is there a cache to look into? Not in the first round."""
        return self.guide.root(frontier) is not None

    def score(self, draft: Draft) -> Scored:
        self.scored = draft.size
        return self.guide.score(on_frontier(draft))  # values that waited are in the target's cache by now

    def commit(self, keep: Tensor, most: int) -> None:
        self.guide.close()
        self.scored = 0


class CascadeSession(ModelSession):
    """The middle's session, with the values it has not run yet, and the inner drafter's."""

    def __init__(self, plan: Cascade, session: TargetSession, inner: DraftSession):
        super().__init__(session)
        self.plan, self.inner = plan, inner

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        if isinstance(self.session, Beside) and not self.session.ready(frontier):
            return self.inner.propose(frontier, replace(room, length=0), noise)
        return super().propose(frontier, room, noise)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        super().observe(draft, scored, verdict, settled)
        self.inner.observe(*told(draft, scored, verdict), settled)

    def _grow(self, frontier: Draft, own: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        plan = self.plan
        noise = noise if noise.coupled else InnerNoise(noise, own.start, plan.accept.coupled)  # type: ignore[assignment]
        width = min(room.length, plan.rounds * (plan.guesses + 1))
        growth = Growth(own, frontier, room.guesses, width)
        for turn in range(min(plan.rounds, room.length)):
            # every live row has taken `turn` values at least, and the last value is the middle's own
            length = min(plan.guesses, room.length - 1 - turn)
            guessed = self.inner.propose(growth.frontier, Room(growth.left, length), noise)
            draft = growth.take(guessed)
            scored = Scored(self.session.score(growth.own).p.last(draft.size))
            growth.settle(draft, scored, plan.accept(draft, scored, noise))
        return growth.export(own, record=plan.accept.exactness == LAW_EXACT)


class Growth:
    """The middle's draft while it grows, and the chain exported from it."""

    def __init__(self, own: Draft, frontier: Draft, left: Tensor, width: int):
        self.own, self.frontier, self.left, self.width = own, frontier, left, width
        self.first = self.base = own.roots - 1  # own columns of the first law, and of the tip: the value guesses hang on
        self.leaf: Tensor | None = None  # [B] what the next tip hangs on; None: it is a root
        self.filled = torch.zeros_like(own.start)
        self.laws: Any = None  # over own columns from `first` on
        shape = (len(own.start), width + 1)  # one column more for what is not exported
        self.values = torch.zeros(shape, dtype=own.nodes.dtype, device=own.nodes.device)
        self.parents = torch.zeros(shape, dtype=torch.long, device=own.nodes.device)
        self.origin = torch.full(shape, UNRUN, device=own.nodes.device)  # each exported value's own column

    def take(self, guessed: Draft) -> Draft:
        """Hang an inner draft on what has grown so far; returned is its last root with its guesses, for the rule to judge."""
        lag = guessed.roots - 1
        parents = guessed.parents[:, lag:]
        tip = torch.where(parents[:, :1] == PAD, PAD, CONTEXT)
        parents = torch.cat([tip, torch.where(parents[:, 1:] == PAD, PAD, parents[:, 1:] - lag)], 1)
        draft = replace(guessed, nodes=guessed.nodes[:, lag:], parents=parents, roots=1)
        fresh = 1
        if self.leaf is not None:
            self.base, fresh = self.own.size, 0
            tip = torch.where(tip == PAD, PAD, self.leaf[:, None])
            alive = tip[:, 0] != PAD
            self.origin.scatter_(1, torch.where(alive, self.filled - 1, self.width)[:, None], self.base)
        hung = torch.cat([tip, torch.where(parents[:, 1:] == PAD, PAD, parents[:, 1:] + self.base)], 1)
        if fresh < draft.size:
            levels = self.own.height + draft.size - fresh
            self.own = self.own.extend(draft.nodes[:, fresh:], hung[:, fresh:], linear=fresh == 1 and draft.linear, levels=levels)
        return draft

    def settle(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Export what `verdict` settles, as far as there is room, and move the frontier behind it."""
        count = torch.minimum(verdict.count, self.left)
        steps = torch.arange(draft.size, device=count.device)
        place = torch.where(steps < count[:, None], self.filled[:, None] + steps, self.width)
        kept = torch.where(verdict.keep >= 0, verdict.keep + self.base, UNRUN)
        self.laws = scored.p if self.laws is None else self.laws.cat(scored.p)
        self.values.scatter_(1, place, verdict.values)
        self.parents.scatter_(1, place, kept - self.first)  # value j was settled after the j-th node kept
        self.origin.scatter_(1, place, torch.cat([kept[:, 1:], torch.full_like(kept[:, :1], UNRUN)], 1))
        self.filled, self.left = self.filled + count, self.left - count
        self.leaf = (verdict.keep.amax(1) + self.base).clamp_min(0)
        alive = (verdict.frontier.parents[:, -1:] != PAD) & (self.left > 0)[:, None]
        old, accepted = self.frontier, steps[:-1] < verdict.accepted[:, None]
        values = torch.cat([old.nodes, verdict.values[:, :-1], verdict.frontier.nodes[:, -1:]], 1)
        self.frontier = settled_values(values, torch.cat([old.valid, accepted, alive], 1), verdict.frontier.start)

    def export(self, own: Draft, record: bool) -> tuple[Draft, Tensor]:
        """The chain on the roots `own`, and its values' columns in the middle's draft."""
        last = self.own.size - 1 - self.first
        q = self.laws.at(self.parents[:, : self.width].clamp(0, last)) if record else None
        return own.extend_chain(self.values[:, : self.width], self.filled, q), self.origin[:, : self.width]


@dataclass(frozen=True)
class InnerNoise:
    """Noise for inner rounds, made of the outer guesses' own: it shares no number with the outer rule, whose tests must not know it."""

    outer: Noise
    start: Tensor  # [B] of the outer round
    coupled: bool

    def value(self, position: Tensor) -> Keys:
        return self._keys(1, position)

    def guess(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        return self.value(position) if self.coupled else self._keys(2, position, start, branch)

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        return self._keys(3, position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        return self._keys(4, position, start)

    def _keys(self, role: int, position: Tensor, start: Tensor | None = None, branch: int | Tensor = 0) -> Keys:
        since = 0 if start is None else (start - self.start + 1)[:, None]
        return self.outer.guess(position, self.start, role + 8 * (since + 1024 * branch))
