"""Vertical cascades: a drafter whose model is itself decoded speculatively.

Staged speculative decoding (Spector and Re 2023), the vertical cascade of CS Drafting (Chen et al. 2023), the hierarchy of TriForce (Sun
et al. 2024). The middle model's draft is one growing tree: tokens that the inner rule keeps are extended, rejected ones remain as columns
without children, and each inner round scores new columns only.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Keys, Noise
from mmspec.core.protocols import Drafter, DraftSession, Target, TargetSession
from mmspec.core.records import CONTEXT, PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, Accept
from mmspec.drafters.guided import DraftSource, Guide, on_pending
from mmspec.drafters.model.drafter import ModelSession, as_root, committed_values
from mmspec.drafters.shapes import UNRUN
from mmspec.drafters.views.base import View, same_prompt


@dataclass(frozen=True)
class VerticalCascade:
    """Drafts with a middle model that is itself decoded speculatively (Spector and Re 2023; Chen et al. 2023; Sun et al. 2024).

    The inner rule commits a chain, which becomes the draft. Under a distribution-exact inner rule (token, block) it follows the middle
    model's distribution, which is recorded as q; under any other rule draft tokens are point masses. So use the same kind of rule inside
    and outside: greedy under greedy, coupled under coupled, token or block under token or block. Every inner round commits at least one
    value.

    Args:
        middle: the middle model, or a partial forward of the target such as `Windowed` (TriForce).
        inner: drafter of the inner rounds: a `ModelDrafter`, a model-free drafter or a cascade. Only host-side drafters synchronise with
            the device.
        accept: accept rule of the inner rounds.
        rounds: inner rounds per draft.
        draft_tokens: draft tokens per inner round.
        view: maps the target's prompt to the middle model's.

    Raises:
        ValueError: if `rounds` or `draft_tokens` is below 1.
    """

    middle: Target | DraftSource
    inner: Drafter
    accept: Accept
    rounds: int = 2
    draft_tokens: int = 4
    view: View = same_prompt

    def __post_init__(self):
        if min(self.rounds, self.draft_tokens) < 1:
            raise ValueError(f"rounds and draft tokens are {self.rounds} and {self.draft_tokens}: each must be at least 1")

    def begin(self, prompt: Any, session: TargetSession) -> "VerticalCascadeSession":
        """Open the drafting session of one generation."""
        if hasattr(self.middle, "guide"):
            return VerticalCascadeSession(self, Beside(self.middle.guide(session)), self.inner.begin(prompt, session))  # type: ignore[arg-type]
        own, _ = self.middle.begin(self.view(prompt, session))  # type: ignore[union-attr]
        return VerticalCascadeSession(self, own, self.inner.begin(prompt, own))


class Beside:
    """Session of a middle model that is a partial forward of the target. It has no cache of its own to commit."""

    def __init__(self, guide: Guide):
        self.guide, self.scored = guide, 0

    def ready(self, pending: Draft) -> bool:
        """Return False in the first round, when the target has no cache yet."""
        return self.guide.root(pending) is not None

    def score(self, draft: Draft) -> Scored:
        """Score the draft; see `TargetSession.score`."""
        self.scored = draft.size
        return self.guide.score(on_pending(draft))  # values that waited are now in the target's cache

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        self.guide.close()
        self.scored = 0


class VerticalCascadeSession(ModelSession):
    """The middle model's session, with the values it has not run yet, and the inner drafter's."""

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

    def __init__(self, plan: VerticalCascade, session: TargetSession, inner: DraftSession):
        super().__init__(session)
        self.plan, self.inner = plan, inner

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if isinstance(self.session, Beside) and not self.session.ready(pending):
            return self.inner.propose(pending, replace(budget, length=0), noise)
        return super().propose(pending, budget, noise)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        super().observe(draft, scored, verdict, committed)
        self.inner.observe(*as_root(draft, scored, verdict), committed)

    def _grow(self, pending: Draft, own: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        plan = self.plan
        noise = noise if noise.coupled else InnerNoise(noise, own.start, plan.accept.coupled)  # type: ignore[assignment]
        width = min(budget.length, plan.rounds * (plan.draft_tokens + 1))
        growth = Growth(own, pending, budget.draft_tokens, width)
        for turn in range(min(plan.rounds, budget.length)):
            # every live row has taken `turn` values at least, and the last value is the middle's own
            length = min(plan.draft_tokens, budget.length - 1 - turn)
            drafted = self.inner.propose(growth.pending, Budget(growth.left, length), noise)
            draft = growth.take(drafted)
            scored = Scored(self.session.score(growth.own).p.last(draft.size))
            growth.commit(draft, scored, plan.accept(draft, scored, noise))
        return growth.export(own, record=plan.accept.exactness == DISTRIBUTION_EXACT)


class Growth:
    """The middle model's growing draft, and the chain exported from it."""

    def __init__(self, own: Draft, pending: Draft, left: Tensor, width: int):
        self.own, self.pending, self.left, self.width = own, pending, left, width
        self.first = self.base = own.roots - 1  # own columns of the first distribution, and of the tip: the value draft tokens hang on
        self.leaf: Tensor | None = None  # [B] what the next tip hangs on; None: it is a root
        self.filled = torch.zeros_like(own.start)
        self.distributions: Any = None  # over own columns from `first` on
        shape = (len(own.start), width + 1)  # one column more for what is not exported
        self.values = torch.zeros(shape, dtype=own.nodes.dtype, device=own.nodes.device)
        self.parents = torch.zeros(shape, dtype=torch.long, device=own.nodes.device)
        self.origin = torch.full(shape, UNRUN, device=own.nodes.device)  # each exported value's own column

    def take(self, drafted: Draft) -> Draft:
        """Attach an inner draft to the tree; returns its last root with its draft tokens, for the rule to judge."""
        lag = drafted.roots - 1
        parents = drafted.parents[:, lag:]
        tip = torch.where(parents[:, :1] == PAD, PAD, CONTEXT)
        parents = torch.cat([tip, torch.where(parents[:, 1:] == PAD, PAD, parents[:, 1:] - lag)], 1)
        draft = replace(drafted, nodes=drafted.nodes[:, lag:], parents=parents, roots=1)
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

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Export what `verdict` commits, within the budget, and move the pending token behind it."""
        count = torch.minimum(verdict.count, self.left)
        steps = torch.arange(draft.size, device=count.device)
        place = torch.where(steps < count[:, None], self.filled[:, None] + steps, self.width)
        kept = torch.where(verdict.keep >= 0, verdict.keep + self.base, UNRUN)
        self.distributions = scored.p if self.distributions is None else self.distributions.cat(scored.p)
        self.values.scatter_(1, place, verdict.values)
        self.parents.scatter_(1, place, kept - self.first)  # value j was committed after the j-th node kept
        self.origin.scatter_(1, place, torch.cat([kept[:, 1:], torch.full_like(kept[:, :1], UNRUN)], 1))
        self.filled, self.left = self.filled + count, self.left - count
        self.leaf = (verdict.keep.amax(1) + self.base).clamp_min(0)
        alive = (verdict.pending.parents[:, -1:] != PAD) & (self.left > 0)[:, None]
        old, accepted = self.pending, steps[:-1] < verdict.accepted[:, None]
        values = torch.cat([old.nodes, verdict.values[:, :-1], verdict.pending.nodes[:, -1:]], 1)
        self.pending = committed_values(values, torch.cat([old.valid, accepted, alive], 1), verdict.pending.start)

    def export(self, own: Draft, record: bool) -> tuple[Draft, Tensor]:
        """Return the chain on the roots `own`, and its values' columns in the middle model's draft."""
        last = self.own.size - 1 - self.first
        q = self.distributions.at(self.parents[:, : self.width].clamp(0, last)) if record else None
        return own.extend_chain(self.values[:, : self.width], self.filled, q), self.origin[:, : self.width]


@dataclass(frozen=True)
class InnerNoise:
    """Noise of inner rounds, derived from the keys of the outer draft tokens, so that it shares no random number with the outer rule."""

    outer: Noise
    start: Tensor  # [B] of the outer round
    coupled: bool

    def value(self, position: Tensor) -> Keys:
        """Keys of the values committed at `position` [B, N]."""
        return self._keys(1, position)

    def draft_token(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        """Keys of the draft tokens at `position` [B, N] of the round that began at `start` [B]."""
        return self.value(position) if self.coupled else self._keys(2, position, start, branch)

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the acceptance tests at `position` [B, N]."""
        return self._keys(3, position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the residual draws at `position` [B, N]."""
        return self._keys(4, position, start)

    def _keys(self, role: int, position: Tensor, start: Tensor | None = None, branch: int | Tensor = 0) -> Keys:
        since = 0 if start is None else (start - self.start + 1)[:, None]
        return self.outer.draft_token(position, self.start, role + 8 * (since + 1024 * branch))
