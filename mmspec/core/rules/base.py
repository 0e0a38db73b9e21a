"""Parts that accept rules share: exactness names, protocols, and the drivers that turn judgements into verdicts.

A rule is a pure callable (draft, scored, noise) -> Verdict that states its `exactness` (token-exact, distribution-exact or lossy),
`coupled` (draft tokens must be drawn with the target's own noise), `uses_q` (it reads the distributions draft tokens were drawn from) and
`output_distribution(p, q)`, the distribution of one committed value in closed form, which tests compare it with.

There are two drivers. `core.rules.token.judge_chain` judges all positions of one chain at once from acceptance probabilities; `deepest`
takes pass-or-fail judgements on any tree and keeps the longest path that passes. Both end in `commit`.
"""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys
from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rules.paths import longest, with_roots

TOKEN_EXACT, DISTRIBUTION_EXACT, GROUP_EXACT, LOSSY = "token-exact", "distribution-exact", "group-exact", "lossy"
UNMETERED = f"{LOSSY} (unmetered)"  # departs from the target's distribution by an amount that is not measured


class Accept(AcceptRule, Protocol):
    """A rule with a closed form for the distribution of one committed value."""

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """Compute the distribution of one committed value when a single draft token is judged.

        Args:
            p: the target's distribution [V].
            q: the distribution the draft token was drawn from [V].

        Returns:
            Distribution [V].
        """
        ...


class SingleDraft(Protocol):
    """A rule for one draft token at one position: accepted with some probability, replaced otherwise."""

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        """Compute the probability of accepting draft tokens.

        Args:
            p: the target's distributions [...].
            q: the distributions `x` was drawn from; None for point masses.
            x: draft tokens [..., *value].

        Returns:
            Probabilities [...].
        """
        ...

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        """Make the distributions to draw from where draft tokens are rejected.

        Args:
            p: the target's distributions [...].
            q: the distributions `x` was drawn from; None for point masses.
            x: draft tokens [..., *value].

        Returns:
            Distributions [...].
        """
        ...


def commit(draft: Draft, leaf: Tensor, extra: Tensor) -> Verdict:
    """Make the verdict that keeps one path and commits one more value.

    Rows whose root is PAD are finished: they keep nothing and commit nothing.

    Args:
        draft: the draft.
        leaf: last column of the path [B], the last root or a draft token.
        extra: value [B, *value] committed after the path.

    Returns:
        The verdict, with all accepted tokens counted as judged.
    """
    if draft.size == 1:
        return _commit_root(draft, extra)
    n, roots, rows = draft.size, draft.roots, torch.arange(len(leaf), device=leaf.device)
    columns = torch.arange(n, device=leaf.device)
    alive = draft.parents[:, roots - 1] != PAD
    if draft.linear:
        keep = torch.where((columns <= leaf[:, None]) & draft.valid & alive[:, None], columns, -1)
        draft_token = keep[:, roots:]
    else:
        path = draft.ancestors()[rows, leaf] & draft.valid & alive[:, None]
        order = torch.where(path, columns, n).sort(-1).values
        keep = torch.where(order < n, order, -1)
        draft_token = keep[:, roots:]  # roots are never skipped on a live row: the path runs through all of them
    accepted = (draft_token >= 0).sum(-1)
    values = extra.new_zeros(len(leaf), n - roots + 1, *extra.shape[1:])
    if n > roots:
        index = draft_token.clamp_min(0)
        values[:, :-1] = draft.nodes[rows[:, None], index]
    values[rows, accepted] = extra
    count = torch.where(alive, accepted + 1, 0)
    pending = Draft.root(extra, draft.start + count, alive, draft.drift)
    return Verdict(keep, values, count, pending, accepted, accepted)


def _commit_root(draft: Draft, extra: Tensor) -> Verdict:
    """`commit` for a draft of one root, whose parent is CONTEXT (-1), or PAD (-2) in finished rows."""
    keep = draft.parents + 1
    count = keep[:, 0] + 1
    none = torch.zeros_like(count)
    pending = Draft(extra[:, None], draft.parents, draft.start + count, drift=draft.drift)
    return Verdict(keep, pending.nodes, count, pending, none, none)


def with_meters(verdict: Verdict, judged: Tensor, drift: Tensor | None, expected: Tensor | None) -> Verdict:
    """Fill in a verdict's counts.

    Args:
        verdict: the verdict.
        judged: [B] draft tokens judged.
        drift: [B] total variation spent, added to the running total of the pending draft; None for exact rules.
        expected: [B] rejections expected of token-wise judging, or None.

    Returns:
        A new verdict.
    """
    if drift is None:
        return replace(verdict, judged=judged, expected=expected)
    before = verdict.pending.drift
    pending = replace(verdict.pending, drift=drift if before is None else before + drift)
    return replace(verdict, judged=judged, expected=expected, drift=drift, pending=pending)


# --- driver 1: pass or fail -------------------------------------------------------------------------------------------


def deepest(draft: Draft, passes: Tensor, value: Tensor) -> Verdict:
    """Keep the longest path whose draft tokens all pass. Ties go to the earlier column.

    Args:
        draft: any draft.
        passes: bool [B, N].
        value: values [B, N, *value]; the one at the path's end is committed.

    Returns:
        The verdict.
    """
    leaf, failed = longest(draft, passes)
    verdict = commit(draft, leaf, value[torch.arange(len(leaf), device=leaf.device), leaf])
    return replace(verdict, judged=verdict.accepted + failed)


