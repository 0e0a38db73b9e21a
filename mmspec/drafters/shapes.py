"""Shapes of drafts: chains and combs, and how draft tokens are drawn. Trees are in `mmspec.drafters.trees`.

A shape calls `score` on its growing draft and returns the finished draft and, for each draft token, its column in the scored draft. Draft
tokens that were never run get a column past the end: in a chain the last ones. The class attribute `replaces` is True for shapes in which
no draft token of the finished chain has been run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.protocol import Distribution
from mmspec.core.noise import Keys, Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import PAD, Budget, Draft, Scored, Verdict
from mmspec.drafters.fallback import AdaptiveFallback, FallbackSession, refuse_unbegun
from mmspec.drafters.stops import Stop
from mmspec.utils.renamed import old_names

Score = Callable[[Draft], Scored]
UNRUN = 1 << 30


class Shape(Protocol):
    """Protocol of shapes: how a draft grows."""

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column [B, G] that each draft token was scored in.

        Args:
            score: returns the distributions after the new columns of a draft.
            draft: the roots that the draft grows from.
            budget: draft tokens and values allowed per row.
            noise: the noise of the round.
        """
        ...


def for_source(shape: Any, budget: Budget, mixed: bool, most: int | None = None) -> tuple[Shape, Budget]:
    """Return a shape and a budget as they apply to a source of distributions.

    Args:
        shape: the shape.
        budget: the budget of the round. Its length is the number of nodes for shapes that have `limited`, and the depth for others.
        mixed: True where a call may score nodes of several depths, False where it scores a level.
        most: largest number of draft tokens on a path, None for no bound.

    Returns:
        The shape, and the budget within `most`.
    """
    if not hasattr(shape, "limited"):
        return shape, budget if most is None else replace(budget, length=min(budget.length, most))
    shape = shape if most is None else shape.limited(most)
    return replace(shape, mixed=mixed), budget


# --- chains -----------------------------------------------------------------------------------------------------------

Draw = Callable[[Distribution, Keys], tuple[Tensor, Distribution | None]]
"""How a draft token comes from the drafter's distribution: the value, and the distribution it was drawn from (None: a point mass on it)."""


def sampled(distribution: Distribution, keys: Keys) -> tuple[Tensor, Distribution | None]:
    """Draw from the drafter's distribution and record it as q. For rules that read q."""
    return distribution.sample(keys), distribution


def drawn(distribution: Distribution, keys: Keys) -> tuple[Tensor, Distribution | None]:
    """Draw from the drafter's distribution without recording it. For the coupled and match rules, which need no q."""
    return distribution.sample(keys), None


def most_likely(distribution: Distribution, keys: Keys) -> tuple[Tensor, Distribution | None]:
    """Take the drafter's most likely value: a point mass."""
    return distribution.mode(), None


def most_likely_of(distribution: Distribution, keys: Keys) -> tuple[Tensor, Distribution | None]:
    """Take the drafter's most likely value and record its distribution. For rules that read how likely it is."""
    return distribution.mode(), distribution


@dataclass(frozen=True)
class Warped:
    """Draw after `warp` (temperature and truncation) and record the distribution before it. For rules that read that one."""

    warp: Pipeline

    def __call__(self, distribution: Distribution, keys: Keys) -> tuple[Tensor, Distribution | None]:
        """Draw a value for every distribution with the noise `keys`; return the values and the unwarped distribution."""
        warped = self.warp(distribution.scores, None)  # type: ignore[arg-type]
        return Categorical(warped).sample(keys), distribution


@dataclass(frozen=True)
class Chain:
    """A chain of draft tokens, one after the other.

    Rows that have ended hold PAD in the remaining columns.

    Args:
        draw: how a draft token is drawn: `sampled`, `drawn`, `most_likely` or `Warped`.
        stop: ends a row's chain early; see `mmspec.drafters.stops`, and `mmspec.drafters.fallback` for models.
        early: end the drafting when every row has ended. Saves forwards of the drafter, at one host synchronisation per draft token and
            drafts of varying size.
    """

    draw: Draw = sampled
    stop: Stop | AdaptiveFallback | None = None
    early: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """Hidden states of the drafter that `grow` reads."""
        return () if self.stop is None else self.stop.reads

    def begun(self) -> "Chain":
        """Return this shape for one generation, where its stop follows the verdicts."""
        return replace(self, stop=self.stop.begin()) if isinstance(self.stop, AdaptiveFallback) else self

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Let a stop that follows the verdicts adapt to a round."""
        if isinstance(self.stop, FallbackSession):
            drafted = draft.valid[:, draft.roots :].sum(1)
            self.stop.learn(drafted, verdict.accepted, drafted - 1)

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        allowed, stop = budget.draft_tokens, refuse_unbegun(self.stop)
        reach = torch.ones_like(draft.start, dtype=torch.float32)
        steps = torch.arange(budget.length, device=draft.start.device)
        keys = noise.draft_token(draft.start[:, None] + steps, draft.start)
        for step in range(budget.length):
            if self.early and step and not (allowed > step).any():
                break
            scored = score(draft)
            distribution = scored.p.last(1)
            if stop is not None:
                ends, reach = stop.before(scored, reach)
                allowed = _ended(allowed, ends, step)
            value, q = self.draw(distribution, keys[:, step : step + 1])
            draft = draft.extend_chain(value, allowed, q)
            if stop is not None:  # the draft token just drawn stays whatever its value: its distribution given that it stays must be q
                ends, reach = stop.after(scored, value, reach)
                allowed = _ended(allowed, ends, step + 1)
        return draft, _in_order(draft)


def _ended(allowed: Tensor, ends: Tensor | None, draft_tokens: int) -> Tensor:
    """`allowed` [B], but no more than `draft_tokens` in rows that end [B]."""
    return allowed if ends is None else torch.where(ends, allowed.clamp(max=draft_tokens), allowed)


def _in_order(draft: Draft) -> Tensor:
    columns = torch.arange(draft.roots, draft.size, device=draft.start.device)
    return columns.expand(len(draft.start), -1)


# --- siblings ---------------------------------------------------------------------------------------------------------

Pick = Callable[[Any, Keys, int], tuple[Tensor, Tensor, bool]]
"""`count` siblings from each distribution [B, n]: values [B, n, count, *value], which are real [B, n, count], and whether q is to be
recorded."""


def draw_without_replacement(distribution: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Draw siblings without replacement (Gumbel top-k). For WithoutReplacement and, with the target's noise, for the coupled rule."""
    values, scores = distribution.distinct(keys, count)
    return values, scores > -torch.inf, True


