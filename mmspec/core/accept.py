"""Accept rules: which guesses survive, and what is settled after them.

A rule is a pure callable (draft, scored, noise) -> Verdict with four facts: `exactness` (token-exact, law-exact or lossy),
`coupled` (guesses must be drawn with the target's own noise), `uses_q` (it reads the law guesses were drawn from) and
`output_law(p, q)`, the law of one settled value in closed form, which the tests hold it to.

Two drivers serve them all. `chain` judges all positions of one chain at once from acceptance probabilities; `deepest`
takes pass-or-fail judgements on any tree and keeps the longest path that passes. Both end in `settle`.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.judge import Judge
from mmspec.core.laws import Categorical
from mmspec.core.noise import Keys, Noise
from mmspec.core.paths import longest, with_roots
from mmspec.core.records import PAD, Draft, Scored, Verdict

TOKEN_EXACT, LAW_EXACT, GROUP_EXACT, LOSSY = "token-exact", "law-exact", "group-exact", "lossy"
UNMETERED = f"{LOSSY} (unmetered)"  # it departs from the target's law by an amount that nobody has measured


class Accept(Judge, Protocol):
    """A rule whose values have a law each."""

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        """The law of one settled value when a single guess drawn from `q` is judged by `p`, both [V]."""
        ...


class SingleDraft(Protocol):
    """One guess at one position: accepted with some probability, replaced otherwise. What `chain` and `emitted` run on."""

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        """Probability of accepting guess `x` drawn from `q` (None: a point mass on x)."""
        ...

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        """The law to draw from when `x` is rejected."""
        ...


def settle(draft: Draft, leaf: Tensor, extra: Tensor) -> Verdict:
    """The verdict that keeps the path ending in column `leaf` [B] and settles `extra` [B, *value] after it.

    `leaf` must be the last root or a guess. Rows whose root is PAD are finished: they keep nothing and settle nothing.
    """
    n, roots, rows = draft.size, draft.roots, torch.arange(len(leaf), device=leaf.device)
    columns = torch.arange(n, device=leaf.device)
    alive = draft.parents[:, roots - 1] != PAD
    if draft.linear:
        keep = torch.where((columns <= leaf[:, None]) & draft.valid & alive[:, None], columns, -1)
        guess = keep[:, roots:]
    else:
        path = draft.ancestors()[rows, leaf] & draft.valid & alive[:, None]
        order = torch.where(path, columns, n).sort(-1).values
        keep = torch.where(order < n, order, -1)
        guess = keep[:, roots:]  # roots are never skipped on a live row: the path runs through all of them
    accepted = (guess >= 0).sum(-1)
    values = extra.new_zeros(len(leaf), n - roots + 1, *extra.shape[1:])
    if n > roots:
        index = guess.clamp_min(0)
        values[:, :-1] = draft.nodes[rows[:, None], index]
    values[rows, accepted] = extra
    count = torch.where(alive, accepted + 1, 0)
    frontier = Draft.root(extra, draft.start + count, alive, draft.drift)
    return Verdict(keep, values, count, frontier, accepted, accepted)


def with_meters(verdict: Verdict, judged: Tensor, drift: Tensor | None, expected: Tensor | None) -> Verdict:
    """`verdict` with its counts filled in; `drift` [B] is added to the running total the frontier carries."""
    if drift is None:
        return replace(verdict, judged=judged, expected=expected)
    before = verdict.frontier.drift
    frontier = replace(verdict.frontier, drift=drift if before is None else before + drift)
    return replace(verdict, judged=judged, expected=expected, drift=drift, frontier=frontier)


# --- driver 1: pass or fail -------------------------------------------------------------------------------------------


def deepest(draft: Draft, passes: Tensor, value: Tensor) -> Verdict:
    """Keep the longest path whose guesses all pass [B, N]; settle `value` [B, N, *value] at its end. Ties go to the earlier column."""
    leaf, failed = longest(draft, passes)
    verdict = settle(draft, leaf, value[torch.arange(len(leaf), device=leaf.device), leaf])
    return replace(verdict, judged=verdict.accepted + failed)


def follow(draft: Draft, p: Any, keys: Keys | None) -> Verdict:
    """Keep guesses while they are what `p` draws by `keys` [B, N] after their parents, and settle what it draws at the end; its modes
    without keys. Laws that check a value cheaper than they draw one, such as those of frames, draw at the end only.
    """
    if draft.size == draft.roots:
        leaf, failed = _last_root(draft), torch.zeros_like(draft.start)
    else:
        parents, x = draft.parents[:, draft.roots :].clamp_min(0), draft.guesses
        passes = p.tops(parents, x) if keys is None else p.draws(keys, parents, x)
        leaf, failed = longest(draft, with_roots(draft, passes))
    last = p.at(leaf[:, None])
    own = last.mode() if keys is None else last.sample(keys[torch.arange(len(leaf), device=leaf.device)[:, None], leaf[:, None]])
    verdict = settle(draft, leaf, own[:, 0])
    return replace(verdict, judged=verdict.accepted + failed)


@dataclass(frozen=True)
class Greedy:
    """Keep guesses while each is the target's most likely value: the tokens of greedy decoding, whatever the draft."""

    exactness = TOKEN_EXACT
    coupled = False
    uses_q = False
    trees = True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return follow(draft, scored.p, None)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return Categorical.point(p.mode(), p.scores.shape[-1], p.scores.dtype)


