"""Beam search in the decoding loop: K paths a row as a tree that shares its prompt's cache, every level checked against the target's own
best.

A row's pending draft is a forest: all nodes on the way to its K beams are roots, the last of which are the beams themselves, committed but
not run yet. The tree stays a draft under way for the whole search and only the prompt is ever committed, so nothing is copied K times and
no cache is re-ordered. A drafter appends whole levels of draft tokens to the beams; one forward scores them all; then `BeamRule` goes down
level by level. It ranks the children of the target's own beams only, so what it commits is the result of beam search, whatever was drafted.
It continues while all of a level's winners are among the draft tokens, and the winners where it stops are the next pending beams: a round
commits one level more than the draft tokens had right (AtSpeed's strict verification, Lin et al. 2025).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmspec.core.beams.roots import packed_roots, widened_roots
from mmspec.core.beams.tokens_and_rest import ProcessedLogProbs, TokensAndRest
from mmspec.core.beams.trie import NOWHERE, Children, Trie
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowRecord
from mmspec.core.rules.base import TOKEN_EXACT


@dataclass(frozen=True, slots=True)
class DrawnChildren:
    """How one level of draft tokens was drawn, for rules that read it."""

    log_q: Tensor  # [B, M, C] over the children of the M possible parents; a row's M * C entries are one distribution
    index: Tensor  # [B, N] which of a row's M * C children each draft token is, in the order they were drawn; PAD where there is none


@dataclass(frozen=True, slots=True)
class Forest(RowRecord):
    """What a beam's draft carries besides its nodes, as `Draft.aux`. Path scores are in `Draft.score`: the target's for roots."""

    by_row = ("state",)

    state: Tensor  # [B, N] the trie node of every column; NOWHERE for PAD
    beams: int  # how many of the last roots are the pending token
    level: int  # the fewest levels that any row still under way has committed
    layers: tuple[int, ...] = ()  # how many draft tokens there are on each level
    drawn: tuple[DrawnChildren, ...] = ()

    def join_rows(self, other: "Forest") -> "Forest":
        """Return the rows of both, which may have committed different numbers of levels."""
        return replace(self, state=torch.cat([self.state, other.state]), level=min(self.level, other.level))

    def packed(self, pending: Draft) -> Draft:
        """Drop columns that no row uses; see `core.rows.changes.ManyRoots`."""
        return packed_roots(pending)

    def widened(self, pending: Draft, roots: int) -> Draft:
        """Put columns of PAD before the roots; see `core.rows.changes.ManyRoots`."""
        return widened_roots(pending, roots)

    def moved(self, order: Tensor, level: int) -> "Forest":
        """Return the columns `order` [B, M], of rows that have committed `level` levels at least."""
        return replace(self, state=self.state.gather(1, order), level=level)

    def behind(self, by: int) -> "Forest":
        """Return these columns behind `by` of PAD."""
        return replace(self, state=torch.nn.functional.pad(self.state, (by, 0), value=NOWHERE))


def path_scores(draft: Draft) -> Tensor:
    """[B, N] log-probability of the path to each column of a beam's draft."""
    assert draft.score is not None, "the draft is of no beam search"
    return draft.score


@dataclass(frozen=True, slots=True)
class BeamLevel:
    """The children of a row's beams on one level, concatenated: S = M * C."""

    children: Children  # [B, M, C]
    score: Tensor  # [B, S] the target's log-probability of the whole path, -inf where there is no child
    committed: Tensor  # [B, 1] how many levels a row has committed when this one is ranked
    start: Tensor  # [B] how many it had when the round began
    log_q: Tensor | None = None  # [B, S] log-probability of these children under the draft's distribution; -inf for impossible ones
    draft_tokens: Tensor | None = None  # [B, N] which child each draft token is, as drawn; -1 if none, PAD for no draft token

    @property
    def state(self) -> Tensor:
        """[B, S] the children's trie nodes."""
        return self.children.state.flatten(1)


@dataclass(frozen=True, slots=True)
class Winners:
    """The K best of one level, for each row."""

    parent: Tensor  # [B, K] which of the beams before
    token: Tensor  # [B, K]
    state: Tensor  # [B, K] NOWHERE where there are fewer
    score: Tensor  # [B, K] the target's log-probability of the whole path

    def where(self, rows: Tensor, other: "Winners") -> "Winners":
        """These in the rows [B] that are true, else `other`."""
        names = ("parent", "token", "state", "score")
        return Winners(*(torch.where(rows[:, None], getattr(self, name), getattr(other, name)) for name in names))


