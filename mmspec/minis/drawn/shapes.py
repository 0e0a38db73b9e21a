"""Pictures of filled shapes with smooth edges: what the scenes of mini vlm and captioned scenes are drawn with."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from PIL import Image, ImageDraw

PLACES = ("top left", "top right", "bottom left", "bottom right")
"""The corners of a scene, in reading order."""
Ink = tuple[int, ...]

_FINE = 4  # a picture is drawn this many times larger, then shrunk
_Pen = Callable[[ImageDraw.ImageDraw, float, float, float, Ink], None]


@dataclass(frozen=True)
class FilledShape:
    """A shape of one colour.

    Args:
        shape: a name of `SHAPES`.
        x, y: its middle, in pixels from the left and from the top.
        radius: in pixels.
        ink: red, green and blue, 0 to 255.
    """

    shape: str
    x: float
    y: float
    radius: float
    ink: Ink


def draw_shapes(side: int, background: Ink, shapes: Iterable[FilledShape]) -> Image.Image:
    """Draw shapes on a plain background, later ones over earlier ones.

    Args:
        side: pixels of the picture's side.
        background: red, green and blue, 0 to 255.
        shapes: what to draw.

    Returns:
        The picture, side x side, RGB.
    """
    picture = Image.new("RGB", (side * _FINE, side * _FINE), background)
    pen = ImageDraw.Draw(picture)
    for each in shapes:
        _PENS[each.shape](pen, each.x * _FINE, each.y * _FINE, each.radius * _FINE, each.ink)
    return picture.resize((side, side), Image.Resampling.BOX)


def _circle(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    pen.ellipse((x - r, y - r, x + r, y + r), fill=ink)


def _square(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    half = r * 0.86
    pen.rectangle((x - half, y - half, x + half, y + half), fill=ink)


def _ring(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    pen.ellipse((x - r, y - r, x + r, y + r), outline=ink, width=max(1, round(r * 0.38)))


def _cross(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    half = r * 0.3
    pen.rectangle((x - r, y - half, x + r, y + half), fill=ink)
    pen.rectangle((x - half, y - r, x + half, y + r), fill=ink)


def _corners(*reach: float, lower: float = 0.0) -> _Pen:
    """A closed line through points at `reach` times the radius, the first straight up, clockwise; all `lower` times the radius lower."""

    def draw(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
        turns, low = [2 * math.pi * i / len(reach) for i in range(len(reach))], y + r * lower
        pen.polygon([(x + r * far * math.sin(a), low - r * far * math.cos(a)) for far, a in zip(reach, turns, strict=True)], fill=ink)

    return draw


def _heart(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    turns = [2 * math.pi * i / 48 for i in range(48)]
    across = [16 * math.sin(a) ** 3 for a in turns]
    up = [13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a) for a in turns]
    pen.polygon([(x + r * a / 16, y - r * (b + 2.5) / 16) for a, b in zip(across, up, strict=True)], fill=ink)


_PENS: dict[str, _Pen] = {
    "circle": _circle,
    "square": _square,
    "triangle": _corners(*(1.12,) * 3, lower=0.2),  # the middles of triangles and stars lie below those of their boxes
    "star": _corners(*(1.1, 0.46) * 5, lower=0.05),
    "cross": _cross,
    "diamond": _corners(1.1, 0.75, 1.1, 0.75),
    "ring": _ring,
    "heart": _heart,
}
SHAPES = tuple(_PENS)
"""Names of the shapes."""
