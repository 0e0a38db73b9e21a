"""Frames judged code by code: the rule that reads a frame as so many single guesses.

Codes are accepted in order until one is refused, which is replaced from its own residual; then the frame is finished and later ones are
dropped. Codes that hang on the refused one are written anew; codes that do not (delay patterns) keep their own outcomes. Exact, but a
frame survives only if all its codes do: with prod_k alpha_k, where the token rule on whole frames accepts 1 - TV(P, Q) (`frame`). It is
here to be compared with, for laws whose frames cannot be drawn again and again, and for relaxing some books but not others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import LAW_EXACT, LOSSY, Token, over_judged, parents_law, ratio, settle, with_meters
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict


@dataclass(frozen=True)
class PerCode:
    """Judge every code by `rules[k]`, the last one for all books behind: any rule for single guesses (`Token`, or one of `lossy.Ratio`).

    Drift is the excess of the relaxed codes that were judged, summed up. Coarse books carry what is said, fine ones how it sounds:
    exact rules first and relaxed ones behind keep the words.
    """

    rules: Sequence[Any] = (Token(),)
    coupled, uses_q, trees = False, True, False

    def __post_init__(self):
        if not self.rules:
            raise ValueError("rules is empty: give one rule for each book, or one for all")

    @property
    def exactness(self) -> str:
        return LAW_EXACT if all(rule.exactness == LAW_EXACT for rule in self.rules) else LOSSY

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not draft.linear:
            raise ValueError("PerCode judges chains of frames, but this draft branches: leave tree out")
        last_root = torch.full_like(draft.start, draft.roots - 1)
        if draft.size == draft.roots:
            own = scored.p.at(last_root[:, None]).sample(noise.value(draft.start[:, None]))
            return settle(draft, last_root, own[:, 0])
        frames, valid = draft.guesses, draft.valid[:, draft.roots :]
        p, q = parents_law(draft, scored), None if draft.q is None else draft.q
        position = draft.position()[:, draft.roots - 1 : -1]
        own, theirs = p.codes(frames), None if q is None else q.codes(frames)
        books = frames.shape[-1]
        chance = torch.stack([self._rule(k).accept_prob(*_book(own, theirs, k), frames[..., k]) for k in range(books)], -1)
        passes = noise.accept(position, draft.start).branch(books).below(chance)  # [B, G, K]
        whole = passes.all(-1) & valid
        accepted = whole.long().cumprod(-1).sum(-1)
        verdict = settle(draft, last_root + accepted, self._last(draft, scored, noise, own, theirs, passes, accepted))
        judged = accepted + (valid.sum(-1) > accepted)
        drift = None
        if self.exactness == LOSSY:
            excess = (chance - ratio(own, theirs, frames)).clamp(min=0)
            seen = torch.cat([torch.ones_like(passes[..., :1]), passes[..., :-1]], -1).long().cumprod(-1)
            drift = over_judged(judged, (excess * seen).sum(-1))
        return with_meters(verdict, judged, drift, over_judged(judged, p.tv(q, frames)))

    def _rule(self, book: int) -> Any:
        return self.rules[min(book, len(self.rules) - 1)]

    def _last(self, draft: Draft, scored: Scored, noise: Noise, own: Categorical, theirs: Any, passes: Tensor, accepted: Tensor) -> Tensor:
        """The frame settled after `accepted` [B] guesses: the refused one mended, or a draw from p where none was left."""
        leaf = (draft.roots - 1 + accepted)[:, None]
        child, position = accepted.clamp(max=draft.size - draft.roots - 1), (draft.start + accepted)[:, None]
        rows = torch.arange(len(child), device=child.device)
        refused = draft.valid[:, draft.roots :].sum(-1) > accepted
        x, kept, p = draft.guesses[rows, child], passes[rows, child], scored.p.at(leaf)
        keys = noise.residual(position, draft.start)
        streams = keys.branch(2 * x.shape[-1])[:, 0]
        mended = []
        for k in range(x.shape[-1]):
            single = Categorical(own.scores[rows, child, k]), None if theirs is None else Categorical(theirs.scores[rows, child, k])
            mended.append(self._rule(k).replacement(*single, x[:, k]).sample(streams[:, x.shape[-1] + k]))
        x = torch.where(kept, x, torch.stack(mended, -1))
        mended = p.completed(x[:, None], kept[:, None], keys)
        return torch.where(refused[:, None], mended[:, 0], p.sample(noise.value(position))[:, 0])


def _book(own: Categorical, theirs: Categorical | None, k: int) -> tuple[Categorical, Categorical | None]:
    return Categorical(own.scores[..., k, :]), None if theirs is None else Categorical(theirs.scores[..., k, :])
