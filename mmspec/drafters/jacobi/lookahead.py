"""Lookahead decoding (Fu et al. 2024): a Jacobi window finds n-grams in the same forward that verifies those found before.

The window has `window` columns of `ngram` - 1 values. Its row 0 is a chain on the pending token, and in every column the later rows are a
chain on the column's value of row 0; n-grams from the pool are chains on the pending token too. All of it is one tree, so no special mask
is needed, and every value of the window is a draft token. The target's distribution after a column's last value gives one more value: the
column becomes an n-gram, which goes to the pool, and its first value is dropped.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.retrieval.host import prompt_ids, unread_by
from mmspec.drafters.shapes import Draw, most_likely

_NONE = -1  # stands in the pool where there is no value


@dataclass(frozen=True)
class Lookahead:
    """Lookahead decoding (Fu et al. 2024): n-grams that begin with the last committed value, and a window that finds new ones.

    A round has (`window` + `draft_tokens`) * (`ngram` - 1) draft tokens. The paper uses n-grams of 5, a window of 7 and 7 n-grams for 7B
    models on large GPUs. The draft length of a round limits every path: the whole window runs from a draft length of `window` + `ngram` -
    2 on. Draft tokens are point masses, for rules that judge trees.

    Args:
        ngram: values of an n-gram, at least 2.
        window: columns of the window.
        draft_tokens: n-grams verified a round, latest first.
        pool: n-grams kept per row.
        seeded: fill the pool with the prompt's n-grams.
        draw: `most_likely`, or `drawn` for the coupled and match rules.

    Raises:
        ValueError: for sizes out of range.
    """

    ngram: int = 4
    window: int = 5
    draft_tokens: int = 4
    pool: int = 1024
    seeded: bool = True
    draw: Draw = most_likely

    def __post_init__(self):
        if self.ngram < 2 or min(self.window, self.draft_tokens) < 1:
            raise ValueError(
                f"ngram, window and draft tokens are {self.ngram}, {self.window} and {self.draft_tokens}: give 2 or more values, "
                "and at least 1 column and 1 draft token"
            )
        if self.pool < max(self.window, self.draft_tokens):
            raise ValueError(
                f"pool is {self.pool}: it must hold what one round finds and tries, {max(self.window, self.draft_tokens)} n-grams"
            )

    @property
    def depth(self) -> int:
        """Longest path of a round."""
        return self.window + self.ngram - 2

    def begin(self, prompt: Any, session: TargetSession) -> "LookaheadSession":
        """Open the drafting session of one generation."""
        return LookaheadSession(self, prompt_ids(prompt, unread_by(session)))


@lru_cache(maxsize=64)
def round_template(plan: Lookahead, length: int) -> tuple[list[int], list[int], list[int]]:
    """Return every draft token of a round of `length`: its place, its parent (-1: the pending token) and its depth.

    Places count the pool's n-grams first, then the window row by row. Draft tokens keep that order, so the last row's come last.
    """
    chains = [(place * (plan.ngram - 1) + step, step) for place in range(plan.draft_tokens) for step in range(min(plan.ngram - 1, length))]
    places, depths = [place for place, _ in chains], [step + 1 for _, step in chains]
    parents = [len_before - 1 if step else -1 for len_before, (_, step) in enumerate(chains)]
    base, node = plan.draft_tokens * (plan.ngram - 1), {}
    for row in range(plan.ngram - 1):
        for column in range(min(plan.window, length - row)):
            above = (row - 1, column) if row else (0, column - 1)
            node[row, column] = len(places)
            places.append(base + row * plan.window + column)
            parents.append(node.get(above, -1))
            depths.append(column + row + 1)
    return places, parents, depths


class LookaheadSession:
    """Window and pool of one generation. The target's distributions after the window are drawn from in the next round."""

    def __init__(self, plan: Lookahead, texts: list[list[int]] | None):
        self.plan, self.texts = plan, texts
        self.window: Tensor  # [B, ngram - 1, W], from the first round on
        self.pool: Tensor  # [B, pool, ngram], latest first
        self.opened = False
        self.tables: dict[int, Tensor] = {}  # templates on the device
        self.said: tuple[Categorical, Tensor, Tensor] | None = (
            None  # distributions after the last row [B, w, V], who has one [B, w], start [B]
        )
        self.moved: Tensor | None = None  # [B] values committed since the window was drawn

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        self._open(pending)
        self._advance(pending.start, noise)
        if budget.length == 0:
            return pending
        places, parents, depths = self._table(budget.length, pending.start.device)
        found = self._found(pending.nodes[:, -1])
        values = torch.cat([found[:, :, 1:].flatten(1), self.window.flatten(1)], 1)[:, places]
        fits = (values != _NONE) & (depths <= budget.draft_tokens[:, None]) & pending.valid[:, -1:]
        parents = torch.where(fits, parents + pending.roots, PAD)
        width = max(2, self.plan.draft_tokens + 1)
        return pending.extend(values.clamp_min(0), parents, width=width, levels=min(budget.length, max(self.plan.depth, 1)))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        self.moved = verdict.count if self.moved is None else self.moved + verdict.count
        length = draft.height if draft.size > draft.roots else 0
        columns = min(self.plan.window, length - self.plan.ngram + 2)
        if columns > 0:
            self.said = (scored.p.last(columns), draft.valid[:, -columns:], draft.start)

    def _open(self, pending: Draft) -> None:
        """Initialise window and pool from the prompt; without ids in the prompt, from the pending token."""
        if self.opened:
            return
        self.opened = True
        plan, device = self.plan, pending.start.device
        rows, size = plan.ngram - 1, (plan.ngram - 1) * plan.window
        if self.texts is None:
            self.window = pending.nodes[:, -1:, None].expand(-1, rows, plan.window).clone()
            self.pool = torch.full((len(pending.start), plan.pool, plan.ngram), _NONE, device=device)
            return
        if len(self.texts) != len(pending.start):
            raise ValueError(
                f"the prompt holds {len(self.texts)} texts, but the target opened {len(pending.start)} rows: "
                "give the drafter the target's own prompt"
            )
        # values from all over the prompt: n-grams are found from any beginning, and different ones find more
        spread = [[(text or [0])[place * len(text) // size] for place in range(size)] for text in self.texts]
        self.window = torch.tensor(spread, device=device).view(-1, rows, plan.window)
        self.pool = torch.tensor([self._seeds(text) for text in self.texts], device=device)

    def _seeds(self, text: list[int]) -> list[list[int]]:
        """The distinct n-grams of `text`, latest first."""
        plan = self.plan
        starts = range(len(text) - plan.ngram, -1, -1) if plan.seeded else ()
        found = list(dict.fromkeys(tuple(text[start : start + plan.ngram]) for start in starts))[: plan.pool]
        return [list(gram) for gram in found] + [[_NONE] * plan.ngram] * (plan.pool - len(found))

    def _advance(self, start: Tensor, noise: Noise) -> None:
        """Add one value to every column that ran whole; columns that are now in the past move to the window's end."""
        plan, window = self.plan, self.window
        if self.said is not None:
            distribution, ran, before = self.said
            steps = torch.arange(distribution.scores.shape[1], device=start.device) + plan.ngram - 1
            value, _ = plan.draw(distribution, noise.draft_token(before[:, None] + steps, start))
            grams = torch.cat([window[:, :, : len(steps)], value[:, None]], 1)  # [B, ngram, w]
            self._remember(torch.where(ran[:, None], grams, _NONE).transpose(1, 2))
            moved = torch.where(ran[:, None], grams[:, 1:], grams[:, :-1])
            window = torch.cat([moved, window[:, :, len(steps) :]], 2)
        if self.moved is not None:
            # dropping a column's first value has moved it on by one; the rest is made up for by taking columns further right
            on = self.moved - (0 if self.said is None else 1)
            index = (torch.arange(plan.window, device=start.device) + on.clamp_min(0)[:, None]) % plan.window
            window = window.gather(2, index[:, None].expand_as(window))
        self.window, self.said, self.moved = window, None, None

    def _remember(self, grams: Tensor) -> None:
        """Put `grams` [B, w, ngram] first in the pool and drop older copies."""
        same = (grams[:, :, None] == grams[:, None]).all(-1)
        twice = same.tril(-1).any(-1, keepdim=True)
        grams = torch.where(twice, _NONE, grams)
        known = (self.pool[:, :, None] == grams[:, None]).all(-1).any(-1, keepdim=True)
        pool = torch.where(known, _NONE, self.pool)
        self.pool = torch.cat([grams, pool[:, : pool.shape[1] - grams.shape[1]]], 1)

    def _found(self, key: Tensor) -> Tensor:
        """Return the latest n-grams that begin with `key` [B]: [B, draft tokens, ngram], _NONE where there are fewer."""
        size = self.pool.shape[1]
        order = torch.where(self.pool[:, :, 0] == key[:, None], torch.arange(size, device=key.device), size)
        first = order.topk(self.plan.draft_tokens, -1, largest=False).values
        grams = self.pool.gather(1, first.clamp(max=size - 1)[..., None].expand(-1, -1, self.plan.ngram))
        return torch.where((first < size)[..., None], grams, _NONE)

    def _table(self, length: int, device: torch.device) -> Tensor:
        if length not in self.tables:
            self.tables[length] = torch.tensor(round_template(self.plan, min(length, self.plan.depth)), device=device)
        return self.tables[length]