@dataclass(frozen=True)
class BeamRule(RowRecord, ABC):
    """Base of the rules that choose a level's winners: `k` beams over the paths of `trie`."""

    by_row = ("trie", "most")

    trie: Trie
    k: int
    most: Tensor | None = field(default=None, kw_only=True)  # [B] how many of the k each row keeps; None for all

    uses_q = False
    coupled = False
    trees = True
    exactness = TOKEN_EXACT

    @abstractmethod
    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        """The level's winners, as indices into its children [B, K]; -1 where there are no more."""

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        forest: Forest = draft.aux
        first, width = draft.roots - forest.beams, forest.beams  # where the beams may be among the columns
        column = torch.arange(first, first + width, device=draft.nodes.device).expand(len(draft.start), -1)
        state, score = forest.state[:, first : first + width], path_scores(draft)[:, first : first + width]
        running, accepted = draft.valid.any(1), torch.zeros_like(draft.start)
        kept: list[tuple[Winners, Tensor]] = []
        last: Winners | None = None
        for depth, drafted in enumerate((*forest.layers, 0)):
            level = self._level(draft, scored, depth, column, state, score, first, width)
            winners = _winners(level, self._kept(self.pick(level, noise)))
            last = winners if last is None else winners.where(running, last)
            if not drafted:
                break
            first, width = first + width, drafted
            column = _among(winners.state, forest.state[:, first : first + width], first)
            whole = ((column >= 0) | (winners.state == NOWHERE)).all(1)
            running = running & whole & (draft.start + depth + 1 < self.trie.levels)
            column = torch.where(running[:, None], column, -1)
            accepted = accepted + running
            kept.append((winners, column))
            state, score = torch.where(column >= 0, winners.state, NOWHERE), winners.score
        assert last is not None
        return _verdict(draft, self.k, kept, last, accepted)

    def _kept(self, index: Tensor) -> Tensor:
        """The winners [B, K] that rows keep; -1 for the others."""
        if self.most is None:
            return index
        return torch.where(torch.arange(self.k, device=index.device) < self.most[:, None], index, -1)

    def _level(
        self, draft: Draft, scored: Scored, depth: int, column: Tensor, state: Tensor, score: Tensor, first: int, width: int
    ) -> BeamLevel:
        """The children of the beams `state` [B, M] at `column` [B, M], among the `width` columns from `first` on."""
        forest: Forest = draft.aux
        children = self.trie.children(state, min(forest.level + depth, self.trie.levels - 1))
        fresh = scored.p.scores.shape[1]  # the distributions of columns before were used in earlier rounds
        every = depth == 0 and first + fresh == draft.size and fresh == width  # the beams are all that was scored, in order
        log_p = of_children(scored.p, None if every else (column - draft.size + fresh).clamp_min(0), children)
        level = (ranked(children, log_p, score), draft.start[:, None] + depth, draft.start)
        if depth >= len(forest.drawn):
            return BeamLevel(children, *level)
        return BeamLevel(children, *level, *_own(forest.drawn[depth], (column - first).masked_fill(column < 0, width), width))


def ranked(children: Children, log_p: Tensor, score: Tensor) -> Tensor:
    """[B, M * C] path scores of `children`, whose parents have `score` [B, M]; -inf where there is no child."""
    return torch.where(children.valid, score[..., None] + log_p, -torch.inf).flatten(1)


def of_children(distributions: Categorical | TokensAndRest | ProcessedLogProbs, column: Tensor | None, children: Children) -> Tensor:
    """[B, M, C] log-probability of `children` under the distributions [B, N] at `column` [B, M], normalised over the whole vocabulary.

    None stands for all columns, in order: then nothing is copied.
    """
    return (distributions if column is None else distributions.at(column)).log_probs_at(children.token)


def best_indices(key: Tensor, count: int) -> Tensor:
    """[B, count] indices of the largest `key` [B, S], largest first; -1 where what is left is -inf."""
    found = key.topk(min(count, key.shape[1]), -1)
    index = torch.where(found.values > -torch.inf, found.indices, -1)
    return torch.nn.functional.pad(index, (0, count - index.shape[1]), value=-1)


