"""Any transformers model as a target: a session packs every row's committed values into slots and scores drafts in one forward.

Nothing depends on the side a prompt was padded on: prompts are packed, positions are logical, and one 4-D mask per forward says
what each node sees. The prompt is cached lazily, by the first `score`, in the same forward as the first draft.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical, Distribution
from mmspec.core.processors.pipeline import History, Pipeline
from mmspec.core.records import Context, Draft, Scored
from mmspec.models.compat import many_shapes
from mmspec.models.layout import Layout, draft_layout, prompt_layout
from mmspec.models.module_copy import on_copy, own_copy, refresh, shared_copy, uncompiled
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import numbered, stack, tapped

_SHAPES = 128  # that a process may compile of one model
_ROUND = 64  # capacities are multiples of this, so that similar requests share shapes


class Family(Protocol):
    """How one kind of model is driven: what differs between decoder-only, encoder-decoder and their exceptions."""

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The decoder's prompt: ids [B, P] and mask [B, P] bool."""
        ...

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        """A cache and whatever `forward` needs besides (encoder states, say)."""
        ...

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, keep, V] of the last `keep` columns, and hidden states `states` [B, M, F] of all where any are asked for."""
        ...


@runtime_checkable
class OwnValues(Protocol):
    """A family whose values are not its model's token ids: `values` of them, and prompt positions that have ids but are no values."""

    @property
    def values(self) -> int: ...

    def embedded(self, ids: Tensor, state: Any) -> Tensor:
        """Embeddings [B, M, D] of any ids a session holds."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the values from last hidden states."""
        ...


@runtime_checkable
class OwnDistributions(Protocol):
    """A family whose steps are no single ids: it says what distribution stands after a node. `raw` [B, M, ...] is what its `forward`
    gave."""

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Distribution: ...


@runtime_checkable
class OwnScoring(Protocol):
    """A family that may need more than one forward to score a draft. Its drafts are always scored whole: `ahead` is left aside."""

    def scored(self, session: "HFSession", layout: Layout, keep: int) -> Tensor:
        """Logits [B, keep, V] of the last `keep` columns; afterwards the session's cache holds all columns."""
        ...


