"""SlotCache: a preallocated key-value cache in which every row writes at its own slots. The only module that uses transformers' caches.

A row's committed values fill slots 0, 1, 2, ... in order, so a slot's number is its position; a draft's nodes take the slots after them
until `commit` gathers the accepted ones. Rolling back is changing a length: stale slots are never visible. The last slot is scratch, where
PAD columns write. Addresses and shapes stay fixed from one `reserve` to the next.

Keys and values are stored as attention reads them, [B, heads, slots, width]: a write is one scatter, and a forward gets a view of the slots
it attends to. Layers with a sliding window get only those from the furthest one that any column sees.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, EncoderDecoderCache

Store = tuple[Tensor, Tensor]
"""One layer's keys and values, each [B, heads, slots, width]."""


@dataclass(slots=True)
class Cursor:
    """Where the current forward writes: one per cache, shared by its layers."""

    capacity: int
    view: int  # attention reads the slots before this one, all of them by default
    near: int = 0  # and in layers with a sliding window, those from this one on
    contiguous: bool = False  # keys and values are returned in memory order
    slots: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))  # [B, M]
    _indices: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def write(self, slots: Tensor) -> None:
        """The next forward writes its columns at `slots` [B, M]."""
        self.slots = slots
        self._indices.clear()

    def index(self, heads: int, width: int) -> Tensor:
        """[B, heads, M, width] slots, for a scatter; the same for all layers of one shape."""
        if torch.compiler.is_compiling():  # a tensor kept outside the graph would be an output of it
            return self.slots.view(len(self.slots), 1, -1, 1).expand(-1, heads, -1, width)
        if (heads, width) not in self._indices:
            self._indices[heads, width] = self.slots.view(len(self.slots), 1, -1, 1).expand(-1, heads, -1, width)
        return self._indices[heads, width]


class SlotLayer(CacheLayerMixin):
    """One attention layer's keys and values."""

    is_compileable = False  # transformers makes a mask for every single column of such caches
    is_croppable = True

    def __init__(self, cursor: Cursor, slides: bool = False):
        super().__init__()
        self.cursor, self.slides = cursor, slides

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots, from the shapes of the first keys and values."""
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.cursor.capacity, width)
        self.values = value_states.new_zeros(batch, heads, self.cursor.capacity, value_states.shape[-1])
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.values)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, heads, M, width] at the cursor; return the slots in view, [B, heads, view, width]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cursor = self.cursor
        first = cursor.near if self.slides else 0
        found = []
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            store.scatter_(2, cursor.index(new.shape[1], new.shape[3]), new)
            found.append(store.narrow(2, first, cursor.view - first))
        return (found[0].contiguous(), found[1].contiguous()) if cursor.contiguous else (found[0], found[1])

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` [B, K] to `target` [B, K]."""
        for store in (self.keys, self.values):
            shape = (-1, store.shape[1], -1, store.shape[3])
            store.scatter_(2, target[:, None, :, None].expand(shape), store.gather(2, source[:, None, :, None].expand(shape)))

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep rows `rows`, in this order: only those that move are copied, and the addresses stay."""
        for name in ("keys", "values"):
            store: Tensor = getattr(self, name)
            moved = [(new, old) for new, old in enumerate(rows) if new != old]
            if moved:
                new, old = torch.tensor(moved, device=store.device).unbind(1)
                store[new] = store[old]
            setattr(self, name, store[: len(rows)])

    def join_rows(self, other: "SlotLayer") -> None:
        """Append the rows of a layer with as many slots. Places of rows that have left are used again; else memory for as many more is
        allocated.
        """
        for name in ("keys", "values"):
            mine, theirs = getattr(self, name), getattr(other, name)
            rows = len(mine) + len(theirs)
            base = mine._base if mine._base is not None else mine
            if base.shape[1:] != mine.shape[1:] or len(base) < rows:
                base = mine.new_zeros(max(rows, 2 * len(mine)), *mine.shape[1:])
                base[: len(mine)] = mine
            base[len(mine) : rows] = theirs
            setattr(self, name, base[:rows])

    def grow(self, capacity: int) -> None:
        """More slots, contents kept; the scratch slot stays the last one."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : old.shape[2] - 1] = old[:, :, :-1]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(slots in view, the first of them), for transformers' masks."""
        first = self.cursor.near if self.slides else 0
        return self.cursor.view - first, first

    def get_seq_length(self) -> int:
        """0: positions are always given explicitly, never derived from a shared length."""
        return 0

    def get_max_length(self) -> int:
        """Number of slots."""
        return self.cursor.capacity