def draw_with_replacement(distribution: Distribution, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Draw siblings independently, from any distribution. For WithReplacement, KSeq and DGRS."""
    streams = keys.branch(count)
    values = torch.stack([distribution.sample(streams[..., sibling]) for sibling in range(count)], 2)
    return values, torch.ones(values.shape[:3], dtype=torch.bool, device=values.device), True


def at_most(distribution: Distribution, count: int) -> int:
    """Return `count`, or the number of values of the distribution where that is smaller."""
    return min(count, distribution.size) if isinstance(distribution, Categorical) else count


def top(distribution: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Take the most likely values as siblings. For match, greedy, TopK and threshold rules."""
    scores, values = distribution.top(count)
    return values, scores > -torch.inf, False


def top_and_one(distribution: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Take the most likely values and draw one from the rest. For Hybrid."""
    if count == 1:
        return draw_without_replacement(distribution, keys, 1)
    scores, values = distribution.top(count - 1)
    rest = distribution.scores.scatter(-1, values, -torch.inf)
    last = keys.choose(rest)[..., None]
    real = torch.cat([scores > -torch.inf, rest.gather(-1, last) > -torch.inf], -1)
    return torch.cat([values, last], -1), real, True


@dataclass(frozen=True)
class Comb:
    """A chain in which every node has further siblings that are not drafted on. Costs as many drafter forwards as a chain.

    Args:
        width: siblings per level, including the chain's own token.
        pick: how siblings are picked; see `draw_without_replacement`.

    Raises:
        ValueError: if `width` is below 1.
    """

    width: int = 3
    pick: Pick = draw_without_replacement

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}: a comb needs at least 1 draft token a level (1 is a chain)")

    def kept(self, distribution: Any, real: Tensor) -> Tensor:
        """Return which of the siblings that are `real` [B, n, width] are drafted: all of them."""
        return real

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        spine, beside = draft, []
        steps = torch.arange(budget.length, device=draft.start.device)
        keys = noise.draft_token(draft.start[:, None] + steps, draft.start)
        for level in range(budget.length):
            distribution = score(spine).p.last(1)
            values, real, keep_q = self.pick(distribution, keys[:, level : level + 1], at_most(distribution, self.width))
            real = self.kept(distribution, real)
            parent = spine.size - 1
            spine = spine.extend_chain(values[:, :, 0], budget.draft_tokens, distribution if keep_q else None)
            beside.append((values[:, 0, 1:], torch.where(real[:, 0, 1:] & spine.valid[:, -1:], parent, PAD), distribution))
        if not beside:
            return spine, _in_order(spine)
        values, parents = (torch.cat([level[i] for level in beside], 1) for i in (0, 1))
        q = (
            None
            if spine.q is None
            else concatenate_distributions([distribution.at(torch.zeros_like(above)) for _, above, distribution in beside])
        )
        final = spine.extend(values, parents, q, width=self.width, levels=budget.length)
        return final, torch.cat([_in_order(spine), torch.full_like(parents, UNRUN)], 1)


@dataclass(frozen=True)
class ConfidentComb(Comb):
    """A comb with fewer siblings where the drafter is surer (CaPE, Du et al. 2024).

    How many depends on the drafter's distribution, not on the values drawn from it, so siblings keep the distribution they are drawn from.

    Args:
        width: siblings where the drafter is less sure than all `bounds`.
        bounds: largest probabilities above which fewer are drafted, falling, each with the number of siblings.

    Raises:
        ValueError: if a number is out of range or the bounds do not fall.
    """

    width: int = 7
    bounds: tuple[tuple[float, int], ...] = ((0.8, 1), (0.6, 3), (0.3, 5))

    def __post_init__(self):
        super().__post_init__()
        sure, counts = zip(*self.bounds, strict=True) if self.bounds else ((), ())
        if not all(0 <= each < 1 for each in sure) or list(sure) != sorted(sure, reverse=True) or any(each < 1 for each in counts):
            raise ValueError(f"bounds is {self.bounds}: give pairs of a probability below 1, falling, and a number of siblings, at least 1")

    def kept(self, distribution: Any, real: Tensor) -> Tensor:
        """Return which of the siblings that are `real` [B, n, width] are drafted: as many as the confidence asks for."""
        sure = distribution.prob(distribution.mode())  # [B, n]
        many = torch.full_like(sure, self.width, dtype=torch.long)
        for bound, fewer in reversed(self.bounds):
            many = torch.where(sure > bound, fewer, many)
        return real & (torch.arange(real.shape[-1], device=sure.device) < many[..., None])


def concatenate_distributions(distributions: Sequence[Any]) -> Any:
    """Concatenate batches of distributions along the node axis."""
    return reduce(lambda one, two: one.cat(two), distributions)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
