"""Horizontal cascade (CS Drafting, Chen et al. 2023): a smaller drafter makes the later draft tokens, which are accepted less often."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmspec.core.noise import Keys, Noise
from mmspec.core.protocols import Drafter, DraftSession, TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.model.drafter import as_root, committed_values


@dataclass(frozen=True)
class HorizontalCascade:
    """Two drafters, one after the other, within a round (CS Drafting, Chen et al. 2023).

    Either both record q or neither does. Either may be a cascade itself.

    Args:
        first: makes the first `draft_tokens` of a round, as a chain.
        draft_tokens: number of draft tokens of `first`.
        then: continues in rows where `first` made all of its draft tokens.

    Raises:
        ValueError: if `draft_tokens` is below 1.
    """

    first: Drafter
    draft_tokens: int
    then: Drafter

    def __post_init__(self):
        if self.draft_tokens < 1:
            raise ValueError(f"draft tokens is {self.draft_tokens}: the first drafter of a horizontal cascade makes at least 1")

    def begin(self, prompt: Any, session: TargetSession) -> "HorizontalCascadeSession":
        """Open the drafting session of one generation."""
        return HorizontalCascadeSession(self.first.begin(prompt, session), self.draft_tokens, self.then.begin(prompt, session))


class HorizontalCascadeSession:
    """Drafting session of one generation."""

    def __init__(self, first: DraftSession, draft_tokens: int, then: DraftSession):
        self.first, self.draft_tokens, self.then = first, draft_tokens, then

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        head = self.first.propose(pending, Budget(budget.left, min(self.draft_tokens, budget.length)), noise)
        made = head.size - head.roots
        if budget.length <= self.draft_tokens:
            return head
        if not head.linear:
            raise ValueError("the first drafter of a horizontal cascade grew a tree: the second can only continue a chain")
        # the draft tokens so far are roots to the second drafter, in the very columns that they have in the draft
        start = pending.start + head.valid[:, head.roots :].sum(1)
        whole = committed_values(head.nodes, head.valid, start)
        rest = Budget(budget.left - made, budget.length - self.draft_tokens)
        tail = self.then.propose(whole, rest, LaterNoise(noise, pending.start))  # type: ignore[arg-type]
        if tail.size == whole.roots:
            return head
        draft = head.extend(
            tail.draft_tokens, tail.parents[:, head.size :], tail.q, linear=tail.linear, width=tail.width, levels=made + tail.height
        )
        return replace(draft, drafter_healthy=_both(head.drafter_healthy, tail.drafter_healthy))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        kept = as_root(draft, scored, verdict)
        self.first.observe(*kept, committed)
        self.then.observe(*kept, committed)


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one & other


@dataclass(frozen=True)
class LaterNoise:
    """The round's noise for drafters that start in the middle of a round.

    Draft tokens are keyed by the start of the round. Keyed by their own start, they would share random numbers with the next round that
    starts there, and its accept rule would no longer be unbiased.
    """

    outer: Noise
    start: Tensor  # [B] of the round

    @property
    def coupled(self) -> bool:
        """True where draft tokens and target values share noise."""
        return self.outer.coupled

    def value(self, position: Tensor) -> Keys:
        """Keys of the values committed at `position` [B, N]."""
        return self.outer.value(position)

    def draft_token(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        """Keys of the draft tokens at `position` [B, N] of the round that began at `start` [B]."""
        return self.outer.draft_token(position, self.start, branch + (1 << 22))

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the acceptance tests at `position` [B, N]."""
        return self.outer.accept(position, start)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the residual draws at `position` [B, N]."""
        return self.outer.residual(position, start)
