"""What a feature net takes in of a prompt: columns, each a value beside the target's state before it, and the pictures among them.

A net says by its `reading` which columns it takes and what stands in them: all of them, pictures included, or the text alone
(`hivis`), or pictures drawn together into a few columns (`vispec`). Training and generation ask it alike.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.models.families.multimodal import Merged
from mmspec.models.target import HFSession

_OF_ONE_SIZE = ("llava", "paligemma", "vipllava")  # their pictures may touch, and all take as many positions


@dataclass(frozen=True, slots=True)
class VisionView:
    """Where pictures (or sounds) stand in prompts of P values, and what the target's decoder reads of them."""

    embeds: Tensor  # [B, P, D]
    pictures: Tensor  # [B, P] which picture of its row a position is of, from 1 on; 0 where there is text

    def newest(self) -> Tensor:
        """[B, P] the picture at or before each position, 0 before the first."""
        return self.pictures.cummax(1).values


def sight_of(session: HFSession, ids: Tensor, lengths: Tensor) -> VisionView | None:
    """The pictures in prompts `ids` [B, P] of `lengths` [B] that `session` was begun with; None where its target does not see any."""
    state, model = session.state, session.target.model
    if not isinstance(state, Merged) or state.embeds.shape[1] != ids.shape[1]:
        return None
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    marks = getattr(session.target.family, "placeholders", ())
    return VisionView(state.embeds, numbered_pictures(ids.masked_fill(~real, -1), marks, positions_of_a_picture(model)))


def numbered_pictures(ids: Tensor, placeholders: tuple[int, ...], size: int | None = None) -> Tensor:
    """[B, P] which picture of its row each of `ids` [B, P] is of, from 1 on; 0 for what is no placeholder.

    A picture is a run of one placeholder. Pictures that touch are told apart where each takes `size` positions; else they count as one.
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
    """How many positions every picture of `model` takes, where they are all of one size and may touch; else None."""
    config = model.config
    if config.model_type not in _OF_ONE_SIZE:
        return None
    size = getattr(config, "image_seq_length", None) or getattr(config.get_text_config(), "num_image_tokens", None)
    return size if size and size > 1 else None  # 1 is said where pictures differ


@dataclass(frozen=True, slots=True)
class Columns:
    """A prompt's C columns, packed to the left. Later columns stand in the slots behind them."""

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
        """All columns, pictures as the target's decoder reads them."""
        return Columns(values, lengths, features, vision, None if vision is None else vision.embeds[:, 1:])

    def kept(self, wanted: Tensor, closing_up: bool) -> "Columns":
        """The `wanted` [B, C] columns alone. Positions are then counted anew where `closing_up`; else all keep theirs, later ones too.

        Looks at the device once: how many columns there are is a shape.
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
        """`embeds` [B, M, H] of the ids in `slots` [B, M], the prompt's own within it. A net of another width reads the ids' alone."""
        if self.embeds is None or self.embeds.shape[1] == 0 or self.embeds.shape[-1] != embeds.shape[-1]:
            return embeds
        own = _at(self.embeds, slots.clamp(max=self.embeds.shape[1] - 1)).to(embeds.dtype)
        return torch.where((slots < self.lengths[:, None])[..., None], own, embeds)

    def along(self, slots: Tensor) -> Tensor:
        """Positions [B, M] of the columns in `slots` [B, M]."""
        if self.gone is None or self.places is None:
            return slots
        later = slots + self.gone[:, None]
        if self.places.shape[1] == 0:
            return later
        return torch.where(slots < self.lengths[:, None], self.places.gather(1, slots.clamp(max=self.places.shape[1] - 1)), later)

    def spread(self, found: Tensor, size: int) -> Tensor:
        """What was made of the columns, [B, C, ...], back at their numbers among all `size`; zeros elsewhere."""
        if self.places is None:
            return found
        places = self.places.view(*self.places.shape, *(1 for _ in found.shape[2:])).expand_as(found)
        return found.new_zeros(len(found), size, *found.shape[2:]).scatter(1, places, found)


def _at(states: Tensor, columns: Tensor) -> Tensor:
    """`states` [B, C, H] at `columns` [B, M]."""
    return states.gather(1, columns[..., None].expand(*columns.shape, states.shape[-1]))
