"""Prompts with images and audio as the decoder reads them, by row: rows are kept, joined and padded to one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.rows.changes import rows_of

if TYPE_CHECKING:
    from mmspec.models.layout import Layout


@dataclass(frozen=True, slots=True)
class Merged:
    """A prompt whose images and audio are encoded, packed to the left. A target and its drafter may hold the same one."""

    joinable: ClassVar[bool] = True

    embeds: Tensor  # [B, P, D] what the decoder reads
    lengths: Tensor  # [B]
    axes: Tensor | None = None  # [A, B, P] positions along each axis, where there are several
    sees: Mapping[str, Tensor] | None = None  # [B, P, P] mask by kind of attention, where it is not causal; all False in rows where it is
    deep: Tensor | None = None  # [L, B, P, D] added after each of the first L layers

    def over(self, embeds: Tensor, positions: Tensor) -> Tensor:
        """`embeds` [B, M, D] of the ids at `positions` [B, M], with the prompt's own embeddings within it."""
        return torch.where(self._within(positions)[..., None], rows_at(self.embeds, self._place(positions)), embeds)

    def along(self, positions: Tensor) -> Tensor:
        """[A, B, M]: logical `positions` [B, M] along each axis. After the prompt each axis continues from its last position there.

        That is what `generate` does. The last position is often not the greatest: a video's time axis can be ahead of the text after it.
        """
        if self.axes is None:
            return positions
        last = self.axes.gather(2, (self.lengths - 1)[:, None].expand(len(self.axes), -1, 1))  # [A, B, 1]
        inside = self.axes.gather(2, self._place(positions).expand(len(self.axes), -1, -1))
        return torch.where(self._within(positions), inside, last + 1 + positions - self.lengths[:, None])

    def visible(self, kind: str, layout: "Layout", visible: Tensor) -> Tensor:
        """`visible` [B, M, S] with the mask of the prompt's columns in attention of this `kind`."""
        if self.sees is None or kind not in self.sees:
            return visible
        rows = rows_at(self.sees[kind], self._place(layout.positions))
        rows = nn.functional.pad(rows, (0, visible.shape[-1] - rows.shape[-1])) if rows.shape[-1] < visible.shape[-1] else rows
        real = self._within(layout.positions) & (layout.slots == layout.positions)  # PAD columns stand in the scratch slot
        real = real & rows.any(-1)
        return torch.where(real[..., None], rows[..., : visible.shape[-1]], visible)

    def deepened(self, positions: Tensor) -> dict[str, Any]:
        """The arguments of Qwen3-VL's decoder for its inner layers, for columns at `positions` [B, M]; empty if there are none."""
        if self.deep is None:
            return {}
        within = self._within(positions)
        added = self.deep.gather(2, self._place(positions)[None, ..., None].expand(len(self.deep), -1, -1, self.deep.shape[-1]))
        return {"visual_pos_masks": within, "deepstack_visual_embeds": [layer[within] for layer in added]}

    def without(self, kept: Tensor) -> "Merged":
        """Only the positions `kept` [B, P] bool, packed again. Positions become consecutive, as for drafters with pruned images."""
        order, lengths = torch.argsort((~kept).long(), dim=1, stable=True), kept.sum(1)
        sees = self.sees and {kind: rows_at(m, order).gather(2, order[:, None].expand_as(m)) for kind, m in self.sees.items()}
        deep = None if self.deep is None else self.deep.gather(2, order[None, ..., None].expand_as(self.deep))
        return replace(self, embeds=rows_at(self.embeds, order), lengths=lengths, axes=repacked(self.axes, order), sees=sees, deep=deep)

    def take_rows(self, rows: Sequence[int]) -> Self:
        """Return some rows.

        Args:
            rows: their numbers, in their new order.
        """
        axes, deep = (None if part is None else rows_of(part.transpose(0, 1), rows).transpose(0, 1) for part in (self.axes, self.deep))
        sees = self.sees and {kind: rows_of(mask, rows) for kind, mask in self.sees.items()}
        embeds, lengths = rows_of(self.embeds, rows), rows_of(self.lengths, rows)
        return replace(self, embeds=embeds, lengths=lengths, axes=axes, sees=sees, deep=deep)

    def join_rows(self, other: "Merged") -> "Merged":
        """Return the rows of both.

        Args:
            other: prompts of the same model.
        """
        return stacked([self, other])

    def _within(self, positions: Tensor) -> Tensor:
        return positions < self.lengths[:, None]

    def _place(self, positions: Tensor) -> Tensor:
        return positions.clamp(max=self.embeds.shape[1] - 1)


def rows_at(values: Tensor, order: Tensor) -> Tensor:
    """Return `values` [B, P, ...] at `order` [B, M]."""
    return values[torch.arange(len(values), device=values.device)[:, None], order]


def repacked(axes: Tensor | None, order: Tensor) -> Tensor | None:
    """Return positions `axes` [A, B, P] along each axis at `order` [B, P]; None for None."""
    return None if axes is None else axes.gather(2, order.expand(len(axes), -1, -1))


def stacked(states: Sequence[Merged]) -> Merged:
    """Concatenate prompts of one model by rows. Prompts without what others have get what stands for a text.

    Args:
        states: the prompts.

    Returns:
        All rows, as long as the longest.
    """
    size = max(state.embeds.shape[1] for state in states)
    whole = [_completed(_padded(state, size), states) for state in states]
    names = [part.name for part in fields(Merged)]
    made: dict[str, Any] = {name: _joined(name, [getattr(state, name) for state in whole]) for name in names}
    return Merged(**made)


def _joined(name: str, parts: Sequence[Any]) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], Mapping):
        return {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}
    return torch.cat(list(parts), 1 if name in ("axes", "deep") else 0)


def _padded(state: Merged, size: int) -> Merged:
    """`state` with `size` positions a row."""
    more = size - state.embeds.shape[1]

    def pad(values: Tensor, *sides: int) -> Tensor:
        return nn.functional.pad(values, sides)

    return replace(
        state,
        embeds=pad(state.embeds, 0, 0, 0, more),
        axes=None if state.axes is None else pad(state.axes, 0, more),
        sees=state.sees and {kind: pad(seen, 0, more, 0, more) for kind, seen in state.sees.items()},
        deep=None if state.deep is None else pad(state.deep, 0, 0, 0, more),
    )


def _completed(state: Merged, others: Sequence[Merged]) -> Merged:
    """`state` with every field that any of the others has, filled as for a text."""
    axes, deep = (next((getattr(o, name) for o in others if getattr(o, name) is not None), None) for name in ("axes", "deep"))
    rows, size = state.embeds.shape[:2]
    kinds = dict.fromkeys(kind for other in others for kind in other.sees or ())
    own = dict(state.sees or {})
    causal = state.embeds.new_zeros(rows, size, size, dtype=torch.bool) if len(own) < len(kinds) else None
    place = torch.arange(size, device=state.embeds.device)
    return replace(
        state,
        axes=place.expand(len(axes), rows, -1) if state.axes is None and axes is not None else state.axes,
        sees={kind: own.get(kind, causal) for kind in kinds} or None,
        deep=deep.new_zeros(len(deep), *state.embeds.shape) if state.deep is None and deep is not None else state.deep,
    )
