"""The rule that judges frames code by code, as if each code were a single draft token.

Codes are accepted in order up to the first rejected one, which is replaced from its own residual; then the frame is finished and later
frames are dropped. Codes that depend on the rejected one are written anew; codes that do not (delay patterns) keep their own outcomes.
Exact, but a frame is accepted only if all its codes are: with probability prod_k alpha_k, where the token rule on whole frames has
1 - TV(P, Q) (`core.distributions.frame`). It serves as a comparison, for distributions whose frames cannot be drawn repeatedly, and for
relaxing some codebooks but not others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY, commit, over_judged, parents_distribution, with_meters
from mmspec.core.rules.token import Token


@dataclass(frozen=True)
class PerCode:
    """Judge every code of a frame by a rule of its codebook.

    Drift is the sum of the rules' drift over all codes judged; in a frame written anew after a rejected code, those up to and including it.
    Coarse codebooks carry the words, fine ones the sound: exact rules first and relaxed ones after them keep the words.

    Args:
        rules: `rules[k]` judges codebook k, the last one all later codebooks: `Token` or rules of `lossy.base.Ratio`.

    Raises:
        ValueError: for no rules, rules that do not judge single draft tokens, or rules with a budget; when called, for trees and single
            ids.
    """

    rules: Sequence[Any] = (Token(),)
    coupled, uses_q, trees = False, True, False

    def __post_init__(self):
        if not self.rules:
            raise ValueError("rules is empty: give one rule for each book, or one for all")
        for rule in self.rules:
            name = type(rule).__name__
            if not (hasattr(rule, "accept_prob") and hasattr(rule, "replacement")):
                raise ValueError(
                    f"{name} does not judge single draft tokens by a chance: give PerCode rules such as token, ensemble or ssd"
                )
            if getattr(rule, "budget", None) is not None:
                raise ValueError(f"{name} has a budget of {rule.budget}, but books share none: leave it out, and relax fewer books")

    @property
    def exactness(self) -> str:
        """ "distribution-exact" if all rules are, else "lossy"."""
        return DISTRIBUTION_EXACT if all(rule.exactness == DISTRIBUTION_EXACT for rule in self.rules) else LOSSY

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not draft.linear:
            raise ValueError("PerCode judges chains of frames, but this draft branches: leave tree out")
        last_root = torch.full_like(draft.start, draft.roots - 1)
        if draft.size == draft.roots:
            own = scored.p.at(last_root[:, None]).sample(noise.value(draft.start[:, None]))
            return commit(draft, last_root, own[:, 0])
        x, valid, p = draft.draft_tokens, draft.valid[:, draft.roots :], parents_distribution(draft, scored)
        if not hasattr(p, "codes"):
            raise ValueError("PerCode judges frames of codes, but the steps here are single ids: take token")
        own, theirs = p.codes(x), None if draft.q is None else draft.q.codes(x)
        books = range(x.shape[-1])
        chance = torch.stack([self._rule(k).accept_prob(*_book(own, theirs, k), x[..., k]) for k in books], -1)
        position = draft.position()[:, draft.roots - 1 : -1]
        passes = noise.accept(position, draft.start).branch(len(books)).below(chance)  # [B, G, K]
        accepted = (passes.all(-1) & valid).long().cumprod(-1).sum(-1)
        verdict = commit(draft, last_root + accepted, self._last(draft, scored, noise, own, theirs, passes, accepted))
        judged = accepted + (valid.sum(-1) > accepted)
        drift = None
        if self.exactness == LOSSY:
            cost = torch.stack([self._cost(k, *_book(own, theirs, k), x[..., k], chance[..., k]) for k in books], -1)
            drift = over_judged(judged, torch.where(_tried(p, passes), cost, 0).sum(-1))
        return with_meters(verdict, judged, drift, over_judged(judged, p.tv(draft.q, x)))

    def _rule(self, book: int) -> Any:
        return self.rules[min(book, len(self.rules) - 1)]

    def _cost(self, book: int, p: Categorical, q: Categorical | None, x: Tensor, chance: Tensor) -> Tensor:
        rule = self._rule(book)
        return torch.zeros_like(chance) if rule.exactness == DISTRIBUTION_EXACT else rule.excess(p, q, x, chance)

    def _last(self, draft: Draft, scored: Scored, noise: Noise, own: Categorical, theirs: Any, passes: Tensor, accepted: Tensor) -> Tensor:
        """The frame committed after `accepted` [B] draft tokens: the rejected one repaired, or a draw from p where none was rejected."""
        child, position = accepted.clamp(max=draft.size - draft.roots - 1)[:, None], (draft.start + accepted)[:, None]
        rows, books = torch.arange(len(child), device=child.device)[:, None], passes.shape[-1]
        refused = (draft.valid[:, draft.roots :].sum(-1) > accepted)[:, None]
        x, kept, p = draft.draft_tokens[rows, child], passes[rows, child], scored.p.at((draft.roots - 1 + accepted)[:, None])
        residual = noise.residual(position, draft.start)
        streams = residual.branch(2 * books)  # the first half is for codes written anew
        mended = []
        for k in range(books):
            single = Categorical(own.scores[rows, child, k]), None if theirs is None else Categorical(theirs.scores[rows, child, k])
            mended.append(self._rule(k).replacement(*single, x[..., k]).sample(streams[..., books + k]))
        x = torch.where(kept, x, torch.stack(mended, -1))
        anew = kept.long().cumprod(-1).sum(-1) + 1 if p.autoregressive else torch.full_like(accepted, books)[:, None]
        return p.redrawn(x, torch.where(refused, anew, 0), residual.where(refused, noise.value(position)))[:, 0]


def _book(own: Categorical, theirs: Categorical | None, k: int) -> tuple[Categorical, Categorical | None]:
    return Categorical(own.scores[..., k, :]), None if theirs is None else Categorical(theirs.scores[..., k, :])


def _tried(p: Any, passes: Tensor) -> Tensor:
    """[B, G, K] bool: codes with an outcome of their own: all, or those up to the first rejected where later ones depend on it."""
    if not p.autoregressive:
        return torch.ones_like(passes)
    return torch.cat([torch.ones_like(passes[..., :1]), passes[..., :-1]], -1).long().cumprod(-1).bool()
