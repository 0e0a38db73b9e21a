"""The states of a mixer, and the cache it reads and writes them through.

Relies on the methods of `transformers.Cache` that mixers call: `get_conv_state`, `get_recurrent_state`, `update_conv_state`,
`update_recurrent_state`, `has_previous_state` and `is_recording_past` (5.23), and on those of `MiniMaxCache`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class States:
    """The states of one mixer for B rows; None where the mixer has no such state.

    Args:
        conv: [B, C, K], the newest inputs of its convolution.
        recurrent: [B, ...].
    """

    conv: Tensor | None = None
    recurrent: Tensor | None = None

    def copied(self) -> "States":
        """Return a copy, since kernels write in place."""
        return States(*(None if part is None else part.clone() for part in (self.conv, self.recurrent)))

    def rows(self, index: Tensor) -> "States":
        """Return a copy of the rows `index` [R]."""
        return States(*(None if part is None else part.index_select(0, index) for part in (self.conv, self.recurrent)))

    def zeros(self) -> "States":
        """Return states of the same shapes before any column."""
        return States(*(None if part is None else torch.zeros_like(part) for part in (self.conv, self.recurrent)))

    def put(self, index: Tensor, new: "States", rows: int) -> "States":
        """Return these states with rows `index` [R] replaced by `new`. Rows that had no state before have zeros.

        Args:
            index: rows [R].
            new: states of R rows.
            rows: B.

        Returns:
            States of B rows.
        """
        return States(_put(self.conv, index, new.conv, rows), _put(self.recurrent, index, new.recurrent, rows))

    def over(self, first: int, new: "States", rows: int) -> "States":
        """Write `new` over the rows from `first` on, in place.

        Args:
            first: the first row.
            new: states of R rows.
            rows: B, where there were no states.

        Returns:
            These states, of B rows.
        """
        return States(_over(self.conv, first, new.conv, rows), _over(self.recurrent, first, new.recurrent, rows))

    def behind(self, earlier: "States | None", more: int = 0) -> "States":
        """Return these states after the rows of `earlier` ones, with `more` rows of zeros after them."""
        earlier = States() if earlier is None else earlier
        return States(_joined(earlier.conv, self.conv, more), _joined(earlier.recurrent, self.recurrent, more))


def _put(old: Tensor | None, index: Tensor, new: Tensor | None, rows: int) -> Tensor | None:
    if new is None:
        return old
    old = new.new_zeros(rows, *new.shape[1:]) if old is None else old
    return old.index_copy(0, index, new.to(old.dtype))


def _over(old: Tensor | None, first: int, new: Tensor | None, rows: int) -> Tensor | None:
    if new is None:
        return old
    old = new.new_zeros(rows, *new.shape[1:]) if old is None else old
    old[first : first + len(new)] = new
    return old


def _joined(first: Tensor | None, second: Tensor | None, more: int) -> Tensor | None:
    parts = [part for part in (first, second) if part is not None]
    return None if not parts else torch.cat([*parts, parts[0].new_zeros(more, *parts[0].shape[1:])])


class MixerCache:
    """What a mixer gets as its cache: its own states, of the rows that run. Only what may be changed in place is.

    Args:
        states: before the first column; None at the beginning of a sequence.
    """

    def __init__(self, states: States | None):
        self.conv, self.recurrent = (None, None) if states is None else (states.conv, states.recurrent)

    def states(self) -> States:
        """Return the states after the columns that were run."""
        return States(self.conv, self.recurrent)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the convolution state [B, C, K]."""
        return self.conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the recurrent state [B, ...]."""
        return self.recurrent

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Return False at the beginning of a sequence."""
        return self.conv is not None or self.recurrent is not None

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: the convolution state is as long as its kernel."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """Append inputs [B, C, M] of the convolution; return them behind the state, filled up with zeros at the beginning of a sequence."""
        size = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        if self.conv is None:
            whole = F.pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        else:
            size, whole = self.conv.shape[-1], torch.cat([self.conv, conv_states], dim=-1)
        self.conv = whole[..., -size:].clone()
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Replace the recurrent state, whose dtype stays that of the first one."""
        dtype = recurrent_states.dtype if self.recurrent is None else self.recurrent.dtype
        self.recurrent = recurrent_states.to(dtype, copy=True)
        return self.recurrent

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """Return the recurrent state, under MiniMax's name for it."""
        return self.recurrent

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """Replace the recurrent state, under MiniMax's name for it."""
        self.recurrent = linear_cache


@lru_cache(maxsize=4)
def minimax_cache(kind: type) -> type:
    """Return a class of caches `kind` that MiniMax accepts, which asks for an instance of its own class.

    Args:
        kind: a class of transformers caches whose `__init__` calls that of `Cache`.

    Returns:
        The class.
    """
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    return type(f"MiniMax{kind.__name__}", (kind, MiniMaxCache), {"linear_cache": ()})
