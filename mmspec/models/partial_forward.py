"""Partial forwards of a session: drafts scored with parts of the model skipped, against the target's own cache, and never committed.

A partial forward writes its keys and values into the slots after the committed ones, where the target overwrites them when it scores the
finished draft. So nothing has to be undone, and partial forwards do not affect the output. Recurrent states are those of a fork, which is
dropped with the draft.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.records import Draft, Scored
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.skipped_parts import Change, Skips, noted, rewired, stand_in, unchanged
from mmspec.models.stack import check_copy, stack
from mmspec.models.target import HFSession


class PartialForward:
    """Scores growing drafts with the parts in `skips` skipped. Drafts begin at the session's pending token."""

    def __init__(self, session: HFSession, skips: Skips | None = None):
        self.session = session
        self._found: tuple[Any, Mapping[nn.Module, Change]] | None = None  # a copy of the model and the changes to its modules
        self.skip(skips or Skips())
        self.slots: Tensor | None = None  # [B, N] of the draft under way
        self.scored = 0
        self.state: Any = None  # see `draft_state`

    def skip(self, skips: Skips) -> None:
        """Change the parts that are skipped. ValueError where the model does not have them."""
        self.changes_of(self.session.target.model, skips)
        self.skips, self._found = skips, None

    @property
    def changes(self) -> Mapping[nn.Module, Change]:
        """The changes to the copy of the model that this thread runs."""
        model = own_copy(self.session.target.model)
        if self._found is None or self._found[0] is not model:
            self._found = (model, self.changes_of(model, self.skips))
        return self._found[1]

    def changes_of(self, model: Any, skips: Skips) -> Mapping[nn.Module, Change]:
        """The changes to `model` that skip `skips`. ValueError where it does not have those parts."""
        return skips.changes(model)

    @property
    def ready(self) -> bool:
        """True once the target has run the prompt. Before that there is no cache to read."""
        return self.session.context is None

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Distributions, under the target's processors, after every node not scored before. One forward; only after the target's first."""
        assert self.ready, "a partial forward reads the cache: let the target score first"
        first = self.scored
        layout = self.session.place(draft, first)
        logits = self.forward(draft, layout, draft.size - first)
        self.slots = layout.slots if self.slots is None else torch.cat([self.slots, layout.slots], 1)
        self.scored = draft.size
        return Scored(self.session.distributions(logits.float(), draft, layout, first))

    def forward(self, draft: Draft, layout: Layout, fresh: int) -> Tensor:
        """Logits [B, fresh, V] of the draft's newest columns, at the slots of `layout`."""
        with rewired(self.changes):
            return run_uncaptured(self.session, layout, fresh, self.draft_state())

    def draft_state(self) -> Any:
        """What the family keeps for the draft under way: for the session, or recurrent states that begin at the committed ones."""
        if self.slots is None:
            self.state = self.session.state if self.session.recurrent is None else self.session.recurrent.fork()
        return self.state

    def close(self) -> None:
        """Drop the draft under way."""
        self.slots, self.scored, self.state = None, 0, None

    def change_rows(self) -> None:
        """Forget what is kept by row from draft to draft: rows of the session have left or joined. Here that is nothing."""

    @torch.no_grad()
    def replay(self, count: int, since: Tensor | int = 0) -> "Replay":
        """Run each row's last `count` committed values again as if they were a draft; those before slot `since` [B] are left out.

        They take the slots after the committed ones, and see the committed values before them and each other.
        """
        session = self.session
        refuse_replay(session)
        session.make_room(count)
        rows, view, columns = session.lengths[:, None], session.view(count), torch.arange(count, device=session.ids.device)
        positions = rows - count + columns
        real = positions >= torch.as_tensor(since, device=rows.device).view(-1, 1).clamp_min(0)
        have, slot = real.sum(1, keepdim=True), torch.arange(view, device=rows.device)
        own = torch.where(real, positions + have, session.cache.capacity - 1)
        before, behind = slot < rows - have, (slot >= rows)[:, None] & (slot <= own[..., None])
        visible = torch.where(real[..., None], before[:, None] | behind, slot == 0)  # a softmax over nothing would be NaN
        places = torch.where(real, positions, 0)
        layout = Layout(session.ids.gather(1, places), places, own, view, visible, torch.where(slot >= rows, slot - have, slot))
        with rewired(self.changes):
            return Replay(run_uncaptured(session, layout, count, session.state).float(), layout.ids, real)


