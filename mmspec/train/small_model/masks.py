"""Mask columns behind a text, on which a small model learns to draft a block in one forward (PARD, An et al. 2025, arXiv 2504.18583).

Behind a position stand up to K - 1 mask tokens, which see the text up to there and the masks before them; mask k foretells the token k + 1
places on. They stand behind a random part of the positions, and each further mask behind a part of those (conditional drop of tokens), so
that a window has about three times its columns instead of K times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.compat import is_stateful
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.hybrid import HybridDecoder
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy, refresh

_LEAST = 0.2
"""Share of the positions behind which even the last mask stands."""


@dataclass(frozen=True)
class MaskColumns:
    """The mask columns of a training step.

    Args:
        tokens: draft tokens of a block, K.
        mask_id: id of the mask token; None for one that `fitted` finds.
        kept: share of the positions with a mask of one depth that have one of the next, down to a fifth of all positions.

    Raises:
        ValueError: for numbers out of range.
    """

    tokens: int
    mask_id: int | None = None
    kept: float = 0.7

    def __post_init__(self):
        if self.tokens < 2 or not 0 < self.kept <= 1:
            raise ValueError(f"a block has {self.tokens} draft tokens, of which {self.kept} are kept: give 2 or more, and a share up to 1")

    def fitted(self, ids: Tensor, size: int, special: Sequence[int] = ()) -> "MaskColumns":
        """Return these columns with a mask token that a model has.

        Args:
            ids: LongTensor, the text that is trained on. Without a `mask_id` the largest id is taken that it does not hold.
            size: number of the model's ids.
            special: ids that are not taken, such as end tokens.

        Raises:
            ValueError: for a `mask_id` that is no id of the model, and where none is unused.
        """
        if self.mask_id is not None:
            if not 0 <= self.mask_id < size:
                raise ValueError(f"the mask token is {self.mask_id}: give an id from 0 to {size - 1}")
            return self
        free = torch.ones(size, dtype=torch.bool)
        free[ids.flatten().cpu()] = False
        free[[each for each in special if 0 <= each < size]] = False
        if not free.any():
            raise ValueError(f"the text holds all {size} ids: name a mask token")
        return replace(self, mask_id=int(free.nonzero().max()))

    @property
    def shares(self) -> list[float]:
        """The share of the positions that have a column of each depth: 1 for the text itself, then for every mask."""
        return [1.0, *(max(self.kept**depth, min(_LEAST, self.kept)) for depth in range(1, self.tokens))]

    def run(self, model: nn.Module, ids: Tensor, own: Tensor, seeds: Sequence[int]) -> "MaskedStates":
        """Run a text and its masks in one forward.

        Args:
            model: the small model.
            ids: LongTensor [B, W], padded behind.
            own: bool [B, W], the tokens that count; masks stand behind positions before such tokens first.
            seeds: one for each row, from which its masked positions are drawn.

        Returns:
            The states of all columns.

        Raises:
            ValueError: for a model that takes no mask over its columns, and before a mask token is named.
        """
        if self.mask_id is None:
            raise ValueError("the mask columns have no mask token: call fitted() with the text first")
        anchors, depths = self._drawn(own, seeds)
        positions, last = anchors + depths, ids.shape[1] - 1
        text = torch.where(depths == 0, ids.gather(1, anchors), self.mask_id)
        earlier = (depths == 0) & (anchors[:, None] <= anchors[..., None])
        same = (anchors[:, None] == anchors[..., None]) & (depths <= depths[:, None])
        places = positions.clamp(max=last)  # columns past the text do not count
        layout = Layout(text, places, places, places.shape[1], earlier | same, places)
        counted = own.roll(-1, 1).gather(1, places) & (positions < last)
        return MaskedStates(_last_states(model, layout), places, depths, counted)

    def _drawn(self, own: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The position of the text that each column [B, C] stands behind, and its depth [C]: 0 for the text itself."""
        wide = own.shape[1]
        keys = torch.stack([torch.rand(wide, generator=torch.Generator().manual_seed(seed)) for seed in seeds]).to(own.device)
        helps = nn.functional.pad(own[:, 2:], (0, 2))  # the first mask behind a position foretells the token two places on
        order = (keys + (~helps).float()).argsort(1)
        counts = [max(1, round(wide * share)) for share in self.shares]
        chosen = [order[:, :count].sort(1).values for count in counts]
        return torch.cat(chosen, 1), torch.cat([torch.full((count,), k, device=own.device) for k, count in enumerate(counts)])


def mask_columns(tokens: int | None, mask_id: int | None = None, kept: float | None = None) -> MaskColumns | None:
    """Return the mask columns of a request, None for a model that is to draft token by token.

    Args:
        tokens: draft tokens of a block; None for no masks.
        mask_id: id of the mask token, None for one that `MaskColumns.fitted` finds.
        kept: see `MaskColumns`; None for 0.7.

    Raises:
        ValueError: for a mask token or a share without `tokens`, and as `MaskColumns`.
    """
    if tokens is None:
        if mask_id is not None or kept is not None:
            raise ValueError(f"the mask token is {mask_id} and the share kept {kept}, but neither is read without --parallel: give it")
        return None
    return MaskColumns(tokens, mask_id, *(() if kept is None else (kept,)))


def refuse_unmasked(model: Any) -> None:
    """Raise ValueError for a small model whose layers read no mask, so that its masks cannot stand behind many positions at once."""
    if is_stateful(model) or HybridDecoder.drives(model):
        raise ValueError(
            f"{type(model).__name__} has layers with states, which read no mask, so it cannot learn to draft a block: leave --parallel out"
        )


@dataclass(frozen=True)
class MaskedStates:
    """The states of a text and of its mask columns.

    Attributes:
        hidden: last hidden states [B, C, H].
        positions: [B, C] the position of the text that a column stands at; it foretells the token after that.
        depths: [C] masks before and at the column, 0 for the text itself.
        counted: bool [B, C], the token that is foretold counts.
    """

    hidden: Tensor
    positions: Tensor
    depths: Tensor
    counted: Tensor


def _last_states(model: nn.Module, layout: Layout) -> Tensor:
    """The last hidden states [B, C, H] of a layout's columns, with what the backward pass needs."""
    refresh(model)
    copy = own_copy(model)
    found: list[Tensor] = []
    handle = copy.get_decoder().register_forward_hook(lambda module, args, out: found.append(out.last_hidden_state))
    try:
        DecoderOnly.of(model).forward(copy, layout, None, None, 1)  # pyright: ignore[reportArgumentType]
    finally:
        handle.remove()
    return found[0]