@dataclass(frozen=True)
class Match:
    """Draw the target's value after every node and keep guesses while they equal it: exact for any draft, and best for deterministic ones.

    The draw is keyed by seed and output position alone, so the tokens are those of plain sampling with that seed, even when sampling.
    """

    exactness = TOKEN_EXACT
    coupled = False
    uses_q = False
    trees = True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return follow(draft, scored.p, noise.value(draft.position()))

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return p


@dataclass(frozen=True)
class Coupled(Match):
    """`Match` with a drafter that draws its guesses by the same Gumbel noise: accepted at rate >= (1 - TV) / (1 + TV).

    The bound is that of shared Gumbel noise (Daliri, Musco and Suresh 2025). The output does not depend on the drafter, the
    draft length, the tree or the batch at all: it is what plain sampling with that seed gives.
    """

    coupled = True


# --- driver 2: acceptance probabilities on a chain --------------------------------------------------------------------


def chain(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise, exact: Tensor | None = None) -> Verdict:
    """Judge every position of one chain at once; at the first rejection draw from the rule's replacement, else from p.

    Guesses marked `exact` [B, G] are judged, and replaced, by the token rule instead.
    """
    if not draft.linear:
        raise ValueError(
            f"{type(rule).__name__} judges chains, but this draft branches: use a tree rule such as match, coupled or without-replacement"
        )
    if draft.size == draft.roots:
        return settle(draft, _last_root(draft), _bonus(draft, scored, noise))
    p, x, valid = parents_law(draft, scored), draft.guesses, draft.valid[:, draft.roots :]
    position = draft.position()[:, draft.roots - 1 : -1]
    chance = rule.accept_prob(p, draft.q, x)
    if exact is not None:
        chance = torch.where(exact, Token().accept_prob(p, draft.q, x), chance)
    passes = noise.accept(position, draft.start).below(chance) & valid
    accepted = passes.long().cumprod(-1).sum(-1)
    verdict = settle(draft, draft.roots - 1 + accepted, _chain_extra(rule, draft, scored, noise, accepted, exact))
    judged = accepted + (valid.sum(-1) > accepted)
    return with_meters(verdict, judged, None, over_judged(judged, p.tv(draft.q, x)))


def _chain_extra(rule: SingleDraft, draft: Draft, scored: Scored, noise: Noise, accepted: Tensor, exact: Tensor | None = None) -> Tensor:
    """The value settled after `accepted` [B] guesses: a replacement where a guess was rejected, a draw from p where none was left."""
    leaf = draft.roots - 1 + accepted
    child = accepted.clamp(max=draft.size - draft.roots - 1)[:, None]
    rejected = (draft.valid[:, draft.roots :].sum(-1) > accepted)[:, None]
    p = scored.p.at(leaf[:, None])
    q = None if draft.q is None else draft.q.at(child)
    position, x = (draft.start + accepted)[:, None], _columns(draft.guesses, child)
    left = rule.replacement(p, q, x)
    if exact is not None:
        left = Token().replacement(p, q, x).where(exact.gather(1, child), left)
    keys = noise.residual(position, draft.start).where(rejected, noise.value(position))
    return left.where(rejected, p).sample(keys)[:, 0]


def _columns(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, G, *value] at columns `index` [B, M]."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def _last_root(draft: Draft) -> Tensor:
    return torch.full((len(draft.start),), draft.roots - 1, device=draft.start.device)


def _bonus(draft: Draft, scored: Scored, noise: Noise) -> Tensor:
    last = _last_root(draft)[:, None]
    return scored.p.at(last).sample(noise.value(draft.start[:, None]))[:, 0]


def parents_law(draft: Draft, scored: Scored) -> Any:
    """The laws that judge each guess of a chain, [B, G]."""
    columns = torch.arange(draft.roots - 1, draft.size - 1, device=draft.start.device)
    return scored.p.at(columns.expand(len(draft.start), -1))


def over_judged(judged: Tensor, amounts: Tensor) -> Tensor:
    """Sum `amounts` [B, G] over the judged positions of a chain."""
    reached = torch.arange(amounts.shape[1], device=amounts.device) < judged[:, None]
    return torch.where(reached, amounts, 0).sum(-1)


