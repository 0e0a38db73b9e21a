"""Images on the page: both generations of a prompt, filling in as codes are committed."""

import base64
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec.core.records import Step
from mmspec.loading.vision import Loaded
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration
from mmspec.serving.ui.marks import DRAFTED, Marks
from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.rendering import Sameness, board
from mmspec.serving.ui.settings import draft_length_field, number_field, whole_field
from mmspec.vision.codes.registry import METHODS, can_draw, method_of
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures
from mmspec.vision.families.base import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.quality.contact_sheets import picture_bytes

WINDOWS = ("default", "4", "8", "16", "32", "48", "auto")
"""Tokens a forward that the page offers; another number may be typed."""
_EMPTY, _DRAFTED, _OWN = (150, 150, 150), (64, 175, 130), (240, 170, 70)
_PERIOD = 0.15  # seconds between two previews


class ImageView:
    """A picture as far as it is generated, and which of its cells were draft tokens.

    Args:
        model: decodes codes; None for models whose pictures are shown at the end only.
        cells: values of a picture.

    Attributes:
        picture: data URI of the picture so far; None before the first.
        map: data URI of the cells by mark; None for models without a raster.
        committed: values so far.
    """

    def __init__(self, model: ImageModel | None, cells: int):
        self.model, self.cells = model, cells
        self.picture: str | None = None
        self.map: str | None = None
        self.committed = 0
        self._marks, self._next = Marks(), 0.0

    def add(self, step: Step) -> None:
        """Take in a round, and decode the picture so far if the last preview is old.

        Args:
            step: the round.
        """
        self.committed += len(step.committed.values[0])
        if self.model is None:
            return
        self._marks.add(step)
        if perf_counter() >= self._next:
            self._preview(self.model)
            self._next = perf_counter() + _PERIOD

    def finish(self, out: Pictures) -> None:
        """Take in the result.

        Args:
            out: the picture.
        """
        if self.model is not None:
            self.map = _uri(_mark_map(self.model, self._marks))
        self.picture = _uri(out.images[0].convert("RGB"))

    def _preview(self, model: ImageModel) -> None:
        raster = model.raster
        values = torch.zeros(1, raster.length, dtype=torch.long, device=model.model.device)
        given = self._marks.values[: raster.length]
        values[0, : len(given)] = torch.tensor(given)
        picture = model.decode_row(model.picture(values), 0).convert("RGB")
        there = torch.zeros(1, raster.length, dtype=torch.long)
        there[0, : len(given)] = 1
        mask = Image.fromarray((255 * raster.picture(there)[0].numpy()).astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
        self.picture = _uri(Image.composite(picture, Image.new("RGB", picture.size, _EMPTY), mask))
        self.map = _uri(_mark_map(model, self._marks))


@dataclass(frozen=True)
class ImageSide:
    """The image model of a page.

    Args:
        model: the model with its drafter.
    """

    model: UiModel

    @property
    def loaded(self) -> Loaded:
        """The model and what goes with it."""
        return self.model.loaded

    @property
    def examples(self) -> list[str]:
        """Prompts to begin with."""
        return list(self.loaded.examples)

    @property
    def continuous(self) -> bool:
        """True for models of continuous tokens."""
        return isinstance(self.loaded.model, ContinuousPictures)

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that draft, and that this model can be drawn by cell by cell; the usual one first."""
        usual = getattr(self.model.served, "method", "jacobi")
        model = self.loaded.model
        if isinstance(model, ContinuousPictures):
            found = [name for name, way in CONTINUOUS_METHODS.items() if model.head in way.heads]
        else:
            found = [name for name in METHODS if can_draw(model, name) and method_of(name).rows is None]
        return tuple(dict.fromkeys(name for name in (usual, *found) if name != "plain"))

    def compare(
        self,
        prompt: Any,
        method: str,
        window: Any,
        guidance: Any,
        temperature: Any,
        top_p: Any,
        seed: Any,
        slow: Any = 1,
    ) -> LiveComparison:
        """Return plain and speculative generation of a picture, not yet run.

        Args:
            prompt: what to draw.
            method: one of `methods`.
            window: tokens a forward, "auto" or "default".
            guidance, temperature, top_p, seed: as in `mmspec.vision.generate`; guidance and top_p are not read by models of continuous
                tokens.
            slow: how many times slower it is shown.

        Returns:
            The comparison.

        Raises:
            ValueError: for an invalid value, in one line. Others are refused by `mmspec.vision.generate` when it runs.
        """
        loaded = self.loaded
        prompts = loaded.prompts(prompt or None, 1)
        options: dict[str, Any] = {"temperature": number_field("temperature", temperature), "seed": whole_field("seed", seed)}
        if not self.continuous:
            options["top_p"] = None if number_field("top-p", top_p) == 1 else top_p
        options["guidance"] = number_field("guidance", guidance)
        drafting: dict[str, Any] = {"method": method}
        if str(window).strip() != "default":
            drafting["window"] = draft_length_field("window", window)
        preview = None if isinstance(loaded.model, ContinuousPictures) else loaded.model.prepared(prompts)

        def draw(more: dict[str, Any], on_step: Any) -> Pictures:
            return generate(loaded.model, prompts, on_step=on_step, **(options | more))

        def view() -> ImageView:
            return ImageView(preview, loaded.cells)

        return LiveComparison(
            [
                LiveGeneration("plain", lambda _, on_step: draw({"method": "plain"}, on_step), view, "plain"),
                LiveGeneration("speculative", lambda _, on_step: draw(drafting, on_step), view, method),
            ],
            number_field("slow motion", slow),
        )

    def board(self, comparison: LiveComparison, prompt: str) -> str:
        """Render both panes.

        Args:
            comparison: what `compare` returned.
            prompt: what is drawn, as the text for those who do not see the pictures.

        Returns:
            HTML.
        """
        unit = "tokens" if self.continuous else "codes"
        return board("images.html", comparison, unit, _sameness(comparison, unit), prompt=prompt or "a picture")


def _mark_map(model: ImageModel, marks: Marks) -> Image.Image:
    """A picture of the cells, a pixel a cell."""
    kinds = torch.zeros(1, model.raster.length, dtype=torch.long)
    given = marks.marks[: model.raster.length]
    kinds[0, : len(given)] = torch.tensor([1 if mark == DRAFTED else 2 for mark in given])
    return Image.fromarray(np.array([_EMPTY, _DRAFTED, _OWN], np.uint8)[model.raster.picture(kinds)[0].numpy()])


def _uri(picture: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture_bytes(picture)).decode()}"


def _sameness(comparison: LiveComparison, unit: str) -> Sameness | None:
    if not comparison.done:
        return None
    plain, other = (each.out.tokens[0].flatten().tolist() for each in comparison.generations)
    return Sameness(plain, other, comparison.generations[1].out.stats.exactness, unit)
