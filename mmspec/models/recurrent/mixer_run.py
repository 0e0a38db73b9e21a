"""A mixer run over columns behind given states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.models.changed import replaced
from mmspec.models.compat.cache_name import cache_name_among
from mmspec.models.compat.mixer_cache import MixerCache, States
from mmspec.models.compat.mixers import CONTINUES, FROM_ZERO, Mixer, continued_forward, held_states, limit_changes
from mmspec.utils.devices import to_device


@dataclass(frozen=True, slots=True)
class MixerRun:
    """How a mixer is run.

    Args:
        mixer: the mixer.
        module: its module, of a copy of the model.
        forward: the module's forward, or what stands in for it.
        given: the keyword arguments that its layer passed.
    """

    mixer: Mixer
    module: Any
    forward: Callable[..., Any]
    given: Mapping[str, Any]

    def over(self, x: Tensor, states: States | None, own: bool = False) -> tuple[Tensor, States]:
        """Run the mixer over columns that all hold values.

        Args:
            x: its input [B, M, D].
            states: before the first column. None at the beginning of a sequence.
            own: nothing else needs these states, so they may be changed.

        Returns:
            The output [B, M, D], and the states after the last column.
        """
        single = x.shape[1] == 1
        one_by_one = not single and states is not None and not self._several
        cache = MixerCache(states.copied() if states is not None and not own and (single or one_by_one) else states)
        if one_by_one:
            out = torch.cat([self._called(self.forward, x[:, column : column + 1], cache) for column in range(x.shape[1])], dim=1)
        elif states is None or single:
            out = self._called(self.forward, x, cache)
        elif self.mixer.form == FROM_ZERO:
            out = self._called(continued_forward(self.module, states), x, cache)
        else:
            with replaced(*limit_changes(self.module)):
                out = self._called(self.forward, x, cache)
        return out, cache.states()

    @property
    def _several(self) -> bool:
        """True if several columns behind a state can be run at once. A scan is continued only where no hook stands around the forward."""
        if self.mixer.form == FROM_ZERO:
            return getattr(self.forward, "__func__", None) is type(self.module).forward
        return self.mixer.form == CONTINUES

    def _called(self, forward: Callable[..., Any], x: Tensor, cache: MixerCache) -> Tensor:
        given = {**self.given, cache_name_among(self.given): cache, "attention_mask": None}
        if self.mixer.holds:
            with held_states(self.module, cache, x.shape[1], x.shape[0]) as more:
                out = forward(x, **{**given, **more})
        else:
            out = forward(x, **given)
        return out[0] if self.mixer.pair else out


def by_count(run: MixerRun, x: Tensor, counts: Sequence[int], states: States | None) -> tuple[Tensor, States | None]:
    """Run a mixer on the first columns of every row, rows with equally many together.

    Args:
        run: how the mixer is run.
        x: its input [B, M, D].
        counts: columns of each row that are run.
        states: before the first column; not changed. None at the beginning of a sequence.

    Returns:
        The output [B, M, D], zero where nothing was run, and the states of every row after its last column.
    """
    rows, width = x.shape[:2]
    if all(count == width for count in counts):
        return run.over(x, states)
    out, after = torch.zeros_like(x), states
    for size in sorted(set(counts) - {0}):
        index = to_device([row for row, count in enumerate(counts) if count == size], x.device)
        before = None if states is None else states.rows(index)
        made, new = run.over(x.index_select(0, index)[:, :size], before, own=True)
        out[index, :size] = made.to(out.dtype)
        after = (after or States()).put(index, new, rows)
    return out, after
