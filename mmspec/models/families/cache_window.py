"""Models whose config has a window that their masks ignore: the cache of `generate` drops what is further back.

The prompt is then computed with full attention, and every later token sees the window. transformers makes such a cache for a config with
`sliding_window` and no `layer_types` (Moshi's text model).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmspec.models.compat import mask_makers
from mmspec.models.families.base import DecoderOnly, attention_mask
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache


@dataclass(frozen=True)
class CacheWindow(DecoderOnly):
    """Decoders with full masks and a cache of `forgets` positions."""

    cached_reference: ClassVar[bool] = True
    own_masks: ClassVar[bool] = True
    forgets: int = 0

    @classmethod
    def drives(cls, model: Any) -> bool:
        """True if the config of `model` has a window that its modelling module makes no masks for."""
        config = model.config.get_text_config(decoder=True)
        unnamed = getattr(config, "layer_types", None) is None
        return unnamed and bool(getattr(config, "sliding_window", None)) and "create_sliding_window_causal_mask" not in mask_makers(model)

    @classmethod
    def of(cls, model: Any) -> "CacheWindow":
        """The family of `model`. ValueError for models it cannot drive."""
        DecoderOnly.of(model)
        return cls.read(model, forgets=model.config.get_text_config(decoder=True).sliding_window)

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        _, mask = self.prompt(model, inputs)
        return SlotCache(self.layers, capacity), mask.sum(1)  # the state: the lengths of the prompts [B]

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        near = layout.positions[:, :, None] - layout.slot_positions[:, None, :] < self.forgets
        prompt = layout.positions[:, :, None] < state[:, None, None]
        mask = attention_mask(layout.visible & (near | prompt), model)
        return self.run(model, layout, cache, keep, states, position_ids=layout.positions, attention_mask=mask)
