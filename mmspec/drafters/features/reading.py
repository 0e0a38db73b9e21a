"""Columns that a feature net reads of a prompt: each a value with the target's state before it, pictures included.

A net's `reading` selects the columns: all of them, the text alone (`hivis`), or pictures compressed to a few columns (`vispec`). Training
and generation use the same method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.rows.changes import rows_of
from mmspec.models.rows.merged import Merged
from mmspec.models.target import HFSession

_OF_ONE_SIZE = ("llava", "paligemma", "vipllava")  # their pictures may touch, and all take as many positions


@dataclass(frozen=True, slots=True)
class VisionView:
    """Positions of pictures (or sounds) in prompts of P values, and their embeddings in the target's decoder."""

    embeds: Tensor  # [B, P, D]
    pictures: Tensor  # [B, P] which picture of its row a position is of, from 1 on; 0 where there is text

    def newest(self) -> Tensor:
        """Return [B, P] the number of the picture at or before each position, 0 before the first."""
        return self.pictures.cummax(1).values


def sight_of(session: HFSession, ids: Tensor, lengths: Tensor) -> VisionView | None:
    """Return the pictures in prompts `ids` [B, P] of `lengths` [B] that `session` was opened with; None where the target reads none."""
    state, model = session.state, session.target.model
    if not isinstance(state, Merged) or state.embeds.shape[1] != ids.shape[1]:
        return None
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    marks = getattr(session.target.family, "placeholders", ())
    return VisionView(state.embeds, numbered_pictures(ids.masked_fill(~real, -1), marks, positions_of_a_picture(model)))


