"""GPT-Neo: its attention window is taken from a table by the numbers of the last slots, which are not the columns' positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.models.changed import replaced, with_arguments
from mmspec.models.compat import with_bias_table
from mmspec.models.families.base import DecoderOnly, attention_mask
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache


@dataclass(frozen=True)
class LocalAttention(DecoderOnly):
    """GPT-Neo: layers of kind `local` see `window_size` positions; every layer gets its own mask."""

    capturable: ClassVar[bool] = False
    own_masks: ClassVar[bool] = True

    @classmethod
    def drives(cls, model: Any) -> bool:
        """True for GPT-Neo models."""
        return model.config.model_type == "gpt_neo"

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        model = own_copy(model)
        layers, config, view = model.get_decoder().h, model.config, layout.view
        masks = {"global": attention_mask(layout.visible, model), "local": attention_mask(layout.near(config.window_size), model)}
        kind = dict(zip(layers, config.attention_layers, strict=True))
        open_table = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layout.ids.device).expand(1, 1, view, view)
        tables = [with_bias_table(layer.attn.attention, open_table) for layer in layers]
        with replaced(*tables), with_arguments(layers, lambda layer, kwargs: kwargs | {"attention_mask": masks[kind[layer]]}):
            return self.run(model, layout, cache, keep, states, position_ids=layout.positions)
