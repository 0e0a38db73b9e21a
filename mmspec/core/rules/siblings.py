"""Rules for trees: several candidates at one node, tried in order against the remaining distribution of the target.

`Walk` goes down the tree level by level, all rows at once. Its sibling rules differ in two things: the probability that a candidate is
taken, and what becomes of p and q when it is not. A rule is exact for planners that draw candidates as it assumes: top-k, with or without
replacement, or top-k with the last one drawn.

`Relaxed` applies a lossy chain rule along the tree, candidate by candidate, and meters the drift.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.thinning import spread
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY, commit, with_meters
from mmspec.core.rules.token import Token


class Siblings(Protocol):
    """How the candidates at one node are judged. p, q: [B, 1, V]; x, count: [B, 1]; `index` counts candidates from 0.

    q is None where no distribution was recorded; only rules with `points` are given that.
    """

    uses_q: bool
    points: bool  # candidates without a recorded distribution are judged too, as point masses
    tables: bool  # it reads distributions as tables of values; distributions without one are refused

    def take_prob(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> Tensor:
        """Compute the probability of taking a candidate, given that those before it were rejected.

        Args:
            p: what is left of the target's distributions.
            q: what is left of the draft's distributions.
            x: the candidate.
            index: its number.
            count: candidates at the node.

        Returns:
            [B, 1].
        """
        ...

    def refuse(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> tuple[Categorical, Categorical | None]:
        """Update p and q after a rejection.

        Args:
            p: what is left of the target's distributions.
            q: what is left of the draft's distributions.
            x: the candidate.
            index: its number.
            count: candidates at the node.

        Returns:
            What is left of p and q.
        """
        ...

    def refusal(self, p: Categorical, q: Categorical | None, x: Tensor, index: int, count: Tensor) -> Tensor:
        """Compute the mean probability of rejecting a candidate that was drawn as the rule assumes.

        Args:
            p: what is left of the target's distributions.
            q: what is left of the draft's distributions.
            x: the candidate.
            index: its number.
            count: candidates at the node.

        Returns:
            [B, 1].
        """
        ...


@dataclass(frozen=True)
class Walk:
    """Walk from the last root, trying each node's children in order; where none is taken, draw from what is left of p.

    Raises ValueError when called on a draft without recorded distributions, if the sibling rule needs them.
    """

    siblings: Siblings  # judges the candidates at one node
    coupled = False
    trees = True

    @property
    def uses_q(self) -> bool:
        """True if the sibling rule reads q."""
        return self.siblings.uses_q

    @property
    def table_size(self) -> int | None:
        """Values of the table of a lossy rule; None without one."""
        return getattr(getattr(self.siblings, "rule", None), "table_size", None)

    @property
    def exactness(self) -> str:
        """ "lossy" for `Relaxed`, else "distribution-exact"."""
        return LOSSY if isinstance(self.siblings, Relaxed) else DISTRIBUTION_EXACT

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not self.siblings.points and draft.q is None and draft.size > draft.roots:
            raise ValueError(
                f"{type(self.siblings).__name__} needs the distribution its candidates were drawn from: "
                "draft with a sampled tree, or accept with match or topk"
            )
        rows = torch.arange(len(draft.start), device=draft.start.device)
        children = _children(draft)
        here = torch.full_like(draft.start, draft.roots - 1)
        steps = torch.zeros_like(here)
        going = draft.parents[:, draft.roots - 1] != PAD
        left = scored.p.at(here[:, None])
        touched = torch.zeros_like(going)
        dtype = left.scores.dtype if self.siblings.tables else torch.float64
        judged, expected = torch.zeros_like(here), torch.zeros_like(here, dtype=dtype)
        drift, relaxed = torch.zeros_like(expected), isinstance(self.siblings, Relaxed)
        for level in range(draft.height):
            slots = children[rows, here]  # [B, W]
            p = scored.p.at(here[:, None])
            q = None if draft.q is None else draft.q.at((slots[:, :1] - draft.roots).clamp_min(0))
            taken, tried = torch.full_like(here, -1), torch.zeros_like(going)
            count = (slots >= 0).sum(-1, keepdim=True)
            chances = noise.accept((draft.start + steps)[:, None], draft.start).branch(slots.shape[1])
            for j in range(slots.shape[1]):
                x = draft.nodes[rows, slots[:, j].clamp_min(draft.roots)][:, None]  # where there is no child: any draft token
                live = going & (taken < 0) & (slots[:, j] >= 0)
                rule = self._now(level, drift if draft.drift is None else draft.drift + drift)
                chance = rule.take_prob(p, q, x, j, count)
                hit = live & chances[..., j].below(chance)[:, 0]
                judged = judged + live
                expected = expected + torch.where(live, rule.refusal(p, q, x, j, count)[:, 0], 0)
                if isinstance(rule, Relaxed):
                    drift = drift + torch.where(live, rule.excess(p, q, x, chance)[:, 0], 0)
                refused = (live & ~hit)[:, None]
                p_left, q_left = rule.refuse(p, q, x, j, count)
                p, q = p_left.where(refused, p), q_left if q is None or q_left is None else q_left.where(refused, q)
                taken, tried = torch.where(hit, slots[:, j], taken), tried | live
            left, touched = p.where(going[:, None], left), torch.where(going, tried, touched)
            going = going & (taken >= 0)
            here, steps = torch.where(going, taken, here), steps + going
        left = left.where(~going[:, None], scored.p.at(here[:, None]))  # still going: the last level was taken
        position = (draft.start + steps)[:, None]
        own = left.sample(noise.value(position))[:, 0]
        replaced = left.sample(noise.residual(position, draft.start))[:, 0]
        verdict = commit(draft, here, torch.where(spread(touched & ~going, own), replaced, own))
        return with_meters(verdict, judged, drift if relaxed else None, expected)

    def _now(self, level: int, spent: Tensor) -> Siblings:
        """The sibling rule at one level, in rows that have spent `spent` [B] drift."""
        return self.siblings.at(level, spent) if isinstance(self.siblings, Relaxed) else self.siblings

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return self.siblings.rule.output_distribution(p, q) if isinstance(self.siblings, Relaxed) else p


def _children(draft: Draft) -> Tensor:
    """[B, N, W] columns of each node's children in order, -1 padded; W is the draft's sibling bound."""
    columns = torch.arange(draft.size, device=draft.start.device)
    is_child = draft.parents[:, None, :] == columns[None, :, None]
    order = torch.where(is_child, columns, draft.size).sort(-1).values[..., : draft.width]
    return torch.where(order < draft.size, order, -1)


@dataclass(frozen=True)
class Relaxed:
    """A lossy chain rule in a tree: each candidate is judged against what is left of p, and its excess against that is the drift.

    Candidates may be drawn without replacement with q recorded, or be point masses. The drift is the sum of the excess over all candidates
    tried; in the mean it bounds the distance of the output from the target's distribution. One candidate's mean excess is the distance its
    rule leaves between the committed value and what was left of p, given an exact next step; a walk that continues wrongly after a
    rejection adds at most the distance of that step times the probability of the rejection. With one candidate a node it is the chain
    rule's own meter. Once the rule's budget is spent candidates are judged exactly; a row overshoots by one candidate's excess at most.
    """

    rule: Any  # one of `lossy.base.Ratio`
    exact: Tensor | None = None  # [B, 1] rows whose budget is spent; filled in by `at`
    uses_q, points, tables = True, True, True

    def at(self, level: int, spent: Tensor) -> "Relaxed":
        """Set the rule's place in the tree.

        Args:
            level: draft tokens between the candidate and the pending token.
            spent: drift spent by each row [B].

        Returns:
            The rule there.
        """
        exact = None if self.rule.budget is None else (spent >= self.rule.budget)[:, None]
        return Relaxed(self.rule.at(torch.full_like(spent, level)[:, None]), exact)

    def take_prob(self, p, q, x, index, count):
        chance = self.rule.accept_prob(p, q, x)
        return chance if self.exact is None else torch.where(self.exact, Token().accept_prob(p, q, x), chance)

    def excess(self, p: Categorical, q: Categorical | None, x: Tensor, chance: Tensor) -> Tensor:
        """Compute what judging `x` costs in total variation; 0 where the budget is spent.

        Args:
            p: what is left of the target's distributions [B, 1, V].
            q: what is left of the draft's distributions, or None.
            x: the candidate [B, 1].
            chance: its acceptance probability [B, 1].

        Returns:
            [B, 1].
        """
        cost = self.rule.excess(p, q, x, chance)
        return cost if self.exact is None else torch.where(self.exact, 0, cost)

    def refuse(self, p, q, x, index, count):
        left = self.rule.replacement(p, q, x)
        if self.exact is not None and not self.rule.tight:  # tight rules replace as the token rule does
            left = Token().replacement(p, q, x).where(self.exact, left)
        return left, None if q is None else q.without(x)

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


def relaxed(rule: Any) -> Walk:
    """Apply a lossy chain rule to trees.

    Args:
        rule: one of `lossy.base.Ratio`.

    Returns:
        A rule for `accept=`.
    """
    return Walk(Relaxed(rule))
