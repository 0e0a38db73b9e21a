"""Rotary embeddings whose frequencies depend on the length of the sequence: dynamic NTK and longrope.

transformers takes the length from the longest position of a forward, so drafts and other rows would change it. Here every column has the
length that plain decoding has when it computes that column: the prompt's length within the prompt, its own position + 1 after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmspec.models.changed import replaced
from mmspec.models.compat import rope_at_length, rope_types, ropes_by_length
from mmspec.models.families.base import DecoderOnly
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache


@dataclass(frozen=True)
class RopeLengths(DecoderOnly):
    """Decoders with dynamic NTK or longrope.

    Up to the length `original` frequencies are constant; `switches` means that there are two sets of them, for shorter and longer sequences
    (longrope).
    """

    capturable: ClassVar[bool] = False
    cached_reference: ClassVar[bool] = True
    original: int = 0
    switches: bool = False

    @classmethod
    def drives(cls, model: Any) -> bool:
        """True if frequencies of `model` depend on the length of the sequence."""
        return bool(ropes_by_length(model))

    @classmethod
    def of(cls, model: Any) -> "RopeLengths":
        """The family of `model`. ValueError for models it cannot drive."""
        DecoderOnly.of(model)  # refuses what no decoder-only family can drive
        config = model.config.get_text_config(decoder=True)
        kinds = {kind for rotary in ropes_by_length(model) for kind in rope_types(rotary)}
        switches = "longrope" in kinds
        if switches and any("dynamic" in kind for kind in kinds):
            raise ValueError(f"{type(model).__name__} mixes longrope with dynamic rope, which is not supported")
        original = _original(config) if switches else config.max_position_embeddings
        return cls.read(model, original=original, switches=switches)

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        _, mask = self.prompt(model, inputs)
        return SlotCache(self.layers, capacity), mask.sum(1)  # the state: the lengths of the prompts [B]

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        model, lengths = own_copy(model), self.lengths(layout, state)
        if self.switches:
            lengths = torch.where(lengths > self.original, layout.view + self.original, self.original)
        lengths = lengths.clamp(min=self.original)
        every = lengths.unique().tolist()

        def forward(rotary: nn.Module) -> Any:
            def own(x: Tensor, position_ids: Tensor, *args: Any, **more: Any) -> tuple[Tensor, ...]:
                names = dict(zip(("layer_type",), args, strict=False)) | more
                found = None
                for length in every:
                    out = rope_at_length(rotary, x, layout.positions, length, **names)
                    here = lengths == length
                    pairs = zip(found or out, out, strict=True)
                    found = tuple(torch.where(here[..., None], new, old) for old, new in pairs)
                return found or ()

            return own

        with replaced(*((rotary, "forward", forward(rotary)) for rotary in ropes_by_length(model))):
            return self.run(model, layout, cache, keep, states, position_ids=layout.positions)

    def lengths(self, layout: Layout, state: Any) -> Tensor:
        """[B, M]: the length of the sequence, in plain decoding, when a column is computed."""
        return torch.maximum(layout.positions + 1, state[:, None])


def _original(config: Any) -> int:
    """The length up to which longrope's short factors hold."""
    parameters = config.rope_parameters
    inner = [value for value in parameters.values() if isinstance(value, Mapping)] or [parameters]
    return next(one["original_max_position_embeddings"] for one in inner if one.get("rope_type") == "longrope")


def stretched_limit(model: Any) -> int | None:
    """The longest sequence dynamic NTK is meant for, `factor` times the trained length; None for models without it."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    if not isinstance(parameters, Mapping) or "dynamic" not in str(parameters.get("rope_type")) or not parameters.get("factor"):
        return None
    return int(config.max_position_embeddings * parameters["factor"])
