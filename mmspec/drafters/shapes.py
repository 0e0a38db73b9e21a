"""Shapes a model drafter grows: a chain, a tree of fixed branching, or the best nodes of a search.

A shape calls `score` on its growing draft and decides what hangs where. It returns the finished draft and, for each guess, the
column it has in the draft that was scored; guesses that were never run get a column past its end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.laws import Categorical, Law
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Draft, Room, Scored

Score = Callable[[Draft], Scored]
UNRUN = 1 << 30


class Shape(Protocol):
    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]: ...


# --- chains -----------------------------------------------------------------------------------------------------------

Draw = Callable[[Law, Keys], tuple[Tensor, Law | None]]
"""How a guess comes from the drafter's law: the value, and the law it was drawn from (None: a point mass on it)."""


def sampled(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """Drawn from the drafter's law, which is recorded: for rules that read q."""
    return law.sample(keys), law


def drawn(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """Drawn from the drafter's law without recording it: for coupled and match, which need no q."""
    return law.sample(keys), None


def best(law: Law, keys: Keys) -> tuple[Tensor, Law | None]:
    """The drafter's most likely value: a point mass."""
    return law.mode(), None


@dataclass(frozen=True)
class Chain:
    """As many guesses as the round asks for, one by one, up to where the drafter's best probability falls below `stop_below`."""

    draw: Draw = sampled
    stop_below: float = 0.0

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        allowed = room.guesses
        steps = torch.arange(room.length, device=draft.start.device)
        keys = noise.guess(draft.start[:, None] + steps, draft.start)
        for step in range(room.length):
            law = score(draft).p.last(1)
            value, q = self.draw(law, keys[:, step : step + 1])
            if self.stop_below > 0:
                unsure = law.prob(law.mode())[:, 0] < self.stop_below
                allowed = torch.where(unsure, allowed.clamp(max=step), allowed)
            draft = draft.extend_chain(value, allowed, q)
        return draft, _in_order(draft)


def _in_order(draft: Draft) -> Tensor:
    columns = torch.arange(draft.roots, draft.size, device=draft.start.device)
    return columns.expand(len(draft.start), -1)


# --- trees of fixed branching -----------------------------------------------------------------------------------------

Pick = Callable[[Categorical, Keys, int], tuple[Tensor, Tensor, bool]]
"""`count` siblings from each law [B, n, V]: values [B, n, count], which are real, and whether q is to be recorded."""


def without_replacement(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Gumbel top-k: for WithoutReplacement, and with the target's own noise for coupled."""
    values = keys.choose_distinct(law.scores, count)
    return values, law.scores.gather(-1, values) > -torch.inf, True


def with_replacement(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """Independent draws: for WithReplacement and KSeq."""
    values = keys.branch(count).choose(law.scores[..., None, :])
    return values, torch.ones_like(values, dtype=torch.bool), True


def top(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """The most likely values: for match, greedy, TopK and threshold rules."""
    scores, values = law.scores.topk(count, -1)
    return values, scores > -torch.inf, False


def top_and_one(law: Categorical, keys: Keys, count: int) -> tuple[Tensor, Tensor, bool]:
    """The most likely values and one drawn from the rest: for Hybrid."""
    if count == 1:
        return without_replacement(law, keys, 1)
    values = law.scores.topk(count - 1, -1).values, law.scores.topk(count - 1, -1).indices
    rest = law.scores.scatter(-1, values[1], -torch.inf)
    last = keys.choose(rest)[..., None]
    real = torch.cat([values[0] > -torch.inf, rest.gather(-1, last) > -torch.inf], -1)
    return torch.cat([values[1], last], -1), real, True


@dataclass(frozen=True)
class Branching:
    """`branching[d]` children under every node of level d, chosen by `pick`. The round's length caps the levels."""

    branching: tuple[int, ...]
    pick: Pick = without_replacement

    def __post_init__(self):
        if not self.branching or min(self.branching) < 1:
            raise ValueError(f"branching is {self.branching}: give at least one level, each with 1 or more children")

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        first, levels = draft.roots - 1, self.branching[: room.length]
        for level, count in enumerate(levels):
            columns = torch.arange(first, draft.size, device=draft.start.device)
            law = score(draft).p.last(len(columns))
            position = (draft.start + level)[:, None].expand(-1, len(columns))
            values, real, keep_q = self.pick(law, noise.guess(position, draft.start, columns), min(count, law.scores.shape[-1]))
            fits = real & draft.valid[:, first:, None] & (room.guesses > level)[:, None, None]
            parents = torch.where(fits, columns[None, :, None], PAD)
            first, width = draft.size, values.shape[-1]
            q = Categorical(law.scores.repeat_interleave(width, 1)) if keep_q else None
            draft = draft.extend(values.flatten(1), parents.flatten(1), q, width=max(draft.width, width), levels=level + 1)
        return draft, _in_order(draft)


@dataclass(frozen=True)
class Comb:
    """A chain whose every node has `width - 1` siblings that are not drafted on: a tree at the drafter's cost of a chain.

    A refused guess is often replaced by the drafter's next choice, and a sibling that is taken still earns the value after it.
    """

    width: int = 3
    pick: Pick = without_replacement

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}: a comb needs at least 1 guess a level (1 is a chain)")

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        spine, beside = draft, []
        steps = torch.arange(room.length, device=draft.start.device)
        keys = noise.guess(draft.start[:, None] + steps, draft.start)
        for level in range(room.length):
            law = score(spine).p.last(1)
            values, real, keep_q = self.pick(law, keys[:, level : level + 1], min(self.width, law.scores.shape[-1]))
            parent = spine.size - 1
            spine = spine.extend_chain(values[:, :, 0], room.guesses, law if keep_q else None)
            beside.append((values[:, 0, 1:], torch.where(real[:, 0, 1:] & spine.valid[:, -1:], parent, PAD), law))
        if not beside:
            return spine, _in_order(spine)
        values, parents = (torch.cat([level[i] for level in beside], 1) for i in (0, 1))
        q = None if spine.q is None else Categorical(torch.cat([level[2].scores.expand(-1, level[0].shape[1], -1) for level in beside], 1))
        final = spine.extend(values, parents, q, width=self.width, levels=room.length)
        return final, torch.cat([_in_order(spine), torch.full_like(values, UNRUN)], 1)


# --- the best nodes of a search ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpandRerank:
    """EAGLE-2's tree (Li et al. 2024): each level expands the `width` likeliest paths, then the best `nodes` of all are kept.

    Every row gets its own tree of at most `depth` levels, for `depth` drafter calls.
    """

    width: int = 4
    depth: int = 4
    nodes: int = 16

    def __post_init__(self):
        if min(self.width, self.depth, self.nodes) < 1:
            raise ValueError(f"width, depth and nodes are {self.width}, {self.depth}, {self.nodes}: each must be at least 1")

    def grow(self, score: Score, draft: Draft, room: Room, noise: Noise) -> tuple[Draft, Tensor]:
        rows, roots = len(draft.start), draft.roots
        levels = min(self.depth, room.length)
        device = draft.start.device
        values: list[Tensor] = []  # per level, [B, n] candidates: their token, path log-probability, parent candidate and parent column
        scores: list[Tensor] = []
        above: list[Tensor] = []
        columns: list[Tensor] = []  # column in the scored draft, UNRUN if never expanded
        scored_draft, total = draft, 0
        path = torch.zeros(rows, 1, device=device)
        candidate = torch.full((rows, 1), -1, dtype=torch.long, device=device)
        for level in range(levels):
            law = score(scored_draft).p.last(path.shape[1])
            width = min(self.width, law.scores.shape[-1])
            log_q, token = law.log_probs().topk(width, -1)
            log_q = torch.where((room.guesses > level)[:, None, None] & draft.valid[:, roots - 1, None, None], log_q, -torch.inf)
            value = (path[..., None] + log_q).flatten(1)
            values.append(token.flatten(1))
            scores.append(value)
            above.append(candidate[..., None].expand(-1, -1, width).flatten(1))
            columns.append(torch.full_like(values[-1], UNRUN))
            if level + 1 == levels:
                break
            path, chosen = value.topk(min(self.width, value.shape[1]), -1)
            candidate = chosen + total
            total += value.shape[1]
            below = torch.arange(scored_draft.size, scored_draft.size + chosen.shape[1], device=device).expand(rows, -1)
            parent_columns = _column_of(above[-1].gather(1, chosen), columns, roots)
            columns[-1] = columns[-1].scatter(1, chosen, below)
            parents = torch.where(path > -torch.inf, parent_columns, PAD)
            scored_draft = scored_draft.extend(values[-1].gather(1, chosen), parents, width=self.width, levels=level + 1)
        return self._rerank(draft, torch.cat(values, 1), torch.cat(scores, 1), torch.cat(above, 1), torch.cat(columns, 1), levels)

    def _rerank(self, draft: Draft, values: Tensor, scores: Tensor, above: Tensor, columns: Tensor, levels: int) -> tuple[Draft, Tensor]:
        """Keep the best candidates: a stable sort sends ties to the shallower, so parents are kept before their children."""
        count = min(self.nodes, values.shape[1])
        kept = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(-1).values
        new_column = torch.full_like(values, PAD).scatter_(
            1, kept, torch.arange(count, device=values.device).expand(len(kept), -1) + draft.roots
        )
        parent = above.gather(1, kept)
        parents = torch.where(parent >= 0, new_column.gather(1, parent.clamp_min(0)), draft.roots - 1)
        parents = torch.where(scores.gather(1, kept) > -torch.inf, parents, PAD)
        final = draft.extend(values.gather(1, kept), parents, width=self.width, levels=levels)
        return final, columns.gather(1, kept)


def _column_of(candidates: Tensor, columns: list[Tensor], roots: int) -> Tensor:
    """Scored columns of candidates [B, n]; -1 stands for the last root."""
    known = torch.cat(columns, 1)
    return torch.where(candidates >= 0, known.gather(1, candidates.clamp_min(0)), roots - 1)