@dataclass(frozen=True)
class HFTarget:
    """A transformers model, how to drive it, and the processors its distributions go through. Carries nothing between calls.

    `reserve` slots are allocated beyond the prompt at once; longer generations grow by doubling. Attention reads as many slots as
    are in use, rounded up, unless `static`: then every forward reads all of them, so that shapes and addresses never change and
    the forward can be captured. `captured` is the compiled model that runs every forward but the prompt's. `limit` is the model's
    number of positions, None for no limit. Without `trees` a session refuses branching drafts, as it does where the family says
    `trees = False`.
    """

    model: Any
    family: Family
    processors: Pipeline = field(default_factory=Pipeline)
    reserve: int = 192
    static: bool = False
    captured: Any = None
    limit: int | None = None
    trees: bool = True

    def begin(self, prompt: Mapping[str, Tensor]) -> tuple["HFSession", Draft]:
        """Open a session; the last prompt position is the first pending token. Runs encoders, but nothing of the decoder yet."""
        parts, pending = self.opened(prompt)
        return HFSession(*parts), pending

    def opened(self, prompt: Mapping[str, Tensor]) -> tuple[tuple["HFTarget", SlotCache, Any, Tensor, Tensor], Draft]:
        """What a session on `prompt` is made of, for sessions of other kinds, and the first pending token."""
        refresh(self.model)
        if self.captured is not None and uncompiled(self.captured) is not shared_copy(self.model):
            raise ValueError(f"this {type(self.model).__name__} has changed since it was captured: call capture() again")
        model = own_copy(self.model)
        ids, mask = self.family.prompt(model, prompt)
        _check_prompt(ids, mask, self.limit)
        order = torch.argsort((~mask).long(), dim=1, stable=True)  # pack: real ids first, whatever the padding side
        rows = torch.arange(len(ids), device=ids.device)
        packed, lengths = ids[rows[:, None], order], mask.sum(1)
        capacity = -(-(ids.shape[1] + self.reserve + 1) // _ROUND) * _ROUND
        cache, state = self.family.begin(model, prompt, capacity)
        last = packed[rows, lengths - 1]
        return (self, cache, state, packed[:, :-1], lengths - 1), Draft.root(last, torch.zeros_like(lengths))

    def own(self) -> tuple[Family, Any]:
        """The family and this thread's copy of the model it drives: hooks and changes for the length of a forward go on the copy."""
        return on_copy(self.family, self.model), own_copy(self.model)

    def capture(self, reserve: int, **options: Any) -> "HFTarget":
        """This target with fixed shapes and addresses for `reserve` slots beyond the prompt, its rounds run by a compiled model.

        `options` go to `torch.compile`; the default captures CUDA graphs on a GPU. Every draft length is captured once. What is compiled
        is a copy over the same weights: transformers' recorders of hidden states stay on it.
        """
        if not getattr(self.family, "capturable", True):
            raise ValueError(f"{type(self.model).__name__} cannot be captured: its positions are put in place anew for every forward")
        options = {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False} | options
        return replace(self, static=True, reserve=reserve, captured=torch.compile(shared_copy(self.model), **options))


def _check_prompt(ids: Tensor, mask: Tensor, limit: int | None) -> None:
    if ids.shape[0] == 0:
        raise ValueError("the batch is empty: give at least one prompt")
    lengths = mask.sum(1).tolist()
    if min(lengths, default=0) == 0:
        raise ValueError(f"prompt {lengths.index(0)} is empty: every prompt needs at least one token that is not padding")
    if limit is not None and max(lengths) >= limit:
        raise ValueError(f"prompt {lengths.index(max(lengths))} has {max(lengths)} tokens, but the model has {limit} positions: shorten it")


class PrecomputedStates(Protocol):
    """Work on `draft` that its drafter has already done. Whoever scores another draft leaves it aside."""

    @property
    def draft(self) -> Draft: ...

    def done(self, session: "HFSession", layout: Layout) -> AbstractContextManager[None]:
        """A forward of the model inside does only what is left to do. Not for captured models."""
        ...


class HFSession:
    """One generation over one `HFTarget`: the cache, every row's committed length and ids, and the draft under way."""

    def __init__(self, target: HFTarget, cache: SlotCache, state: Any, context: Tensor, lengths: Tensor):
        self.target, self.cache, self.state = target, cache, state
        self.context: tuple[Tensor, Tensor] | None = (context, lengths)  # prompt ids [B, P-1] not cached yet, and how many a row has
        self.lengths = torch.zeros_like(lengths)  # committed and cached, [B]
        self._rows = torch.arange(len(lengths), device=lengths.device)[:, None]
        self._own_distributions = isinstance(target.family, OwnDistributions)
        self.bound = 0  # an upper bound on any row's committed slots, known without asking the device
        self.ids = torch.zeros(len(lengths), cache.capacity, *context.shape[2:], dtype=context.dtype, device=context.device)
        self.slots: Tensor | None = None  # [B, N] of the draft under way
        self.scored = 0  # its columns scored so far
        self.linear = True
        self.watched: tuple[int, ...] = ()
        self.ahead: PrecomputedStates | None = None
        self.draft: Draft | None = None  # under way, as last scored

    def watch(self, states: Sequence[int]) -> None:
        """From now on `score` hands out these hidden states, numbered as in `models.stack`, side by side. For drafters that read them."""
        self.watched = numbered(states, len(stack(self.target.model)))

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """The target's distributions after every node not scored before in this round; a draft may grow between calls. One forward."""
        self._check_shape(draft)
        first, prompt, self.draft = self.scored, self.context, draft
        layout = self.place(draft, first)
        fresh = draft.size - first
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead.draft is not draft or self.target.captured is not None or isinstance(self.target.family, OwnScoring):
            logits, hidden = self._forward(layout, fresh, captured=prompt is None)  # prompts differ in length: not worth capturing
        else:
            with ahead.done(self, layout):
                logits, hidden = self._forward(layout, fresh, captured=False)
        own = layout.slots[:, -fresh:]
        self.slots, self.scored = own if self.slots is None else torch.cat([self.slots, own], 1), draft.size
        healthy = None if getattr(self.target.processors, "repairs", False) else (logits < torch.inf).flatten(1).all(-1)
        p = self.distributions(logits, draft, layout, first)
        if hidden is None or prompt is None:
            return Scored(p, hidden, healthy=healthy)
        return Scored(p, hidden[:, -fresh:], Context(*prompt, hidden[:, :-fresh]), healthy)

    def _check_shape(self, draft: Draft) -> None:
        if not draft.linear and not (self.target.trees and getattr(self.target.family, "trees", True)):
            raise ValueError(
                f"{type(self.target.model).__name__} is exact with chains only, but the draft branches: leave tree out, "
                "or choose a drafter that drafts chains, such as lookup or a model"
            )

    def distribution(self, logits: Tensor, draft: Draft, first: int) -> Categorical:
        """A drafter's `logits` [B, M, V] over the target's own values, after columns `first` on of a draft the target has not scored:
        the distribution they stand for under the target's processors, each node with its own history. Not before the first `score`."""
        if self.target.processors.idle:
            return Categorical(logits.float())
        return self.distributions(logits.float(), draft, self.place(draft, first), first)

    def place(self, draft: Draft, first: int) -> Layout:
        """Where the columns of `draft` from `first` on stand, behind the prompt if that is still uncached. There is room for them."""
        self.make_room(draft.size)
        return self._layout(draft, first)

    def distributions(self, logits: Tensor, draft: Draft, layout: Layout, first: int) -> Any:
        """The distributions of `logits` [B, M, V] after the draft's columns from `first` on, which `layout` places."""
        self.ids[self._rows, layout.slots] = layout.ids
        if self.target.processors.idle and not self._own_distributions:
            return Categorical(logits)
        visible = layout.visible[:, first - draft.size :]
        history = History(self.ids[:, : visible.shape[-1]], visible, draft.position()[:, first:])
        if self._own_distributions:
            return self.target.family.distribution(logits, history, self.target.processors)  # type: ignore[attr-defined]
        return Categorical(self.target.processors(logits, history))

    def _forward(self, layout: Layout, fresh: int, captured: bool) -> tuple[Tensor, Tensor | None]:
        """Logits [B, fresh, V] and the watched hidden states [B, M, F] of every column."""
        target = self.target
        self.cache.point(layout.slots, layout.visible.shape[-1])
        if target.captured is not None:  # hooks would be baked into the captured graph: it hands out every state
            model = target.captured if captured else uncompiled(target.captured)  # the prompt's run readies transformers' own recorders
            layout = replace(layout, ids=layout.ids.clone(memory_format=torch.contiguous_format))  # strides tell how far a draft has grown
            with many_shapes(_SHAPES):
                logits, hidden = target.family.forward(model, layout, self.cache, self.state, fresh, self.watched)
            return logits.to(torch.float32, copy=True), hidden  # the next replay of a graph writes where this one has written
        family, model = target.own()
        with tapped(model, self.watched) as found:
            if isinstance(family, OwnScoring):
                logits = family.scored(self, layout, fresh)
            else:
                logits, _ = family.forward(model, layout, self.cache, self.state, fresh)
        return logits.float(), torch.cat([found[state] for state in self.watched], -1) if self.watched else None

    @torch.no_grad()
    def commit(self, keep: Tensor, most: int) -> None:
        """Settle columns `keep` [B, K] (-1 padded, in path order) of the draft under way, at most `most` a row, and forget the rest."""
        if not self.linear:  # the survivors of a chain already stand where they belong
            scratch = self.cache.capacity - 1
            source = torch.where(keep >= 0, self.slots.gather(1, keep.clamp_min(0)), scratch)
            target = torch.where(keep >= 0, self.lengths[:, None] + (keep >= 0).cumsum(1) - 1, scratch)
            self.cache.gather(source, target)
            self.ids[self._rows, target] = self.ids[self._rows, source]
        self.lengths = self.lengths + (keep >= 0).sum(1)
        self.bound += most
        self.slots, self.scored = None, 0

    def make_room(self, columns: int) -> None:
        """Grow the cache unless there are slots for `columns` more behind the committed ones."""
        waiting = 0 if self.context is None else self.context[0].shape[1]
        needed = self.bound + waiting + columns + 1
        if needed > self.cache.capacity:
            self.cache.reserve(-(-needed // _ROUND) * _ROUND)
            more = self.ids.new_zeros(len(self.ids), self.cache.capacity - self.ids.shape[1] + 1, *self.ids.shape[2:])
            self.ids = torch.cat([self.ids[:, :-1], more], 1)

    def _layout(self, draft: Draft, first: int) -> Layout:
        scratch, self.linear = self.cache.capacity - 1, draft.linear
        if self.context is None:
            return draft_layout(draft, first, self.lengths, self.view(draft.size), scratch)
        (context, self.lengths), self.context = self.context, None
        self.bound = context.shape[1]
        view = self.view(draft.size)
        return draft_layout(draft, first, self.lengths, view, scratch).behind(prompt_layout(context, self.lengths, view, scratch))

    def view(self, columns: int) -> int:
        """Slots in view with `columns` more behind the committed ones: all but the scratch slot, or as many as are in use, rounded up."""
        most = self.cache.capacity - 1
        return most if self.target.static else min(-(-(self.bound + columns) // _ROUND) * _ROUND, most)
