"""What a drafter net predicts at each level for the places of recorded windows, and how its levels are compared with the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.train.comparison import Levels, LevelsTogether, Predicted, SeparateLevels

_CONTRAST = 0.1
"""Temperature of `LevelDrafts.state_contrast`."""


@dataclass(frozen=True, slots=True)
class LevelDrafts:
    """A net's predictions at one level, for M places of every window."""

    hidden: Tensor  # [B, M, H] what `head` reads
    head: Callable[..., Any]  # gives logits [..., V] over the net's own values for `hidden` [..., H], by parameters alone
    after: int  # the first draft token is for the distribution after window position `after`, the next for the one after that, ...
    blind: int = 0  # the first places have no states: not counted
    state: Tensor | None = None  # [B, M, H] the net's draft token of the target's last hidden state at those positions
    columns: Tensor | None = None  # [B, W] which place stands for each window position, -1 for none; None: consecutive ones from `after` on
    confidence: Callable[[Tensor], Tensor | None] | None = None  # logits [...] of acceptance for `hidden` [..., H]

    @property
    def logits(self) -> Tensor:
        """The logits [B, M, V] of all places at once."""
        return self.head(self.hidden)

    @staticmethod
    def of_logits(logits: Tensor, after: int) -> "LevelDrafts":
        """Return the level whose logits [B, M, V] are at hand."""
        return LevelDrafts(logits, lambda logits: logits, after)

    def counted(self, own: Tensor) -> Tensor:
        """Return [B, W] bool, the positions after which this level predicts a value that is the target's `own` [B, W]."""
        if self.columns is not None:
            return (self.columns >= 0) & nn.functional.pad(own[:, 1:], (0, 1))
        places = min(self.hidden.shape[1], own.shape[1] - 1 - self.after)
        first, end = self.after + self.blind, self.after + places
        found = torch.zeros_like(own)
        if first < end:
            found[:, first:end] = own[:, first + 1 : end + 1]
        return found

    def at(self, row: Tensor, place: Tensor) -> Tensor:
        """Return `hidden` [T, H] in rows `row` [T], for the distributions after window positions `place` [T]."""
        return self.hidden[row, place - self.after if self.columns is None else self.columns[row, place]]

    def state_gap(self, last: Tensor, counted: Tensor) -> Tensor:
        """Return SmoothL1 between the net's states and the target's `last` [B, W, H], summed over the `counted` [B, W] positions."""
        assert self.state is not None
        row, place = counted.nonzero(as_tuple=True)
        gap = nn.functional.smooth_l1_loss(self.state[row, place - self.after], last[row, place], reduction="none")
        return gap.mean(-1).sum()

    def state_contrast(self, first: "LevelDrafts", counted: Tensor) -> Tensor:
        """Return how badly the states of level 1 at the same positions are found among those of the whole window (CORAL's cross-step
        alignment, Weng et al. 2025): InfoNCE of cosines, summed over positions.

        Args:
            first: level 1, with states at as many places.
            counted: [B, W] bool, the positions of both that count.
        """
        assert self.state is not None
        assert first.state is not None
        places, at = self.state.shape[1], counted[:, self.after : self.after + self.state.shape[1]]
        own, theirs = (nn.functional.normalize(each.float(), dim=-1) for each in (self.state, first.state))
        alike = (own @ theirs.mT / _CONTRAST).masked_fill(~at[:, None], -torch.inf)
        right = torch.arange(places, device=at.device).expand_as(at)
        return nn.functional.cross_entropy(alike[at], right[at], reduction="sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsOfOneHead(LevelDrafts):
    """A level of a net whose head makes all levels from the same `hidden`.

    `head` gives their logits [N, V], level by level, for `hidden` [N, H] and `given` [N, D].
    """

    given: Tensor  # [B, M, D] values
    number: int  # of the level, from 0
    sets: int  # sets of logits that the head holds for a place

    @property
    def logits(self) -> Tensor:
        """The logits [B, M, V] of all places at once."""
        found = islice(self.head(self.hidden.flatten(0, 1), self.given.flatten(0, 1)), self.number, None)
        return next(found).unflatten(0, self.hidden.shape[:2])


def compared_levels(levels: Sequence[tuple[LevelDrafts, Tensor]], compared: Tensor) -> Levels:
    """Return the levels as they are compared with the target's distributions.

    Args:
        levels: each level, and the window positions [B, W] bool it counts at.
        compared: [B, W] bool, the positions that any level counts at.

    Returns:
        The levels at these positions.
    """
    return _together(levels, compared) if isinstance(levels[0][0], LevelsOfOneHead) else _separate(levels, *compared.nonzero(as_tuple=True))


def _separate(levels: Sequence[tuple[LevelDrafts, Tensor]], row: Tensor, place: Tensor) -> Levels:
    """Levels with heads of their own, at the positions of windows `row` [T] and `place` [T]."""
    predicted = []
    for level, counted in levels:
        at = counted[row, place]
        predicted.append(Predicted(level.at(row[at], place[at]), level.head, at, level.confidence))
    return SeparateLevels(predicted)


def _together(levels: Sequence[tuple[Any, Tensor]], compared: Tensor) -> Levels:
    """Levels of one head, at the positions `compared` [B, W]."""
    first, number = levels[0][0], compared.flatten().cumsum(0).view(compared.shape) - 1
    places = [slice(level.after, level.after + first.hidden.shape[1]) for level, _ in levels]
    at = torch.stack([counted[:, here].flatten() for (_, counted), here in zip(levels, places, strict=True)])
    position, some = torch.stack([number[:, here].flatten() for here in places]), at.any(0)
    states, given = (part.flatten(0, 1)[some] for part in (first.hidden, first.given))
    return LevelsTogether(states, given, first.head, position[:, some], at[:, some], first.sets)
