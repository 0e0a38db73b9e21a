"""Recurrent and convolution states of every row, beside the slots of its keys and values.

A mixer overwrites its states in every forward, and what a rejected draft token did to them cannot be undone. So every call of a mixer on a
draft's columns is recorded: the states before it and its inputs. Where a row keeps only some of the columns, its states are those before
the call, and the mixer alone runs again on the inputs that were kept: they are what they would have been without the others, since all
layers are causal. Rows that keep equally many columns run together, and nothing runs again where all are kept. With `checkpoints`, columns
are run one by one instead, and the states after the last one kept are taken. A branching draft runs level by level, each node from the
states after its parent, and the states after every node are kept until the commit.

A PAD column would change a row's states, which decay whatever the input. So columns that hold values are moved to the front of their row,
and rows with unequal numbers of them run apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.compat.mixer_cache import States
from mmspec.models.compat.mixers import SINGLE, Mixer
from mmspec.models.layout import Layout
from mmspec.models.recurrent.mixer_run import MixerRun, by_count
from mmspec.models.recurrent.tree import NodePlaces, Point, TreeColumns
from mmspec.models.skipped_parts import Change
from mmspec.utils.devices import to_device


@dataclass(frozen=True, slots=True)
class MixerCall:
    """One call of a mixer on a draft's columns.

    Args:
        run: how it ran.
        before: the states before it.
        inputs: [B, M, D], columns that hold values first.
        counts: columns that hold values, by row.
    """

    run: MixerRun
    before: States | None
    inputs: Tensor
    counts: Sequence[int]


@dataclass(slots=True)
class LayerStates:
    """The states of one mixer, its calls on the draft under way, and in a branching draft the states after every node."""

    mixer: Mixer
    current: States | None = None
    calls: list[MixerCall] = field(default_factory=list)
    nodes: States | None = None


@dataclass(frozen=True, slots=True)
class ForwardColumns:
    """Some adjacent columns of a forward.

    Args:
        first: the first of them.
        stop: the one behind the last.
        counts: how many hold values, by row.
        order: [B, M] puts those first; None where they stand so.
    """

    first: int
    stop: int
    counts: Sequence[int]
    order: Tensor | None = None

    @staticmethod
    def of(slots: Tensor, first: int, stop: int, scratch: int) -> "ForwardColumns":
        """Return columns `first` to `stop` of a forward that writes at `slots` [B, N]. One host synchronisation.

        Args:
            slots: where each column of the forward writes.
            first: the first column.
            stop: the one behind the last.
            scratch: the slot of PAD columns, larger than all others.

        Returns:
            The columns.
        """
        slots = slots[:, first:stop]
        *counts, apart = torch.cat([(slots != scratch).sum(1), (slots.diff(dim=1) < 0).sum()[None]]).tolist()
        packed = apart == 0 or all(count == stop - first for count in counts)
        return ForwardColumns(first, stop, counts, None if packed else slots.argsort(dim=1, stable=True))

    def pack(self, x: Tensor) -> Tensor:
        """Return these columns of `x` [B, N, D], those that hold values first."""
        x = x[:, self.first : self.stop]
        return x if self.order is None else x.gather(1, self.order[..., None].expand(x.shape))

    def unpack(self, out: Tensor) -> Tensor:
        """Return `out` [B, M, D] of packed columns at the columns' own places."""
        return out if self.order is None else torch.empty_like(out).scatter_(1, self.order[..., None].expand(out.shape), out)


