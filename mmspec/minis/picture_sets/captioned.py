"""Captioned scenes: one or two objects of a colour, shape, size and corner on white, with the attributes a judge checks.

The same seed gives the same scenes and pictures.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 40, 40),
    "orange": (247, 140, 20),
    "yellow": (240, 205, 30),
    "green": (46, 150, 62),
    "cyan": (40, 190, 200),
    "blue": (40, 80, 210),
    "purple": (130, 60, 180),
    "pink": (245, 130, 185),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "ring", "heart")
SIZES = {"small": 0.25, "large": 0.4}
"""Radius of an object, as a share of half a picture's side."""
PLACES = ("top left", "top right", "bottom left", "bottom right")
NOTHING = "none"
"""Value of an attribute of a corner without an object."""

_FINE = 4  # a picture is drawn this many times larger, then shrunk: smooth edges


@dataclass(frozen=True)
class PlacedObject:
    """An object in a corner; `dx`, `dy` move it from the corner's middle, as shares of half a picture's side."""

    colour: str
    shape: str
    size: str
    place: str
    dx: float = 0.0
    dy: float = 0.0


@dataclass(frozen=True)
class CaptionedScene:
    """Objects in different corners, in the order of `PLACES`."""

    objects: tuple[PlacedObject, ...]

    @property
    def caption(self) -> str:
        """The objects in words, such as "a small red star top left and a large blue ring bottom right"."""
        return " and ".join(f"a {each.size} {each.colour} {each.shape} {each.place}" for each in self.objects)

    @property
    def attributes(self) -> dict[str, str]:
        """The colour, shape and size in every corner; `NOTHING` in empty ones."""
        found = {f"{place} {name}": NOTHING for place in PLACES for name in ("colour", "shape", "size")}
        for each in self.objects:
            found |= {f"{each.place} {name}": getattr(each, name) for name in ("colour", "shape", "size")}
        return found


def captioned_scene(seed: int, number: int, most: int = 2, jitter: float = 0.045) -> CaptionedScene:
    """Return a random scene.

    Args:
        seed: of the whole set.
        number: of the scene in the set; the scene depends on these two alone.
        most: largest number of objects; all numbers from 1 are equally frequent.
        jitter: largest movement of an object from its corner's middle, as a share of half a picture's side.

    Raises:
        ValueError: unless `most` is 1 to 4.
    """
    if not 1 <= most <= len(PLACES):
        raise ValueError(f"most is {most}: a scene has 1 to {len(PLACES)} objects, one a corner")
    pick = random.Random(f"captioned scene {seed} {number}")
    corners = sorted(pick.sample(range(len(PLACES)), pick.randint(1, most)))
    return CaptionedScene(
        tuple(
            PlacedObject(
                pick.choice(list(COLOURS)),
                pick.choice(SHAPES),
                pick.choice(list(SIZES)),
                PLACES[corner],
                pick.uniform(-jitter, jitter),
                pick.uniform(-jitter, jitter),
            )
            for corner in corners
        )
    )


def draw_captioned(scene: CaptionedScene, side: int = 64) -> Image.Image:
    """Return the picture of a scene: `side` x `side` pixels, RGB."""
    picture = Image.new("RGB", (side * _FINE, side * _FINE), "white")
    pen, cell = ImageDraw.Draw(picture), side * _FINE / 2
    for each in scene.objects:
        corner = PLACES.index(each.place)
        x, y = cell * (corner % 2 + 0.5 + each.dx), cell * (corner // 2 + 0.5 + each.dy)
        _PENS[each.shape](pen, x, y, cell * SIZES[each.size], COLOURS[each.colour])
    return picture.resize((side, side), Image.Resampling.BOX)


Ink = tuple[int, int, int]
_Pen = Callable[[ImageDraw.ImageDraw, float, float, float, Ink], None]


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


def _corners(*reach: float) -> _Pen:
    """A closed line through points at `reach` times the radius, the first straight up, clockwise."""

    def draw(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
        turns = [2 * math.pi * i / len(reach) for i in range(len(reach))]
        pen.polygon([(x + r * far * math.sin(a), y - r * far * math.cos(a)) for far, a in zip(reach, turns, strict=True)], fill=ink)

    return draw


def _triangle(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    _corners(1.15, 1.15, 1.15)(pen, x, y + 0.25 * r, r, ink)  # its middle lies below the middle of its box


def _heart(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, ink: Ink) -> None:
    turns = [2 * math.pi * i / 48 for i in range(48)]
    across = [16 * math.sin(a) ** 3 for a in turns]
    up = [13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a) for a in turns]
    pen.polygon([(x + r * a / 16, y - r * (b + 2.5) / 16) for a, b in zip(across, up, strict=True)], fill=ink)


_PENS: dict[str, _Pen] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _corners(*(1.1, 0.44) * 5),
    "cross": _cross,
    "diamond": _corners(1.1, 0.75, 1.1, 0.75),
    "ring": _ring,
    "heart": _heart,
}
