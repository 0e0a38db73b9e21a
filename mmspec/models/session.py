"""One generation over a target: the cache, every row's committed values, and the draft under way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.history import History
from mmspec.core.processors.truncation import distribution_of
from mmspec.core.records import Context, Draft, Scored
from mmspec.models.changed import replaced
from mmspec.models.compat.output_head import drop_changed_head, head_changes
from mmspec.models.family import OwnDistributions, OwnScoring, PrecomputedStates, Splitting, StateCommit
from mmspec.models.layout import Layout, draft_layout, prompt_layout
from mmspec.models.rows.session_rows import SessionRows
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import numbered, stack, tapped
from mmspec.utils.devices import to_device

if TYPE_CHECKING:
    from mmspec.models.target import HFTarget

ROUND = 64  # capacities are multiples of this, so that similar requests share shapes
Room = list[int] | None
"""For each row, the values that its model's table of positions can take behind the prompt; below 0 for a prompt that is too long. None for
models without a table."""


class HFSession(SessionRows):
    """One generation over one `HFTarget`: the cache, every row's committed length and ids, and the draft under way.

    Args:
        target: the target.
        cache: its cache.
        state: what the family keeps for the session.
        context: ids of the packed prompt [B, P - 1] without the last one.
        lengths: ids of each row [B].
        least: the smallest of `lengths`, where the host knows it; -1 where it does not.
        room: by row, the positions behind the prompt.
    """

    def __init__(
        self, target: "HFTarget", cache: SlotCache, state: Any, context: Tensor, lengths: Tensor, least: int = -1, room: Room = None
    ):
        self.room = room
        self.target, self.cache, self.state = target, cache, state
        self.recurrent = state if isinstance(state, StateCommit) else None
        self.context: tuple[Tensor, Tensor] | None = (context, lengths)  # prompt ids [B, P - 1] not cached yet, and each row's number
        self.lengths = torch.zeros_like(lengths)  # committed and cached, [B]
        self._rows = torch.arange(len(lengths), device=lengths.device)[:, None]
        self._own_distributions = isinstance(target.family, OwnDistributions)
        self.reads_paths = self._own_distributions or getattr(target.processors, "reads_paths", True)
        self.bound = 0  # an upper bound on any row's committed slots, known without asking the device
        self.floor = least  # a lower bound on those of every row that is still generated; -1 if unknown
        self.even = least == context.shape[1]  # all of these rows have `bound` committed slots
        self.ids = torch.zeros(len(lengths), cache.capacity, *context.shape[2:], dtype=context.dtype, device=context.device)
        self.slots: Tensor | None = None  # [B, N] of the draft under way
        self.scored = 0  # its columns scored so far
        self.linear = True
        self.watched: tuple[int, ...] = ()
        self.ahead: PrecomputedStates | None = None
        self.draft: Draft | None = None  # under way, as last scored
        self.pieces: list[Tensor] = []  # watched states [B, M, F] of the prompt's columns that have been run
        drop_changed_head(target.model)

    def watch(self, states: Sequence[int]) -> None:
        """Let `score` return hidden states from now on, concatenated.

        Args:
            states: their numbers, as in `models.stack`.

        Raises:
            ValueError: for a captured target of a family that holds its network.
        """
        if states and self.target.captured is not None and not self.target.captured.states:
            raise ValueError(
                f"a captured {type(self.target.model).__name__} returns no hidden states, which this drafter reads: leave capture out"
            )
        self.watched = numbered(states, len(stack(self.target.model)))

    def leave_out_long_prompts(self) -> None:
        """Leave out rows whose prompt is too long for a table of positions, before the first `score`. Their drafts must be PAD."""
        if self.context is None or self.room is None or min(self.room) >= 0:
            return
        (ids, lengths), fits = self.context, [left >= 0 for left in self.room]
        lengths = lengths.masked_fill(~to_device(fits, lengths.device).repeat(len(lengths) // len(fits)), 0)
        found = lengths.tolist()
        self.context = (ids[:, : max(found)], lengths)
        self.floor, self.even = 0, False

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score every node of a draft not scored before in this round, in one forward. A draft may grow between calls.

        Args:
            draft: the draft, N columns.

        Returns:
            The distributions after the new nodes, and the watched hidden states.

        Raises:
            ValueError: for a branching draft where the target takes chains only.
        """
        first, prompt = self.scored, self.context
        logits, hidden, layout = self.run(draft)
        p, fresh = self.distributions(logits, draft, layout, first, deferred=True), draft.size - first
        found = Scored(p, hidden, healthy=self.healthy(logits), reported=self.reported(logits, draft, layout, first))
        if hidden is None or prompt is None:
            return found
        return replace(found, hidden=hidden[:, -fresh:], context=Context(*prompt, hidden[:, :-fresh]))

    def run(self, draft: Draft) -> tuple[Tensor, Tensor | None, Layout]:
        """Run the nodes of a draft not run before in this round, with the prompt if that is not cached yet.

        Args:
            draft: the draft, N columns.

        Returns:
            Logits [B, M, V] after the M new nodes, the watched hidden states of all columns that ran, and the columns' layout.

        Raises:
            ValueError: for a branching draft where the target takes chains only.
        """
        self._check_shape(draft)
        first, prompt, self.draft = self.scored, self.context, draft
        pieces = self._prefill(draft)
        layout = self.place(draft, first)
        fresh = draft.size - first
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead.draft is not draft or self.target.captured is not None or isinstance(self.target.family, OwnScoring):
            logits, hidden = self._forward(layout, fresh, captured=prompt is None)  # prompts differ in length: not worth capturing
        else:
            with ahead.done(self, layout):
                logits, hidden = self._forward(layout, fresh, captured=False)
        own = layout.slots if layout.ids.shape[1] == fresh else layout.slots[:, -fresh:]
        self.slots, self.scored = own if self.slots is None else torch.cat([self.slots, own], 1), draft.size
        return logits, hidden if hidden is None or not pieces else torch.cat([*pieces, hidden], 1), layout

    def healthy(self, logits: Tensor) -> Tensor | None:
        """Return which rows [B] of logits [B, M, V] hold no NaN or +inf; None where processors repair them."""
        return None if getattr(self.target.processors, "repairs", False) else (logits.flatten(1).amax(-1) < torch.inf)

    def _prefill(self, draft: Draft) -> list[Tensor]:
        """Run all but the end of a long prompt, in pieces whose masks are small. Returns their watched hidden states [B, M, F]."""
        found, self.pieces = self.pieces, []
        family = self.target.family
        if self.context is None or not isinstance(family, Splitting) or isinstance(family, OwnScoring):
            return found
        sizes, (ids, lengths) = family.pieces(self.target.model, self.state), self.context
        if sizes is None:
            return found
        self.make_room(draft.size)
        first, later = sizes
        size, most = first, first if self._continues(draft) else later  # columns the last forward may have
        while 0 < ids.shape[1] - self.bound and ids.shape[1] - self.bound + draft.size > most:
            found += self._piece(ids[:, self.bound : self.bound + size], lengths, self.bound)
            size = most = later
        return found

    def _piece(self, ids: Tensor, lengths: Tensor, start: int) -> list[Tensor]:
        """Run columns `ids` [B, M] of the prompt, from column `start` on. Returns their watched hidden states."""
        stop = start + ids.shape[1]
        layout = prompt_layout(ids, lengths, stop, self.cache.capacity - 1, start)
        self.ids[self._rows, layout.slots], self.bound = layout.ids, stop
        _, hidden = self._forward(layout, 1, captured=False)
        return [] if hidden is None else [hidden]

    def _continues(self, draft: Draft) -> bool:
        """True if the draft's columns continue what is committed in the order of slots, in every row that is still generated."""
        return self.even and draft.linear and draft.roots == 1

    def _check_shape(self, draft: Draft) -> None:
        if not draft.linear and not (self.target.trees and getattr(self.target.family, "trees", True)):
            raise ValueError(
                f"{type(self.target.model).__name__} is exact with chains only, but the draft branches: leave tree out, "
                "or choose a drafter that drafts chains, such as lookup or a model"
            )

    def distribution(self, logits: Tensor, draft: Draft, first: int) -> Categorical:
        """Apply the target's processors to a drafter's logits over the target's values. Only after the first `score`.

        Args:
            logits: [B, M, V], after the columns from `first` on.
            draft: a draft that the target has not scored.
            first: the first of the columns.

        Returns:
            Distributions [B, M], each with the history of its own node.
        """
        if self.target.processors.idle:
            return Categorical(logits.float())
        return self.distributions(logits.float(), draft, self.place(draft, first), first)

    def place(self, draft: Draft, first: int) -> Layout:
        """Place the columns of a draft, after the prompt if that is not cached yet; the cache grows if needed.

        Args:
            draft: the draft.
            first: the first column to place.

        Returns:
            Their layout.
        """
        self.make_room(draft.size)
        return self._layout(draft, first)

    def distributions(self, logits: Tensor, draft: Draft, layout: Layout, first: int, deferred: bool = False) -> Any:
        """Make distributions from logits.

        Args:
            logits: [B, M, V] after the draft's columns from `first` on.
            draft: the draft.
            layout: where those columns are.
            first: the first of the columns.
            deferred: truncate large vocabularies when a distribution is asked for.

        Returns:
            Distributions [B, M].
        """
        self.ids[self._rows, layout.slots] = layout.ids
        if self.target.processors.idle and not self._own_distributions:
            return Categorical(logits)
        history = self._history(draft, layout, first)
        if self._own_distributions:
            return self.target.family.distribution(logits, history, self.target.processors)  # type: ignore[attr-defined]
        return distribution_of(self.target.processors, logits, history, deferred)

    def _history(self, draft: Draft, layout: Layout, first: int) -> History:
        position = draft.position() if first == 0 else draft.position()[:, first:]
        if not self.reads_paths:
            return History(None, None, position)  # type: ignore[arg-type]
        return History(self.ids[:, : layout.view], layout.paths(draft.size - first), position)

    def _forward(self, layout: Layout, fresh: int, captured: bool) -> tuple[Tensor, Tensor | None]:
        """Logits [B, fresh, V] and the watched hidden states [B, M, F] of every column."""
        target = self.target
        if target.captured is not None:  # strides would depend on the draft
            own = {name: getattr(layout, name).clone(memory_format=torch.contiguous_format) for name in ("ids", "positions", "slots")}
            layout = replace(layout, **own)
            _ = layout.visible, layout.slot_positions  # made before the graph, which cannot make cached properties
        self.cache.point(layout.slots, layout.view)
        if target.captured is not None:  # hooks would become part of the captured graph: it returns every state
            return target.captured.forward(layout, self.cache, self.state, fresh, self.watched, prompt=not captured)
        family, model = target.own()
        with tapped(model, self.watched) as found, replaced(*head_changes(model)):
            if isinstance(family, OwnScoring):
                logits = family.scored(self, layout, fresh)
            else:
                logits, _ = family.forward(model, layout, self.cache, self.state, fresh)
        return logits.float(), torch.cat([found[state] for state in self.watched], -1) if self.watched else None

    @torch.no_grad()
    def commit(self, keep: Tensor, most: int) -> None:
        """Move the kept columns of the draft under way to the committed slots, and drop the rest.

        Args:
            keep: columns [B, K] in path order, -1 padded.
            most: largest number of kept columns in a row.
        """
        if not self.linear:  # kept columns of a chain are already in place
            scratch = self.cache.capacity - 1
            source = torch.where(keep >= 0, self.slots.gather(1, keep.clamp_min(0)), scratch)
            target = torch.where(keep >= 0, self.lengths[:, None] + (keep >= 0).cumsum(1) - 1, scratch)
            self.cache.gather(source, target)
            self.ids[self._rows, target] = self.ids[self._rows, source]
        if self.recurrent is not None:
            self.recurrent.commit(keep)
        self.lengths = self.lengths + (keep >= 0).sum(1)
        self.bound += most
        self.even = self.even and self.draft is not None and (self.draft.size == 1 or (self.draft.roots == 1 and len(keep) == 1))
        self.floor = self.bound if self.even else self.floor + min(most, 1) if self.floor >= 0 else -1
        self.slots, self.scored = None, 0

    def make_room(self, columns: int) -> None:
        """Grow the cache unless it has slots for more columns after the committed ones.

        Args:
            columns: how many.
        """
        committed = self.bound if self.context is None else self.context[0].shape[1]
        needed = committed + columns + 1
        if needed > self.cache.capacity:
            scratch = self.cache.capacity - 1
            self.cache.reserve(-(-needed // ROUND) * ROUND)
            more = self.ids.new_zeros(len(self.ids), self.cache.capacity - self.ids.shape[1] + 1, *self.ids.shape[2:])
            self.ids = torch.cat([self.ids[:, :-1], more], 1)
            if self.slots is not None:  # columns without a slot stay in the last one, wherever that is
                self.slots = self.slots.masked_fill(self.slots == scratch, self.cache.capacity - 1)

    def _layout(self, draft: Draft, first: int) -> Layout:
        scratch, self.linear = self.cache.capacity - 1, draft.linear
        begun, prompt = self.bound, self.context
        if prompt is not None:
            (_, self.lengths), self.context = prompt, None
            self.bound = prompt[0].shape[1]
        chain = self._continues(draft) and (prompt is not None or not self.target.static)
        view = self.view(draft.size) if self.target.static and not chain else self.bound + draft.size
        whole = chain and prompt is not None and begun == 0  # nothing is cached yet
        causal = whole or (chain and draft.size - first == 1)
        floor = 0 if self.target.static else max(self.floor, 0)  # windows of static targets read all slots
        layout = replace(draft_layout(draft, first, self.lengths, view, scratch), causal=causal, floor=floor)
        if prompt is None:
            return layout
        if begun == self.bound:
            return replace(layout, opening=True)
        return layout.behind(prompt_layout(prompt[0][:, begun:], self.lengths, view, scratch, begun), causal=whole)

    def view(self, columns: int) -> int:
        """Compute the number of slots in view: all but the scratch slot, or as many as are in use, rounded up.

        Args:
            columns: columns after the committed ones.

        Returns:
            Slots.
        """
        most = self.cache.capacity - 1
        return most if self.target.static else min(-(-(self.bound + columns) // ROUND) * ROUND, most)
