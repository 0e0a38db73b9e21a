"""Beam-search drafts (AtSpeed, Lin et al. 2025): the drafter searches with more beams than the target keeps and drafts every level.

The wide beams are anchored: on every level the K best children of the drafter's own K beams come first, and the rest is filled from all.
Without this, children of beams that the target does not keep could displace children of those it keeps, even where drafter and target are
the same model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.beams.pairs import repeated
from mmspec.core.beams.search import DrawnChildren, Forest, best_indices, of_children, path_scores, ranked
from mmspec.core.beams.trie import NOWHERE, Children, Trie
from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import KeepsRoots, RowRecord, SessionRowState, refuse_fixed_rows
from mmspec.drafters.views.base import View, same_prompt
from mmspec.models.beam_target import BeamTarget
from mmspec.utils.devices import to_device


class BeamGuide(Protocol):
    """Source of distributions over the children of trie nodes for one generation. A guide that needs the target's first round has `ready`
    False until then.
    """

    def weigh(self, draft: Draft, children: Children) -> Tensor:
        """Return log q [B, M, C] of the `children` of the draft's last M columns. Called once per level as the draft grows."""
        ...

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the target's scores of the finished draft and the verdict."""
        ...


class BeamSource(Protocol):
    """Weights or counts from which a guide is made for each generation."""

    def beam_guide(self, prompt: Any, session: TargetSession, trie: Trie) -> BeamGuide | None:
        """Return a guide, or None while there is nothing to draft from; then it is called again every round."""
        ...


class BeamSpread(Protocol):
    """How the draft tokens of one level are chosen. Spreads that sample have a method `draw` instead, without `core`, which returns
    `DrawnChildren` with log_q [B, S].
    """

    def __call__(self, score: Tensor, state: Tensor, core: int, draft: Draft, depth: int, noise: Noise) -> Tensor:
        """Return indices [B, N] among the children, -1 for none.

        Args:
            score: [B, S] path scores.
            state: [B, S] trie nodes.
            core: number of leading children that belong to the drafter's own beams.
            draft: the draft so far.
            depth: level of the draft, from 0.
            noise: the noise of the round.
        """
        ...


@dataclass(frozen=True)
class Anchored(RowRecord):
    """The `k` best children of the drafter's own beams, best first, then the best of the remaining ones: `width` in all."""

    by_row = ("key",)

    k: int
    width: int
    key: Callable[[Tensor, Tensor, Tensor, Noise], Tensor] | None = None  # what is ranked, where it is not the score itself

    def __post_init__(self) -> None:
        if self.width < self.k:
            raise ValueError(f"width is {self.width} and k {self.k}: draft at least as many beams as are kept, better four times as many")

    def __call__(self, score: Tensor, state: Tensor, core: int, draft: Draft, depth: int, noise: Noise) -> Tensor:
        key = score if self.key is None else self.key(score, state, draft.start[:, None] + depth, noise)
        anchors = best_indices(key[:, :core], self.k)
        rest = torch.nn.functional.pad(key, (0, 1)).scatter(1, torch.where(anchors >= 0, anchors, key.shape[1]), -torch.inf)[:, :-1]
        return torch.cat([anchors, best_indices(rest, self.width - self.k)], 1)


@dataclass(frozen=True)
class BeamDrafter(RowRecord):
    """Drafts `spread.width` beams a level with the distributions of `source` (AtSpeed, Lin et al. 2025).

    Args:
        source: a `BeamModel`, a recurrent head, or item counts such as `mmspec.recsys.Retriever`.
        trie: the catalogue's trie of paths.
        spread: how draft tokens are chosen, such as `Anchored`.
    """

    by_row = ("trie", "spread")

    source: BeamSource
    trie: Trie
    spread: Any  # a Spread with `k` and `width`

    def begin(self, prompt: Any, session: TargetSession) -> "BeamGrower":
        """Open the drafting session of one generation."""
        return BeamGrower(self, prompt, session)


class BeamGrower:
    """Drafting session of one beam search: levels of draft tokens on the target's own beams."""

    def __init__(self, drafter: BeamDrafter, prompt: Any, session: TargetSession):
        self.drafter, self.prompt, self.session = drafter, prompt, session
        self.guide: BeamGuide | None = None

    @property
    def joinable(self) -> bool:
        """True once the guide can draft. ValueError for guides whose rows cannot change."""
        if self.guide is None:
            return False
        refuse_fixed_rows(self.guide, "the drafter")
        return self.guide.joinable  # type: ignore[attr-defined]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.guide.take_rows(rows)  # type: ignore[union-attr]
        self.drafter = self.drafter.take_rows(rows)

    def join_rows(self, other: "BeamGrower") -> None:
        """Append the rows of another one; see `core.rows.changes.ChangesRows`."""
        self.guide.join_rows(other.guide)  # type: ignore[union-attr]
        self.drafter = self.drafter.join_rows(other.drafter)

    def shift_roots(self, by: int) -> None:
        """Count columns before the roots; see `core.rows.changes.KeepsRoots`."""
        if isinstance(self.guide, KeepsRoots):
            self.guide.shift_roots(by)

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if budget.length == 0:
            return pending
        if self.guide is None:
            self.guide = self.drafter.source.beam_guide(self.prompt, self.session, self.drafter.trie)
        if self.guide is None or not getattr(self.guide, "ready", True):
            return pending
        draft, core = pending, pending.aux.beams
        for depth in range(
            min(budget.length, self.drafter.trie.levels - pending.aux.level - 1)
        ):  # a round commits one level without a draft
            draft = self._grown(draft, core, depth, budget, noise)
            core = self.drafter.spread.k
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        if self.guide is not None:
            self.guide.observe(draft, scored, verdict)

    def _grown(self, draft: Draft, core: int, depth: int, budget: Budget, noise: Noise) -> Draft:
        """Return `draft` with one level added."""
        forest: Forest = draft.aux
        parents = forest.layers[-1] if depth else forest.beams
        first = draft.size - parents
        state, score = forest.state[:, first:], path_scores(draft)[:, first:]
        children = self.drafter.trie.children(state, min(forest.level + depth, self.drafter.trie.levels - 1))
        log_q = self.guide.weigh(draft, children)
        total, width = ranked(children, log_q, score), children.state.shape[-1]
        spread, drawn, room_left = self.drafter.spread, forest.drawn, (depth < budget.draft_tokens)[:, None]
        if hasattr(spread, "draw"):
            told = spread.draw(total, children.state.flatten(1), draft, depth, noise)
            index = told.index.masked_fill(repeated(told.index), -1)  # a child drawn twice is one node
            drawn = (*drawn, DrawnChildren(told.log_q.view_as(children.state), torch.where(room_left, told.index, PAD)))
        else:
            index = spread(total, children.state.flatten(1), core * width, draft, depth, noise)
        return with_level(draft, children, torch.where(room_left, index, -1), total, drawn)


