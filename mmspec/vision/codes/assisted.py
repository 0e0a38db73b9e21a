"""A smaller image model as the drafter of pictures, alone or at the far end of a Jacobi window.

The smaller model writes the same codes on the same raster, from its own prompts and under the same guidance and truncation. Alone it drafts
a chain (Leviathan et al. 2023). With a Jacobi window it drafts the positions that have no distribution of the target's yet, in place of an
initialiser, after the window's draft tokens; later rounds draw these positions anew from the target's distributions. Both are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.protocols import Drafter, TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rules.base import Accept
from mmspec.drafters.jacobi.couplers import target_noise
from mmspec.drafters.jacobi.windows import Window, WindowSession
from mmspec.drafters.model.drafter import ModelDrafter, ModelSession
from mmspec.drafters.shapes import Chain, Score
from mmspec.models.guidance import Pairs, is_guided
from mmspec.models.target import HFTarget
from mmspec.run.shapes import draw_for
from mmspec.vision.codes.shared_layers import SharedLayers
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt


def small_image_model(target: ImageModel, drafter: Any) -> ImageModel:
    """Return the adapter of a smaller image model that drafts for `target`.

    Args:
        target: the adapter of the model that is drafted for. The drafter is guided away from its negative text
            where it has none of its own.
        drafter: an image model, its adapter, or `SharedLayers`; None for the target's own `assistant`.

    Raises:
        ValueError: without one, and for one that writes other codes or another raster.
    """
    if drafter is None:
        drafter = target.assistant
    if drafter is None:
        raise ValueError(
            "this method drafts with a smaller image model: pass drafter=..., or choose a method that needs none such as jacobi"
        )
    if isinstance(drafter, SharedLayers):
        return drafter.over(target)
    try:
        found = image_model(drafter)
    except ValueError:
        name = type(drafter).__name__
        raise ValueError(f"drafter is a {name}: this method drafts with an image model, give one of the target's codes and grid") from None
    ours, theirs = target.raster, found.raster
    if ours != theirs:
        shown = [f"{each.height} x {each.width} cells of {each.codes} codes in {each.length} positions" for each in (theirs, ours)]
        raise ValueError(f"the drafter writes {shown[0]} and the target {shown[1]}: give a drafter of the same codes and grid")
    return found.guided_from(target.negative) if target.negative and not found.negative else found


@dataclass(frozen=True)
class OwnPrompt:
    """View of a drafter that reads prompts which it encoded itself."""

    prompt: Prompt

    def __call__(self, prompt: Any, session: TargetSession) -> Prompt:
        """Return the drafter's prompt; the target's is not read."""
        return self.prompt


def assisted_drafter(small: ImageModel, prompt: Prompt, processors: Any, rule: Accept, window: int | None, room: int) -> Drafter:
    """Return the drafter of a smaller image model.

    Args:
        small: the model.
        prompt: the target's prompts as this model encodes them.
        processors: those of the target, with its guidance.
        rule: the accept rule.
        window: tokens of a Jacobi window, whose far end the model drafts; None for a chain by the model alone.
        room: most tokens of a forward.

    Raises:
        ValueError: for a window whose rule does not use the target's noise.
    """
    family: Any = small
    target = HFTarget(small.model, family, processors, reserve=small.raster.length + room)
    paired = Pairs(target) if is_guided(processors) else target
    if window is None:
        return ModelDrafter(paired, Chain(draw_for(rule)), OwnPrompt(prompt))
    if rule.uses_q or not rule.coupled:
        raise ValueError(f"{type(rule).__name__} does not use the target's noise, by which this window is drawn: leave accept out")
    return AssistedWindow(paired, OwnPrompt(prompt), Window(small.raster, target_noise, window=window))


@dataclass(frozen=True)
class AssistedWindow:
    """Jacobi window whose far end a smaller model drafts, by the coupled rule.

    Args:
        target: the smaller model.
        view: maps the target's prompt to the model's own.
        window: the window; its initialiser is not used.
    """

    target: Any
    view: OwnPrompt
    window: Window

    @property
    def raster(self) -> Raster | None:
        """The grid of the pictures."""
        return self.window.raster

    def begin(self, prompt: Any, session: TargetSession) -> "AssistedWindowSession":
        """Open the drafting session of one generation."""
        own, _ = self.target.begin(self.view(prompt, session))
        return AssistedWindowSession(own, WindowSession(self.window))


class AssistedWindowSession(ModelSession):
    """Drafting session of a Jacobi window and a smaller model."""

    def __init__(self, session: TargetSession, window: WindowSession):
        super().__init__(session, FarEnd(window))
        self.window = window

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        super().observe(draft, scored, verdict, committed)
        self.window.observe(draft, scored, verdict, committed)
        shape: Any = self.shape
        shape.known = draft.size - draft.roots - max(committed.accepted)  # rows with fewer draft tokens are near the end of their picture

    @property
    def joinable(self) -> bool:
        """True once the model has run its prompt and the window has seen a round; see `core.rows.changes.ChangesRows`."""
        return super().joinable and self.window.joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        super().take_rows(rows)
        self.window.take_rows(rows)

    def join_rows(self, other: "AssistedWindowSession") -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        super().join_rows(other)
        self.window.join_rows(other.window)
        shape, theirs = self.shape, other.shape
        shape.known = min(shape.known, theirs.known)  # type: ignore[union-attr]  # of all rows

    def _grow(self, pending: Draft, own: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        shape: Any = self.shape
        shape.pending = pending
        return shape.grow(self.score, own, budget, noise)


class FarEnd:
    """Shape of a window's draft: the window's own draft tokens as far as they have a distribution, then the model's."""

    def __init__(self, window: WindowSession):
        self.window, self.known, self.pending = window, 0, None

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column of each draft token; see `Shape.grow`."""
        assert self.pending is not None
        length, seen = min(self.window.levels, budget.length), self.window.seen
        steps = torch.arange(length, device=draft.start.device)
        position = draft.start[:, None] + steps
        keys = noise.draft_token(position, draft.start)
        values = torch.zeros_like(position)
        left = torch.zeros_like(position[:, :1]) if seen is None else seen.left
        if seen is not None:
            values = seen.distributions(steps).sample(keys) if seen.drawn is None else seen.draws(steps)
        known = min(self.known, length - 1) if seen is not None else 0  # the model runs at least once: it has to read what was committed
        if known:
            draft = draft.extend_chain(values[:, :known], budget.draft_tokens)
        for step in range(known, length):
            own = score(draft).p.last(1).sample(keys[:, step : step + 1])
            draft = draft.extend_chain(torch.where(step < left, values[:, step : step + 1], own), budget.draft_tokens)
        columns = torch.arange(draft.roots, draft.size, device=draft.start.device)
        return draft, columns.expand(len(draft.start), -1)