@dataclass(frozen=True)
class Token:
    """Token rejection sampling (Leviathan et al. 2023; Chen et al. 2023): accept with min(1, p/q), else draw from norm((p - q)+)."""

    exactness = LAW_EXACT
    coupled = False
    uses_q = True
    trees = False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return chain(self, draft, scored, noise)

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return ratio(p, q, x).clamp(max=1)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.residual(q, x)

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return p


def ratio(p: Any, q: Any, x: Tensor) -> Tensor:
    """p(x) / q(x); q None is a point mass on x."""
    return p.log_ratio(q, x).exp()


@dataclass(frozen=True)
class Block:
    """Block verification (Sun et al. 2024): judges the chain as a whole and is never worse than the token rule.

    It asks laws for the `mass` of (weight p - q)+, which `Categorical` sums up and `Gaussian` has in closed form where scales are equal
    (Soen et al. 2026).
    """

    exactness = LAW_EXACT
    coupled = False
    uses_q = True
    trees = False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if draft.q is None or draft.size == draft.roots:  # a point mass leaves nothing to judge jointly
            return chain(Token(), draft, scored, noise)
        if not draft.linear:
            raise ValueError("Block judges chains, but this draft branches: use a tree rule such as match, coupled or without-replacement")
        p, q, x, valid = parents_law(draft, scored), draft.q, draft.guesses, draft.valid[:, draft.roots :]
        reach = self.reach(p, q, x)  # [B, G + 1]: r_0 .. r_g
        position = draft.position()[:, draft.roots - 1 : -1]
        keep = self.keep_prob(p, q, x, reach, valid)  # [B, G]: h_1 .. h_g
        hit = noise.accept(position, draft.start).below(keep) & valid
        steps = torch.arange(1, hit.shape[1] + 1, device=hit.device)
        accepted = torch.where(hit, steps, 0).amax(-1)
        weight = reach.gather(1, accepted[:, None])
        verdict = settle(draft, draft.roots - 1 + accepted, _chain_extra(_Weighted(weight), draft, scored, noise, accepted))
        judged = accepted + (valid.sum(-1) > accepted)
        return with_meters(verdict, judged, None, over_judged(judged, p.tv(q, x)))

    @staticmethod
    def reach(p: Any, q: Any, x: Tensor) -> Tensor:
        """r_i = min(1, r_{i-1} p_i(x_i) / q_i(x_i)) with r_0 = 1, [B, G + 1]."""
        ratios = ratio(p, q, x)
        ratios = ratios.clamp(max=torch.finfo(ratios.dtype).max)  # 0 times infinity is no number
        reach = [torch.ones_like(ratios[:, 0])]
        for step in range(x.shape[1]):
            reach.append((reach[-1] * ratios[:, step]).clamp(max=1))
        return torch.stack(reach, 1)

    @staticmethod
    def keep_prob(p: Any, q: Any, x: Tensor, reach: Tensor, valid: Tensor) -> Tensor:
        """h_i, the probability of stopping at i or later given that nothing later stopped, [B, G].

        The last guess of a row has h = r: nothing of the row's block lies behind it.
        """
        mass = p.mass(q, x, reach[:, :-1])  # m_0 .. m_{g-1}
        spare = mass[:, 1:] + 1 - reach[:, 1:-1]
        inner = torch.where(spare > 0, mass[:, 1:] / spare, 1)
        more = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)  # is there a guess behind this one?
        padded = torch.cat([inner, inner.new_zeros(len(inner), 1)], 1)
        return torch.where(more, padded, reach[:, 1:])

    def output_law(self, p: Categorical, q: Categorical) -> Categorical:
        return p


@dataclass(frozen=True)
class _Weighted:
    """The replacement of block verification, norm((weight * p - q)+)."""

    weight: Tensor  # [B, 1]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        raise TypeError("block verification judges whole chains, not single guesses")

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.residual(q, x, self.weight)


def emitted(rule: SingleDraft, p: Categorical, q: Categorical) -> Categorical:
    """The law of one settled value under a single-draft rule: sum over x of q(x) (a(x) on x + (1 - a(x)) r_x). `p`, `q`: [V]."""
    size = p.scores.shape[-1]
    x = torch.arange(size, device=p.scores.device)
    many_p, many_q = (Categorical(law.scores.expand(size, size)) for law in (p, q))
    weight, accept = q.probs(), rule.accept_prob(many_p, many_q, x).nan_to_num()  # 0 / 0 where neither law has mass
    replaced = rule.replacement(many_p, many_q, x).probs()
    return Categorical.of(weight * accept + (weight * (1 - accept)) @ replaced)