class RecurrentStates:
    """The states of all mixers of a model in one session.

    Args:
        mixers: the mixers.
        checkpoints: keep the states after every column of a draft.
        recorded: calls are recorded for `commit`. False for drafts that are never committed.
    """

    def __init__(self, mixers: Sequence[Mixer], checkpoints: bool = False, recorded: bool = True):
        self.layers = [LayerStates(mixer) for mixer in mixers]
        self.checkpoints, self.recorded = checkpoints, recorded
        self.lasting: ForwardColumns | None = None  # of the forward under way: the prompt's, and the pending token after it
        self.drafted: ForwardColumns | None = None  # the others, of a chain
        self.branching: TreeColumns | None = None  # the others, of a tree
        self.device = torch.device("cpu")
        self._start_round()

    def _start_round(self) -> None:
        self.base: list[int] = []  # columns of the draft under way that are not recorded, by row
        self.seen = 0  # columns of it that have been run
        self.chains: list[Tensor] = []  # [B, N] bool, which of those before it branches hold values
        self.places: NodePlaces | None = None

    def fork(self) -> "RecurrentStates":
        """Return states of their own that begin where these stand, for a draft that is never committed. Nothing is copied."""
        other = RecurrentStates([layer.mixer for layer in self.layers], recorded=False)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            theirs.current = mine.current
        return other

    def place(self, layout: Layout, keep: int, scratch: int) -> None:
        """Prepare the next forward.

        Args:
            layout: its columns. Those of the prompt, and the pending token after it, stay whatever is accepted.
            keep: how many of them, the last ones, are the draft's.
            scratch: the slot of PAD columns.
        """
        slots, width, self.device = layout.slots, layout.slots.shape[1], layout.slots.device
        first = width - keep + 1 if layout.opening else 0
        self.lasting = ForwardColumns.of(slots, 0, first, scratch) if first > 0 else None
        if first > 0:
            self._start_round()
            self.chains = [slots[:, first - 1 : first] != scratch]
            self.base = self.chains[0][:, 0].long().tolist()
        self.drafted = self.branching = None
        if layout.parents is not None:
            own = layout.parents[:, 1:] if first > 0 else layout.parents
            self.places = self.places or NodePlaces(torch.cat([slots[:, :0] < 0, *self.chains], dim=1), self.base)
            self.branching = self.places.columns(own, self.seen + keep - own.shape[1], width - own.shape[1])
        elif first < width:
            self.drafted = ForwardColumns.of(slots, first, width, scratch)
            self.chains.append(slots[:, first:] != scratch)
        self.seen += keep

    def changes(self, model: Any) -> dict[nn.Module, Change]:
        """Return the changes to a copy of the model that make its mixers read and write these states.

        Args:
            model: the copy.

        Returns:
            The replacement of each mixer's forward, for `models.skipped_parts.rewired`.
        """
        return {(module := model.get_submodule(layer.mixer.path)): self._change(layer, module) for layer in self.layers}

    def commit(self, keep: Tensor) -> None:
        """End the draft: every row's states are those after the last column it keeps. One host synchronisation.

        Args:
            keep: columns [B, K] of the draft that each row keeps, in path order, -1 for none. Rows that keep none have ended.
        """
        if self.places is None:
            base = self.base or [0] * len(keep)
            kept = [(row, max(0, count - base[row])) for row, count in enumerate((keep >= 0).sum(1).tolist())]
            for layer in self.layers:
                layer.current, layer.calls = self._after(layer, kept), []
        else:
            last = [max(enumerate(line), key=lambda each: (each[1] >= 0, each[0]))[1] for line in keep.tolist()]
            points, places = self.places.places(last)
            for layer in self.layers:
                assert layer.nodes is not None
                nodes = self._after(layer, points).behind(layer.nodes) if points else layer.nodes
                layer.current, layer.calls, layer.nodes = nodes.rows(places), [], None
        self._start_round()

    def _change(self, layer: LayerStates, module: nn.Module) -> Change:
        def change(real: Callable[..., Any]) -> Callable[..., Any]:
            def forward(hidden_states: Tensor, **given: Any) -> Any:
                out = self._advanced(layer, MixerRun(layer.mixer, module, real, given), hidden_states)
                return (out, None) if layer.mixer.pair else out

            return forward

        return change

    def _advanced(self, layer: LayerStates, run: MixerRun, x: Tensor) -> Tensor:
        """The output of a mixer over a forward's columns x [B, N, D], whose states are advanced."""
        made = []
        if self.lasting is not None:
            out, layer.current = by_count(run, self.lasting.pack(x), self.lasting.counts, layer.current)
            made.append(self.lasting.unpack(out))
        if self.drafted is not None:
            made.append(self.drafted.unpack(self._chained(layer, run, self.drafted.pack(x), self.drafted.counts)))
        if self.branching is not None:
            made.append(self._branched(layer, run, x[:, self.branching.start :], self.branching))
        return made[0] if len(made) == 1 else torch.cat(made, dim=1)

    def _chained(self, layer: LayerStates, run: MixerRun, x: Tensor, counts: Sequence[int]) -> Tensor:
        """The output over a chain's packed columns x [B, M, D]; the calls are recorded."""
        if not self.recorded:
            out, layer.current = by_count(run, x, counts, layer.current)
            return out
        size = 1 if self.checkpoints or layer.mixer.form == SINGLE else x.shape[1]
        made = []
        for column in range(0, x.shape[1], size):
            part, own = x[:, column : column + size], [min(max(count - column, 0), size) for count in counts]
            layer.calls.append(MixerCall(run, layer.current, part, own))
            out, layer.current = by_count(run, part, own, layer.current)
            made.append(out)
        return made[0] if len(made) == 1 else torch.cat(made, dim=1)

    def _branched(self, layer: LayerStates, run: MixerRun, x: Tensor, columns: TreeColumns) -> Tensor:
        """The output over a tree's columns x [B, M, D], level by level; the states after every node are kept."""
        points = self._after(layer, columns.points) if columns.points else States()
        nodes, out = points.behind(layer.nodes, columns.nodes), torch.zeros_like(x)
        for level in columns.levels:
            made, new = run.over(x[level.rows, level.columns][:, None], nodes.rows(level.parents), own=True)
            out[level.rows, level.columns] = made[:, 0].to(out.dtype)
            nodes = nodes.over(level.first, new, columns.levels[-1].first + len(columns.levels[-1].rows))
        layer.nodes = nodes
        return out

    def _after(self, layer: LayerStates, points: Sequence[Point]) -> States:
        """The states of a mixer at points of its recorded calls [P]: rows, and columns that hold values before them."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (row, left) in enumerate(points):
            number = 0
            while number < len(layer.calls) and left >= layer.calls[number].counts[row]:
                left -= layer.calls[number].counts[row]
                number += 1
            groups.setdefault((number, left if number < len(layer.calls) else 0), []).append(place)
        found = States()
        for (number, count), places in groups.items():
            rows = [points[place][0] for place in places]
            states = self._replayed(layer, number, count, rows)
            if len(groups) == 1:
                return states
            found = found.put(to_device(places, self.device), states, len(points))
        return found

    def _replayed(self, layer: LayerStates, number: int, count: int, rows: Sequence[int]) -> States:
        """The states of `rows` after `count` columns of a recorded call; the current ones behind the last call."""
        current, index = layer.current or States(), to_device(rows, self.device)
        if number == len(layer.calls):
            return current if _are_all(rows, current) else current.rows(index)
        call = layer.calls[number]
        every = list(rows) == list(range(len(call.inputs)))
        states = call.before if every or call.before is None else call.before.rows(index)
        if count > 0:
            x = call.inputs if every else call.inputs.index_select(0, index)
            _, states = call.run.over(x[:, :count], states, own=not every)
        return states if states is not None else current.rows(index).zeros()


def _are_all(rows: Sequence[int], states: States) -> bool:
    """True if `rows` are all rows of `states` in order."""
    part = states.conv if states.conv is not None else states.recurrent
    return part is not None and list(rows) == list(range(len(part)))
