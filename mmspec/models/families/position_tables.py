"""Decoders that look up positions in a table, counted from a shared length: BART, Marian, TrOCR and similar without encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmspec.models.changed import replaced
from mmspec.models.compat import takes_argument
from mmspec.models.compat.cache_name import counts_from_cache
from mmspec.models.families.base import DecoderOnly, refuse_unfit_decoder, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache


def position_table(model: Any) -> nn.Module | None:
    """The decoder's module that embeds positions counted from a shared length; None if there is none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    table = getattr(getattr(decoder, "decoder", decoder), "embed_positions", None)
    return table if isinstance(table, nn.Module) and counts_from_cache(table) else None


def at_positions(table: nn.Module, positions: Tensor, view: int) -> Callable[..., Tensor]:
    """A forward for a position table that gives each column the row of its own position.

    Args:
        table: its own forward takes ids [B, M] or their shape first.
        positions: [B, M] logical positions, all below `view`.
        view: number of slots in view.

    Returns:
        A function that takes what `embed` takes and returns embeddings [B, M, D].
    """

    embed, size = table.forward, min(view, getattr(table, "num_embeddings", view) - getattr(table, "offset", 0))

    by_shape = next(iter(signature(embed).parameters)).endswith("shape")

    def forward(*_: Any, **__: Any) -> Tensor:
        rows = embed(torch.Size((1, size)) if by_shape else torch.full((1, size), 2, device=positions.device))
        return nn.functional.embedding(positions.clamp(max=size - 1), rows.reshape(size, -1))

    return forward


@dataclass(frozen=True)
class PositionTable(DecoderOnly):
    """Decoders without `position_ids` whose position table is replaced, for one forward, by one that reads each column's position."""

    capturable: ClassVar[bool] = False

    @classmethod
    def drives(cls, model: Any) -> bool:
        """True if `model` takes no positions but has a table of them."""
        return not takes_argument(model, "position_ids") and position_table(model) is not None

    @classmethod
    def of(cls, model: Any) -> "PositionTable":
        """The family of `model`. ValueError for models it cannot drive."""
        refuse_unsupported(model)
        refuse_unfit_decoder(model)
        return cls.read(model)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        model = own_copy(model)
        table: Any = position_table(model)
        with replaced((table, "forward", at_positions(table, layout.positions, layout.view))):
            return self.run(model, layout, cache, keep, states)