def numbered_pictures(ids: Tensor, placeholders: tuple[int, ...], size: int | None = None) -> Tensor:
    """Return [B, P] which picture of its row each of `ids` [B, P] belongs to, from 1; 0 for other ids.

    Args:
        ids: [B, P] token ids.
        placeholders: ids that stand for pictures. A picture is a run of one placeholder.
        size: positions per picture, where adjacent pictures are to be separated; None to count a run as one picture.
    """
    marked = torch.isin(ids, torch.tensor(placeholders, device=ids.device))
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    begins = marked.clone()
    begins[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    if size is not None:
        since = place - torch.where(begins, place, 0).cummax(1).values
        begins = begins | (marked & (since % size == 0))
    return torch.where(marked, begins.cumsum(1), 0)


def positions_of_a_picture(model: Any) -> int | None:
    """Return the number of positions of every picture of `model`, where they are all equal and may be adjacent; else None."""
    config = model.config
    if config.model_type not in _OF_ONE_SIZE:
        return None
    size = getattr(config, "image_seq_length", None) or getattr(config.get_text_config(), "num_image_tokens", None)
    return size if size and size > 1 else None  # configs say 1 where pictures differ


@dataclass(frozen=True, slots=True)
class Columns:
    """A prompt's C columns, packed to the left. Later columns are in the slots after them."""

    values: Tensor  # [B, C] ids
    lengths: Tensor  # [B]
    features: Tensor  # [B, C, F] the target's states before the values
    vision: VisionView | None = None  # of the whole prompt [B, C + 1], whose first value has no column; None: no pictures
    embeds: Tensor | None = None  # [B, C, D] what stands for the values; None: their ids' embeddings
    beside: Tensor | None = None  # [B, C + 1, H] what `enter` is given with each column's state, and last with all later columns'
    places: Tensor | None = None  # [B, C] each column's number among all the prompt's; None: 0, 1, 2, ...
    gone: Tensor | None = None  # [B] how many places behind their own later columns' slots are; None: positions close up

    @staticmethod
    def of(values: Tensor, lengths: Tensor, features: Tensor, vision: VisionView | None = None) -> "Columns":
        """Return all columns, pictures as the target's decoder reads them."""
        return Columns(values, lengths, features, vision, None if vision is None else vision.embeds[:, 1:])

    def kept(self, wanted: Tensor, closing_up: bool) -> "Columns":
        """Return the `wanted` [B, C] columns only. One host synchronisation.

        Args:
            wanted: [B, C] bool.
            closing_up: renumber positions without gaps; else all columns keep theirs.
        """
        wanted = wanted & (torch.arange(wanted.shape[1], device=wanted.device) < self.lengths[:, None])
        many = wanted.sum(1)
        order = torch.argsort((~wanted).long(), dim=1, stable=True)[:, : int(many.max())]
        beside = None if self.beside is None else torch.cat([_at(self.beside, order), self.beside[:, -1:]], 1)
        return replace(
            self,
            values=self.values.gather(1, order),
            lengths=many,
            features=_at(self.features, order),
            embeds=None if self.embeds is None else _at(self.embeds, order),
            beside=beside,
            places=order,
            gone=None if closing_up else self.lengths - many,
        )

    def over(self, embeds: Tensor, slots: Tensor) -> Tensor:
        """Return `embeds` [B, M, H] of the ids in `slots` [B, M], with the prompt's own embeddings inside it. A net of another width reads
        the ids' embeddings only.
        """
        if self.embeds is None or self.embeds.shape[1] == 0 or self.embeds.shape[-1] != embeds.shape[-1]:
            return embeds
        own = _at(self.embeds, slots.clamp(max=self.embeds.shape[1] - 1)).to(embeds.dtype)
        return torch.where((slots < self.lengths[:, None])[..., None], own, embeds)

    def along(self, slots: Tensor) -> Tensor:
        """Return the positions [B, M] of the columns in `slots` [B, M]."""
        if self.gone is None or self.places is None:
            return slots
        later = slots + self.gone[:, None]
        if self.places.shape[1] == 0:
            return later
        return torch.where(slots < self.lengths[:, None], self.places.gather(1, slots.clamp(max=self.places.shape[1] - 1)), later)

    def take_rows(self, rows: Sequence[int]) -> "Columns":
        """Return what later columns read of some rows' prompts.

        Args:
            rows: numbers of the rows.
        """
        kept = self._later
        beside, gone = (None if part is None else rows_of(part, rows) for part in (kept.beside, kept.gone))
        return replace(kept, values=rows_of(kept.values, rows), lengths=rows_of(kept.lengths, rows), beside=beside, gone=gone)

    def join_rows(self, other: "Columns") -> "Columns":
        """Return what later columns read of the prompts of both.

        Args:
            other: prompts that the same net reads.
        """
        mine, theirs = self._later, other._later
        values, lengths = torch.cat([mine.values, theirs.values]), torch.cat([mine.lengths, theirs.lengths])
        beside, gone = _both(mine.beside, theirs.beside, mine, theirs), _both(mine.gone, theirs.gone, mine, theirs)
        return replace(mine, values=values, lengths=lengths, beside=beside, gone=gone)

    @property
    def _later(self) -> "Columns":
        """No columns, and what is read of these beside later ones."""
        none, beside = self.values[:, :0], None if self.beside is None else self.beside[:, -1:]
        return Columns(none, self.lengths, self.features[:0], beside=beside, places=none, gone=self.gone)

    def spread(self, found: Tensor, size: int) -> Tensor:
        """Return `found` [B, C, ...] at the columns' numbers among all `size`; zeros elsewhere."""
        if self.places is None:
            return found
        places = self.places.view(*self.places.shape, *(1 for _ in found.shape[2:])).expand_as(found)
        return found.new_zeros(len(found), size, *found.shape[2:]).scatter(1, places, found)


def _both(one: Tensor | None, other: Tensor | None, mine: Columns, theirs: Columns) -> Tensor | None:
    """Rows of `one`, which `mine` reads, and of `other`, which `theirs` does; zeros for the side that reads none."""
    if one is None or other is None:
        found = one if other is None else other
        if found is None:
            return None
        one, other = (
            found.new_zeros(len(of.lengths), *found.shape[1:]) if part is None else part for part, of in ((one, mine), (other, theirs))
        )
    return torch.cat([one, other])


def _at(states: Tensor, columns: Tensor) -> Tensor:
    """`states` [B, C, H] at `columns` [B, M]."""
    return states.gather(1, columns[..., None].expand(*columns.shape, states.shape[-1]))
