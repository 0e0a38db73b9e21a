"""Models with recurrent or convolution states, with attention layers between them (hybrids) or without (Mamba)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.models.compat import argument_names, takes_argument
from mmspec.models.compat.mixer_cache import minimax_cache
from mmspec.models.compat.mixers import ATTENTION_LAYERS, SINGLE, STATEFUL_LAYERS, Mixer, mixers_of, without_attention
from mmspec.models.families.base import DecoderOnly, refuse_other_attention
from mmspec.models.families.multimodal import SIGHT, Modality, Multimodal
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.recurrent.states import RecurrentStates
from mmspec.models.rows.merged import Merged
from mmspec.models.skipped_parts import rewired
from mmspec.models.slot_cache import SlotCache

_OTHER_INPUTS = {"pixel_values", "input_features"}


@dataclass(frozen=True)
class KeepsStates(DecoderOnly):
    """Base of families of models some of whose layers keep states.

    Args:
        mixers: the modules that keep states.
        bare: layers without attention.
        checkpoints: keep the states after every column of a draft, instead of running mixers again on what was accepted.
    """

    mixers: tuple[Mixer, ...] = field(default=(), kw_only=True)
    bare: tuple[int, ...] = field(default=(), kw_only=True)
    checkpoints: bool = field(default=False, kw_only=True)

    capturable: ClassVar[bool] = False

    @property
    def cached_reference(self) -> bool:
        """True where `generate` computes single tokens otherwise than a whole sequence, so that uncached forwards are no reference."""
        return any(mixer.limited for mixer in self.mixers)

    def positions_table(self, model: Any) -> int | None:
        """None: their attention is rotary, or has no positions at all (Jamba, Nemotron-H)."""
        return None

    def pieces(self, model: Any, state: Any) -> tuple[int, int] | None:
        """None where several columns behind a state are not computed as at the beginning of a prompt."""
        whole = any(mixer.limited or mixer.form == SINGLE for mixer in self.mixers)
        return None if whole else super().pieces(model, state)


@dataclass(frozen=True)
class HybridDecoder(KeepsStates):
    """Causal language models. The state of a session is its `RecurrentStates`.

    Args:
        placed: the model takes `position_ids`.
        attends: it makes attention masks, by kind of layer.
    """

    placed: bool = field(default=True, kw_only=True)
    attends: bool = field(default=True, kw_only=True)

    @classmethod
    def drives(cls, model: Any) -> bool:
        """True if `model` reads text only and all its states are those of mixers that are known."""
        return not _OTHER_INPUTS & argument_names(model) and bool(mixers_of(model))

    @classmethod
    def of(cls, model: Any) -> "HybridDecoder":
        """The family of `model`. ValueError for models it cannot drive."""
        refuse_other_attention(model)
        kinds = model.config.get_text_config(decoder=True).layer_types
        bare = tuple(layer for layer, kind in enumerate(kinds) if kind not in ATTENTION_LAYERS)
        placed, attends = takes_argument(model, "position_ids"), not without_attention(model)
        return cls.read(model, mixers=mixers_of(own_copy(model)), bare=bare, placed=placed, attends=attends)

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        kind = minimax_cache(SlotCache) if model.config.model_type == "minimax" else SlotCache
        return kind(self.layers, capacity, sliding=self.sliding, bare=self.bare), RecurrentStates(self.mixers, self.checkpoints)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        state.place(layout, keep, cache.capacity - 1)
        positions = {"position_ids": layout.positions} if self.placed else {}
        with rewired(state.changes(model)):
            return self.run(model, layout, cache, keep, states, attention_mask=self._masks_by_kind(model, layout, cache), **positions)

    def _masks_by_kind(self, model: Any, layout: Layout, cache: SlotCache) -> dict[str, Tensor | None] | None:
        """The masks of one forward by kind of layer; None for Mamba's models, which know no kinds."""
        if not self.attends:
            return None
        found = self._masks(model, layout, self._narrowed(layout, cache)) if len(self.bare) < self.layers else None
        return _by_kind(found)


def _by_kind(masks: Any) -> dict[str, Tensor | None]:
    """Masks of attention layers as masks of all kinds of layers."""
    return {**(masks if isinstance(masks, dict) else {"full_attention": masks}), **dict.fromkeys(STATEFUL_LAYERS)}


# --- pictures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergedStates(Merged):
    """A prompt whose pictures are encoded, and the states of the session that it opened."""

    recurrent: RecurrentStates | None = None
    join_rows = None  # type: ignore[assignment]  # the states do not change their rows

    @staticmethod
    def of(merged: Merged, recurrent: RecurrentStates) -> "MergedStates":
        """Put both together."""
        return MergedStates(**{part.name: getattr(merged, part.name) for part in fields(Merged)}, recurrent=recurrent)

    def fork(self) -> "MergedStates":
        """See `StateCommit.fork`."""
        assert self.recurrent is not None
        return replace(self, recurrent=self.recurrent.fork())

    def commit(self, keep: Tensor) -> None:
        """See `StateCommit.commit`."""
        assert self.recurrent is not None
        self.recurrent.commit(keep)


@dataclass(frozen=True)
class MultimodalHybrid(KeepsStates, Multimodal):
    """Multimodal language models whose language model keeps states. The state of a session is its `MergedStates`."""

    @classmethod
    def of(cls, model: Any, modality: Modality = SIGHT) -> "MultimodalHybrid":
        """The family of `model`. ValueError for models it cannot drive."""
        base = HybridDecoder.of(model)
        return cls.around(base, model, modality, mixers=base.mixers, bare=base.bare)

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, MergedStates]:
        _, merged = Multimodal.begin(self, model, inputs, capacity)
        return SlotCache(self.layers, capacity, bare=self.bare), MergedStates.of(merged, RecurrentStates(self.mixers, self.checkpoints))

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: MergedStates, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        assert state.recurrent is not None
        state.recurrent.place(layout, keep, cache.capacity - 1)
        with rewired(state.recurrent.changes(model)):
            return super().forward(model, layout, cache, state, keep, states)

    def masks_of(self, model: Any, layout: Layout, state: Merged) -> Any:
        """Return the masks by kind of layer; see `Multimodal.masks_of`."""
        return _by_kind(super().masks_of(model, layout, state))
