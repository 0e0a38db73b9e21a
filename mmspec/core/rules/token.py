"""Token rejection sampling on chains, and the driver of rules that judge single draft tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.deferred import DeferredCategorical
from mmspec.core.gumbel import LARGE
from mmspec.core.gumbel_triton import accept_draw
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, SingleDraft, _last_root, commit, over_judged, parents_distribution, with_meters


def judge_chain(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise, exact: Tensor | None = None) -> Verdict:
    """Judge every position of one chain at once; at the first rejection draw from the rule's replacement, else from p.

    Args:
        rule: judges single draft tokens.
        draft: a linear draft.
        scored: its scores.
        noise: the generation's random numbers.
        exact: bool [B, G], draft tokens that are judged and replaced by the token rule instead.

    Returns:
        The verdict.

    Raises:
        ValueError: for drafts that branch.
    """
    if not draft.linear:
        raise ValueError(
            f"{type(rule).__name__} judges chains, but this draft branches: use a tree rule such as match, coupled or without-replacement"
        )
    if draft.size == draft.roots:
        return commit(draft, _last_root(draft), _bonus(draft, scored, noise))
    turns = type(rule) is Token and exact is None and isinstance(scored.p, DeferredCategorical)
    passes, gaps = _judge_in_turn(rule, draft, scored, noise) if turns else _judge_at_once(rule, draft, scored, noise, exact)
    valid = draft.valid[:, draft.roots :]
    accepted = (passes & valid).long().cumprod(-1).sum(-1)
    verdict = commit(draft, draft.roots - 1 + accepted, _chain_extra(rule, draft, scored, noise, accepted, exact))
    judged = accepted + (valid.sum(-1) > accepted)
    return with_meters(verdict, judged, None, over_judged(judged, gaps))


def _judge_at_once(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise, exact: Tensor | None) -> tuple[Tensor, Tensor]:
    """Whether each draft token passes, bool [B, G], and the total variation of p and q there [B, G]."""
    p, x = parents_distribution(draft, scored), draft.draft_tokens
    keys = noise.accept(draft.position()[:, draft.roots - 1 : -1], draft.start)
    chance = rule.accept_prob(p, draft.q, x)
    if exact is not None:
        chance = torch.where(exact, Token().accept_prob(p, draft.q, x), chance)
    return keys.below(chance), p.tv(draft.q, x)


def _judge_in_turn(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise) -> tuple[Tensor, Tensor]:
    """The same, up to the column where the last row stops: the distributions behind it are not made. Synchronises once a column."""
    x, valid = draft.draft_tokens, draft.valid[:, draft.roots :]
    keys = noise.accept(draft.position()[:, draft.roots - 1 : -1], draft.start)
    passes, gaps = torch.zeros_like(valid), torch.zeros(valid.shape, device=valid.device)
    for column in range(valid.shape[1]):
        here = torch.full((len(x), 1), column, device=x.device)
        p, q, value = scored.p.at(here + draft.roots - 1), None if draft.q is None else draft.q.at(here), x[:, column : column + 1]
        passes[:, column : column + 1] = keys[:, column : column + 1].below(rule.accept_prob(p, q, value))
        gaps[:, column : column + 1] = p.tv(q, value)
        if not (passes & valid)[:, : column + 1].all(1).any():
            break
    return passes, gaps


def _chain_extra(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise, accepted: Tensor, exact: Tensor | None = None) -> Tensor:
    """The value committed after `accepted` [B] draft tokens: a replacement where one was rejected, else a draw from p."""
    leaf = draft.roots - 1 + accepted
    child = accepted.clamp(max=draft.size - draft.roots - 1)[:, None]
    rejected = (draft.valid[:, draft.roots :].sum(-1) > accepted)[:, None]
    p = scored.p.at(leaf[:, None])
    q = None if draft.q is None else draft.q.at(child)
    position, x = (draft.start + accepted)[:, None], _columns(draft.draft_tokens, child)
    keys = noise.residual(position, draft.start).where(rejected, noise.value(position))
    if type(rule) is Token and _fusible(p) and _fusible(q):
        return accept_draw(keys.words, p.scores, q.scores, rejected)[:, 0]
    left = rule.replacement(p, q, x)
    if exact is not None:
        left = Token().replacement(p, q, x).where(exact.gather(1, child), left)
    return left.where(rejected, p).sample(keys)[:, 0]


def _fusible(distribution: Any) -> bool:
    """True for large tables on a GPU, where one kernel draws the replacement or the value after the chain."""
    return type(distribution) is Categorical and distribution.scores.device.type == "cuda" and distribution.size >= LARGE


def _columns(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, G, *value] at columns `index` [B, M]."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def _bonus(draft: Draft, scored: Scored, noise: Noise) -> Tensor:
    last = _last_root(draft)[:, None]
    return scored.p.at(last).sample(noise.value(draft.start[:, None]))[:, 0]


@dataclass(frozen=True)
class Token:
    """Token rejection sampling (Leviathan et al. 2023; Chen et al. 2023): accept with min(1, p/q), else draw from norm((p - q)+)."""

    exactness = DISTRIBUTION_EXACT
    coupled = False
    uses_q = True
    trees = False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return judge_chain(self, draft, scored, noise)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return ratio(p, q, x).clamp(max=1)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.residual(q, x)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return p


def ratio(p: Any, q: Any, x: Tensor) -> Tensor:
    """Compute p(x) / q(x).

    Args:
        p: the target's distributions [...].
        q: the distributions `x` was drawn from; None for point masses.
        x: draft tokens [..., *value].

    Returns:
        [...].
    """
    return p.log_ratio(q, x).exp()