@dataclass(frozen=True)
class TopKBeams(BeamRule):
    """The target's K best paths on every level: transformers' constrained beam search."""

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        return best_indices(level.score, self.k)


def _winners(level: BeamLevel, index: Tensor) -> Winners:
    """The winners at `index` [B, K] among a level's children."""
    there, index = index >= 0, index.clamp_min(0)
    state = torch.where(there, level.state.gather(1, index), NOWHERE)
    token = torch.where(there, level.children.token.flatten(1).gather(1, index), 0)
    score = torch.where(there, level.score.gather(1, index), -torch.inf)
    return Winners(index // level.children.state.shape[-1], token, state, score)


def _among(states: Tensor, found: Tensor, first: int) -> Tensor:
    """[B, K] the column of each trie node `states` [B, K] in `found` [B, N], whose columns begin at `first`; -1 where there is none."""
    same = (states[:, :, None] == found[:, None, :]) & (states != NOWHERE)[:, :, None]
    return torch.where(same.any(-1), same.long().argmax(-1) + first, -1)


def _own(drawn: DrawnChildren, place: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """How draft tokens were drawn, in terms of the children of M beams at `place` [B, M] of the nodes draft tokens could be appended to."""
    rows, size = drawn.log_q.shape[0], drawn.log_q.shape[-1]
    padded = torch.nn.functional.pad(drawn.log_q, (0, 0, 0, width + 1 - drawn.log_q.shape[1]), value=-torch.inf)
    log_q = padded.gather(1, place[..., None].expand(-1, -1, size)).flatten(1)
    beam = torch.full((rows, width + 1), -1, device=place.device).scatter_(
        1, place, torch.arange(place.shape[1], device=place.device).expand_as(place)
    )
    beam[:, width] = -1
    parent = beam.gather(1, drawn.index.clamp_min(0) // size)
    own = torch.where(parent >= 0, parent * size + drawn.index % size, -1)
    return log_q, torch.where(drawn.index >= 0, own, PAD)


def _verdict(draft: Draft, k: int, kept: list[tuple[Winners, Tensor]], last: Winners, accepted: Tensor) -> Verdict:
    """Keeps all roots and the winners of every accepted level; the winners of the level after are the next pending beams."""
    forest: Forest = draft.aux
    roots, device = draft.roots, draft.nodes.device
    alive, columns = draft.valid.any(1), torch.arange(draft.roots, device=device)
    bases = [roots - forest.beams, *(roots + k * level for level in range(len(kept)))]  # the column where each level's beams begin
    nodes, parents, states, scores = ([table[:, :roots]] for table in (draft.nodes, draft.parents, forest.state, path_scores(draft)))
    keep = [torch.where(draft.valid[:, :roots], columns, -1)]
    for base, (winners, column) in zip(bases, kept, strict=False):
        _append((nodes, parents, states, scores), winners, base, column >= 0)
        keep.append(column)
    base = torch.where(accepted == 0, bases[0], roots + k * (accepted - 1))
    _append((nodes, parents, states, scores), last, base[:, None], (last.state != NOWHERE) & alive[:, None])
    count = torch.where(alive, accepted + 1, 0)
    pending = replace(
        draft,
        nodes=torch.cat(nodes, 1),
        parents=torch.cat(parents, 1),
        start=draft.start + count,
        roots=roots + k * (len(kept) + 1),
        levels=None,
        trunk=(draft.trunk or draft.roots) + len(kept) + 1,
        score=torch.cat(scores, 1),
        aux=Forest(torch.cat(states, 1), k, forest.level + 1),
    )
    levels = torch.arange(len(kept) + 1, device=device).expand(len(count), -1)
    return Verdict(torch.cat(keep, 1), draft.start[:, None] + levels, count, pending, accepted, accepted)


def _append(tables: tuple[list[Tensor], ...], winners: Winners, base: Tensor | int, there: Tensor) -> None:
    """Append winners as columns whose parents begin at column `base`; PAD where they are not `there` [B, K]."""
    nodes, parents, states, scores = tables
    nodes.append(winners.token)
    parents.append(torch.where(there, winners.parent + base, PAD))
    states.append(torch.where(there, winners.state, NOWHERE))
    scores.append(torch.where(there, winners.score, -torch.inf))