class BareLayer(CacheLayerMixin):
    """The place of a layer without keys and values, such as one with recurrent states (transformers has `DummyLayer` since 5.23)."""

    def __init__(self):
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to allocate."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Never called: the layer gives no keys and values."""
        raise NotImplementedError("this layer was loaded as one without keys and values")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """No slots."""
        return 0, 0

    def get_seq_length(self) -> int:
        """0, as of every layer of the slot cache."""
        return 0

    def get_max_length(self) -> int:
        """-1: no most length."""
        return -1


class SlotCache(Cache):
    """A transformers cache of `SlotLayer`s for `layers` attention layers and `capacity` slots a row, the scratch slot included.

    Layers `crossing` attend to other inputs than the row's own past: they keep what their first forward gives them. Layers `bare` have no
    keys and values.
    """

    def __init__(
        self,
        layers: int,
        capacity: int,
        crossing: Sequence[int] = (),
        contiguous: bool = False,
        sliding: Collection[int] = (),
        bare: Collection[int] = (),
    ):
        self.cursor = Cursor(capacity, capacity, contiguous=contiguous)
        self.slides = bool(sliding)
        every: list[Any] = [DynamicLayer() if index in crossing else SlotLayer(self.cursor, index in sliding) for index in range(layers)]
        every = [BareLayer() if index in bare else layer for index, layer in enumerate(every)]
        self.slot_layers = [layer for layer in every if isinstance(layer, SlotLayer)]
        self.crossing_layers = [layer for layer in every if isinstance(layer, DynamicLayer)]
        Cache.__init__(self, layers=every)  # not the next class of a subclass

    @property
    def crossed(self) -> bool:
        """True once the crossing layers, if there are any, are filled."""
        return any(layer.is_initialized for layer in self.crossing_layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0, as positions are always given; 1 once the crossing layers are filled: transformers 5.17 asks this before it reads them."""
        return int(self.crossed)

    @property
    def capacity(self) -> int:
        """Slots a row, the scratch slot included."""
        return self.cursor.capacity

    def point(self, slots: Tensor, view: int, near: int = 0) -> None:
        """The next forward writes its columns at `slots` [B, M] and reads the slots before `view`, sliding layers those from `near` on."""
        self.cursor.view, self.cursor.near = view, near
        self.cursor.write(slots)

    def gather(self, source: Tensor, target: Tensor, layers: int | None = None) -> None:
        """Copy slots `source` [B, K] to `target` [B, K] in the first `layers` layers, by default in all."""
        for layer in self.slot_layers[:layers]:
            if layer.is_initialized:
                layer.move(source, target)

    @property
    def joinable(self) -> bool:
        """True if all of it is slots; see `core.rows.changes.ChangesRows`."""
        return not self.crossing_layers

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        for layer in self.slot_layers:
            if layer.is_initialized:
                layer.take_rows(rows)

    def join_rows(self, other: "SlotCache") -> None:
        """Append the rows of a cache of the same model; see `core.rows.changes.ChangesRows`."""
        most = max(self.capacity, other.capacity)
        self._resize(most)
        other._resize(most)
        for mine, theirs in zip(self.slot_layers, other.slot_layers, strict=True):
            if mine.is_initialized:
                mine.join_rows(theirs)

    @contextmanager
    def lent(self, stores: Sequence[Store], capacity: int) -> Iterator[None]:
        """Forwards inside read and write `stores`, one a layer, of `capacity` slots a row, in place of the cache's own."""
        own, before = [(layer.keys, layer.values) for layer in self.slot_layers], self.cursor.capacity
        try:
            self.cursor.capacity = capacity
            for layer, store in zip(self.slot_layers, stores, strict=True):
                layer.keys, layer.values = store
            yield
        finally:
            self.cursor.capacity = before
            for layer, store in zip(self.slot_layers, own, strict=True):
                layer.keys, layer.values = store

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` slots, by doubling; every address changes when it does."""
        if capacity > self.capacity:
            self._resize(max(capacity, 2 * self.capacity))

    def _resize(self, capacity: int) -> None:
        if capacity == self.capacity:
            return
        self.cursor.capacity = capacity
        for layer in self.slot_layers:
            if layer.is_initialized:
                layer.grow(self.cursor.capacity)


def with_cross_attention(cache: SlotCache) -> EncoderDecoderCache:
    """For encoder-decoder models: slots for self-attention, an ordinary cache for the encoder's keys and values."""
    return EncoderDecoderCache(cache, DynamicCache())
