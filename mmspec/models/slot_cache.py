"""SlotCache: a preallocated key-value cache in which every row writes at its own slots. The only module that uses transformers' caches.

A row's committed values fill slots 0, 1, 2, ... in order, so a slot's number is its position; a draft's nodes take the slots after them
until `commit` gathers the accepted ones. Rolling back is changing a length: stale slots are never visible. The last slot is scratch, where
PAD columns write. Addresses and shapes stay fixed from one `reserve` to the next.

Keys and values are stored [B, slots, heads, width], so a write is one row-indexed copy, and returned as [B, heads, slots, width].
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, EncoderDecoderCache

Store = tuple[Tensor, Tensor]
"""One layer's keys and values, each [B, slots, heads, width]."""


@dataclass(slots=True)
class Cursor:
    """Where the current forward writes: one per cache, shared by its layers."""

    capacity: int
    view: int  # slots attention reads: the first ones, all of them by default
    contiguous: bool = False  # keys and values are returned in memory order
    flat: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # [B * M] row * capacity + slot


class SlotLayer(CacheLayerMixin):
    """One attention layer's keys and values."""

    is_compileable = True
    is_croppable = True

    def __init__(self, cursor: Cursor):
        super().__init__()
        self.cursor = cursor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots, from the shapes of the first keys and values."""
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(batch, self.cursor.capacity, heads, width)
        self.values = value_states.new_zeros(batch, self.cursor.capacity, heads, value_states.shape[-1])
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.values)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, heads, M, width] at the cursor; return the slots in view, [B, heads, view, width]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            new = new.transpose(1, 2)
            store.view(-1, *store.shape[2:]).index_copy_(0, self.cursor.flat, new.reshape(-1, *new.shape[2:]))
        view = self.cursor.view
        keys, values = self.keys[:, :view].transpose(1, 2), self.values[:, :view].transpose(1, 2)  # pyright: ignore[reportOptionalSubscript]
        return (keys.contiguous(), values.contiguous()) if self.cursor.contiguous else (keys, values)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` to `target`, both flat indices [B * K]."""
        for store in (self.keys, self.values):
            rows = store.view(-1, *store.shape[2:])
            rows.index_copy_(0, target, rows.index_select(0, source))

    def grow(self, capacity: int) -> None:
        """More slots, contents kept; the scratch slot stays the last one."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], capacity, *old.shape[2:])
            new[:, : old.shape[1] - 1] = old[:, :-1]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(slots in view, 0), for transformers' masks."""
        return self.cursor.view, 0

    def get_seq_length(self) -> int:
        """0: positions are always given explicitly, never derived from a shared length."""
        return 0

    def get_max_length(self) -> int:
        """Number of slots."""
        return self.cursor.capacity


class SlotCache(Cache):
    """A transformers cache of `SlotLayer`s for `layers` attention layers and `capacity` slots a row, the scratch slot included.

    Layers `crossing` attend to other inputs than the row's own past: they keep what their first forward gives them.
    """

    def __init__(self, layers: int, capacity: int, crossing: Sequence[int] = (), contiguous: bool = False):
        self.cursor = Cursor(capacity, capacity, contiguous)
        every: list[Any] = [DynamicLayer() if index in crossing else SlotLayer(self.cursor) for index in range(layers)]
        self.slot_layers = [layer for layer in every if isinstance(layer, SlotLayer)]
        self.crossing_layers = [layer for layer in every if isinstance(layer, DynamicLayer)]
        super().__init__(layers=every)

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

    def point(self, slots: Tensor, view: int) -> None:
        """The next forward writes its columns at `slots` [B, M] and reads the first `view` slots."""
        self.cursor.view = view
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        self.cursor.flat = (rows * self.capacity + slots).flatten()

    def gather(self, source: Tensor, target: Tensor, layers: int | None = None) -> None:
        """Copy slots `source` [B, K] to `target` [B, K] in the first `layers` layers, by default in all."""
        rows = torch.arange(source.shape[0], device=source.device)[:, None] * self.capacity
        for layer in self.slot_layers[:layers]:
            if layer.is_initialized:
                layer.move((rows + source).flatten(), (rows + target).flatten())

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
        if capacity <= self.capacity:
            return
        self.cursor.capacity = max(capacity, 2 * self.capacity)
        for layer in self.slot_layers:
            if layer.is_initialized:
                layer.grow(self.cursor.capacity)


def with_cross_attention(cache: SlotCache) -> EncoderDecoderCache:
    """For encoder-decoder models: slots for self-attention, an ordinary cache for the encoder's keys and values."""
    return EncoderDecoderCache(cache, DynamicCache())