def refuse_replay(session: HFSession) -> None:
    """ValueError for a target with recurrent states, which stand behind the values that would be run again."""
    if session.recurrent is not None:
        raise ValueError(
            f"{type(session.target.model).__name__} keeps recurrent states, so this drafter cannot run its newest values again: "
            "choose another drafter, such as lookup, early exit or a model"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Committed values that were run again."""

    logits: Tensor  # [B, M, V] after each
    ids: Tensor  # [B, M] the values, packed to the right
    real: Tensor  # [B, M] bool


def run_uncaptured(session: HFSession, layout: Layout, keep: int, state: Any) -> Tensor:
    """Logits [B, keep, V] of this thread's copy of the model, never the captured one, without recorded hidden states.

    `state` is what the family keeps for the session, or for a draft of its own.
    """
    session.cache.point(layout.slots, layout.view)
    family, model = session.target.own()
    logits, _ = family.forward(model, layout, session.cache, state, keep)
    return logits


# --- the first layers only --------------------------------------------------------------------------------------------


class ShallowView(PartialForward):
    """Runs the first `layers` layers, the final norm and the head, and keeps the exit states so that the target need not recompute them."""

    def __init__(self, session: HFSession, layers: int):
        depth = len(stack(session.target.model))
        if not 1 <= layers <= depth:
            raise ValueError(f"layer is {layers}: the target has {depth} layers, so exit after 1 to {depth}")
        self.layers = layers
        super().__init__(session, Skips(dict.fromkeys(range(layers, depth))))
        self.states: Tensor | None = None  # [B, N, H] leaving the last layer that runs, for the draft under way

    def changes_of(self, model: Any, skips: Skips) -> Mapping[nn.Module, Change]:
        learning = {layer: noted(layer) for layer in stack(model)[: self.layers]}  # records the form of outputs where nothing is skipped
        return {**super().changes_of(model, skips), **learning}

    def forward(self, draft: Draft, layout: Layout, fresh: int) -> Tensor:
        with leaving(own_copy(self.session.target.model), self.layers) as found:
            logits = super().forward(draft, layout, fresh)
        self.states = found[0] if self.states is None else torch.cat([self.states, found[0]], 1)
        return logits

    def close(self) -> None:
        super().close()
        self.states = None

    def hand_over(self, draft: Draft, origin: Tensor) -> None:
        """Let the target start `draft` from the exit states. Not where it has recurrent states, which its first layers must commit, too.

        Args:
            draft: the draft that the target will score.
            origin: [B, G] the column each draft token had here, past the end if none.
        """
        if self.slots is not None and self.states is not None and self.session.recurrent is None:
            own = torch.cat([torch.zeros_like(origin[:, :1]), origin], 1)
            self.session.ahead = PartlyRun(draft, self.layers, own, self.slots, self.states, self)


@dataclass(frozen=True)
class PartlyRun:
    """A draft some of whose nodes have passed the first `layers` layers."""

    draft: Draft
    layers: int
    origin: Tensor  # [B, N] the column each node had in the partial forward, past the end for those that did not run
    slots: Tensor  # [B, S] of the partial forward's columns
    states: Tensor  # [B, S, H]
    shallow: ShallowView

    @contextmanager
    def done(self, session: HFSession, layout: Layout) -> Iterator[None]:
        """Inside, the model starts after the first layers. Nodes that have not passed them are run through them first."""
        model, ran = own_copy(session.target.model), (self.origin < self.slots.shape[1]) & self.draft.valid
        column = torch.where(ran, self.origin, 0)
        states = self.states.gather(1, column[..., None].expand(-1, -1, self.states.shape[-1]))
        if not self.draft.linear:  # a chain's nodes are already in place
            scratch = session.cache.capacity - 1
            source, target = self.slots.gather(1, column), layout.slots
            session.cache.gather(torch.where(ran, source, scratch), torch.where(ran, target, scratch), self.layers)
        states = self._completed(session, layout, states, self.draft.valid & ~ran)
        layers = stack(model)[: self.layers]
        changes = {layer: stand_in(layer, unchanged) for layer in layers}
        changes[layers[-1]] = stand_in(layers[-1], lambda going_in, made: states)
        with rewired(changes):
            yield

    def _completed(self, session: HFSession, layout: Layout, states: Tensor, missing: Tensor) -> Tensor:
        """`states` [B, N, H] with those of the `missing` nodes [B, N] computed."""
        count = self.draft.size - self.slots.shape[1] if self.draft.linear else _most(missing)
        if count <= 0:
            return states
        order = torch.argsort((~missing).long(), dim=1, stable=True)[:, :count]
        real = missing.gather(1, order)
        part = _columns(layout, order, real, session.cache.capacity - 1)
        model = own_copy(session.target.model)
        with rewired({**self.shallow.changes, **_headless(model)}), leaving(model, self.layers) as found:
            run_uncaptured(session, part, 1, session.state)
        index = order[..., None].expand(-1, -1, states.shape[-1])
        return states.scatter(1, index, torch.where(real[..., None], found[0], states.gather(1, index)))


def _most(missing: Tensor) -> int:
    """The largest number of `missing` nodes [B, N] of a row. On a GPU, where the host would wait, all but the root, which is never one."""
    return int(missing.sum(1).max()) if missing.device.type == "cpu" else missing.shape[1] - 1


def _columns(layout: Layout, order: Tensor, real: Tensor, scratch: int) -> Layout:
    """Columns `order` [B, M] of a layout; those that are not `real` write to the scratch slot."""
    visible = layout.visible.gather(1, order[..., None].expand(-1, -1, layout.view))
    slots = torch.where(real, layout.slots.gather(1, order), scratch)
    part = replace(layout.seeing(visible), ids=layout.ids.gather(1, order), positions=layout.positions.gather(1, order))
    return replace(part, slots=slots)


def _headless(model: Any) -> dict[nn.Module, Change]:
    """Skip the head, which costs as much as a layer or more, where the logits are not used."""
    return {model.get_output_embeddings(): lambda real: lambda hidden: hidden[..., :1]}


@contextmanager
def leaving(model: Any, layers: int) -> Iterator[list[Tensor]]:
    """During a forward inside, append the output of layer `layers` [B, M, H], before the final norm, to the list that is yielded.

    `model` is a copy (`models.module_copy.own_copy`).
    """
    check_copy(model)
    found: list[Tensor] = []

    def hook(module: Any, args: tuple, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handle = stack(model)[layers - 1].register_forward_hook(hook)
    try:
        yield found
    finally:
        handle.remove()