def with_level(draft: Draft, children: Children, index: Tensor, score: Tensor, drawn: tuple[DrawnChildren, ...] = ()) -> Draft:
    """Return a draft with one level more.

    Args:
        draft: a draft of a beam search, [B, N].
        children: those of its last M columns, [B, M, C].
        index: which of them are draft tokens, LongTensor [B, D] in 0..M * C - 1; -1 for none.
        score: log-probability of the path to each child, [B, M * C].
        drawn: how the levels were drawn, this one included, for rules that read it.

    Returns:
        The draft, [B, N + D].
    """
    forest: Forest = draft.aux
    there, place, width = index >= 0, index.clamp_min(0), children.state.shape[-1]
    found, nodes = (
        torch.where(there, table.flatten(1).gather(1, place), fill) for table, fill in ((children.state, NOWHERE), (children.token, 0))
    )
    path = torch.where(there, score.gather(1, place), -torch.inf)
    parent = torch.where(there, draft.size - children.state.shape[1] + place // width, PAD)
    grown = draft.extend(nodes, parent, width=width, levels=len(forest.layers) + 1)
    layers = (*forest.layers, index.shape[1])
    aux = Forest(torch.cat([forest.state, found], 1), forest.beams, forest.level, layers, drawn)
    return replace(grown, score=torch.cat([path_scores(draft), path], 1), aux=aux)


@dataclass(frozen=True)
class BeamModel:
    """A model as the source: searched like the target, on its own `view` of the prompt."""

    target: BeamTarget
    view: View = same_prompt

    def beam_guide(self, prompt: Any, session: TargetSession, trie: Trie) -> "ModelGuide":
        """Return the guide of one beam search; see `BeamSource.beam_guide`."""
        own, root = self.target.begin(self.view(prompt, session))
        fits = [own.room is None or own.room[row] >= trie.levels for row in range(len(root.start))]
        return ModelGuide(own, fits)


class ModelGuide(SessionRowState):
    """Guide on the drafter model's own session. The last drafted level is not run; where it is kept, it is run with the next draft.

    Args:
        session: the model's.
        fits: which rows the model has positions for. The others are not run and not drafted.
    """

    def __init__(self, session: Any, fits: Sequence[bool]):
        self.session, self.fits = session, list(fits)
        self.begun = False

    @property
    def ready(self) -> bool:
        """False where no row can be drafted, once the session can take others."""
        return any(self.fits) or not self.begun

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        super().take_rows(rows)
        self.fits = [self.fits[row] for row in rows]

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one; see `core.rows.changes.ChangesRows`."""
        super().join_rows(other)
        self.fits += other.fits

    def shift_roots(self, by: int) -> None:
        """Count columns before the roots; see `core.rows.changes.KeepsRoots`."""
        self.session.shift_roots(by)

    def weigh(self, draft: Draft, children: Children) -> Tensor:
        """Return log q [B, M, C] of the children; see `BeamGuide.weigh`."""
        if not self.begun:
            self.session.leave_out_long_prompts()
            self.begun = True
        distributions = self.session.score(draft if all(self.fits) else replace(draft, parents=self._where(draft.parents, PAD))).p
        count = children.state.shape[1]
        columns = torch.arange(distributions.scores.shape[1] - count, distributions.scores.shape[1], device=draft.nodes.device)
        log_q = of_children(distributions, columns.expand(len(draft.start), -1), children)
        return log_q if all(self.fits) else self._where(log_q, -torch.inf)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        forest: Forest = draft.aux
        layers = forest.layers
        if not layers:  # no draft in this round: the committed columns wait for the next one
            return
        run = draft.roots + verdict.pending.aux.beams * (len(layers) - 1)
        self.session.commit(self._where(verdict.keep[:, :run], -1), 0)

    def _where(self, found: Tensor, other: float) -> Tensor:
        """`found` [B, ...], and `other` in rows that do not fit."""
        out = to_device([not fits for fits in self.fits], found.device)
        return found.masked_fill(out.view(-1, *[1] * (found.dim() - 1)), other)