def follow(draft: Draft, p: Any, keys: Keys | None) -> Verdict:
    """Keep draft tokens while they equal what `p` gives after their parents, and commit what it gives at the end.

    Distributions that compare a value more cheaply than they draw one, such as those of frames, draw at the end only.

    Args:
        draft: any draft.
        p: the target's distributions [B, N].
        keys: streams [B, N] of the draws; None for the modes.

    Returns:
        The verdict.
    """
    if draft.size == 1:
        return commit(draft, draft.start, (p.mode() if keys is None else p.sample(keys))[:, 0])
    if draft.size == draft.roots:
        leaf, failed = _last_root(draft), torch.zeros_like(draft.start)
    elif keys is not None and getattr(p, "searched", False):
        return _walk(draft, p, keys)
    elif keys is not None and type(p) is Categorical:
        drawn = p.sample(keys)
        passes = draft.draft_tokens == drawn.gather(1, draft.parents[:, draft.roots :].clamp_min(0))
        leaf, failed = longest(draft, with_roots(draft, passes))
        verdict = commit(draft, leaf, drawn.gather(1, leaf[:, None])[:, 0])
        return replace(verdict, judged=verdict.accepted + failed, drawn=drawn)
    else:
        parents, x = draft.parents[:, draft.roots :].clamp_min(0), draft.draft_tokens
        passes = p.tops(parents, x) if keys is None else p.draws(keys, parents, x)
        leaf, failed = longest(draft, with_roots(draft, passes))
    last = p.at(leaf[:, None])
    own = last.mode() if keys is None else last.sample(_streams(keys, leaf))
    verdict = commit(draft, leaf, own[:, 0])
    return replace(verdict, judged=verdict.accepted + failed)


def _streams(keys: Keys, leaf: Tensor) -> Keys:
    """The streams [B, 1] of columns `leaf` [B]."""
    return keys[torch.arange(len(leaf), device=leaf.device)[:, None], leaf[:, None]]


def _walk(draft: Draft, p: Categorical, keys: Keys) -> Verdict:
    """`follow`, level by level: only distributions on the path still alive are drawn from. Synchronises once a level."""
    leaf = _last_root(draft)
    value = p.at(leaf[:, None]).sample(_streams(keys, leaf))  # [B, 1]
    reached = torch.arange(draft.size, device=leaf.device) == leaf[:, None]  # the columns that stand for the path's end
    going = draft.valid[:, draft.roots - 1]
    while True:
        children = reached.gather(1, draft.parents.clamp_min(0)) & (draft.parents >= 0) & draft.valid
        children[:, : draft.roots] = False
        passed = children & (draft.nodes == value) & going[:, None]
        going = passed.any(1)
        if not going.any():
            break
        reached = torch.where(going[:, None], passed, reached)
        leaf = torch.where(going, passed.long().argmax(1), leaf)
        rows = going.nonzero()
        columns = leaf[rows]
        value[rows[:, 0]] = p.picked(rows, columns).sample(keys[rows, columns])
    failed = ((draft.parents[:, draft.roots :] == leaf[:, None]) & draft.valid[:, draft.roots :]).any(1)
    verdict = commit(draft, leaf, value[:, 0])
    return replace(verdict, judged=verdict.accepted + failed)


# --- driver 2: acceptance probabilities on a chain --------------------------------------------------------------------


def _last_root(draft: Draft) -> Tensor:
    return torch.full((len(draft.start),), draft.roots - 1, device=draft.start.device)


def parents_distribution(draft: Draft, scored: Scored) -> Any:
    """Select the distributions that judge each draft token of a chain.

    Args:
        draft: a linear draft.
        scored: its scores.

    Returns:
        Distributions [B, G].
    """
    columns = torch.arange(draft.roots - 1, draft.size - 1, device=draft.start.device)
    return scored.p.at(columns.expand(len(draft.start), -1))


def over_judged(judged: Tensor, amounts: Tensor) -> Tensor:
    """Sum amounts over the judged positions of a chain.

    Args:
        judged: [B] draft tokens judged.
        amounts: [B, G].

    Returns:
        [B].
    """
    reached = torch.arange(amounts.shape[1], device=amounts.device) < judged[:, None]
    return torch.where(reached, amounts, 0).sum(-1)


def emitted(rule: SingleDraft, p: Categorical, q: Categorical) -> Categorical:
    """Compute the output distribution of a single-draft rule: sum over x of q(x) (a(x) on x + (1 - a(x)) r_x).

    Args:
        rule: the rule.
        p: the target's distribution [V].
        q: the draft's distribution [V].

    Returns:
        Distribution [V].
    """
    x, many_p, many_q = for_every_value(p, q)
    weight, accept = q.probs(), rule.accept_prob(many_p, many_q, x).nan_to_num()  # 0 / 0 where neither distribution has mass
    replaced = rule.replacement(many_p, many_q, x).probs()
    return Categorical.of(weight * accept + (weight * (1 - accept)) @ replaced)


def for_every_value(p: Categorical, *others: Categorical) -> tuple[Tensor, *tuple[Categorical, ...]]:
    """Repeat distributions once for every value.

    Args:
        p: a distribution [V].
        others: further distributions [V].

    Returns:
        The values [V], then each distribution [V] times.
    """
    x = torch.arange(p.size, device=p.scores.device)
    return x, *(Categorical(distribution.scores.expand(p.size, p.size)) for distribution in (p, *others))
