"""Captioned scenes: one or two objects of a colour, shape, size and corner on white, with the attributes a judge checks.

The same seed gives the same scenes and pictures.
"""

import random
from dataclasses import dataclass

from PIL import Image

from mmspec.minis.drawn.shapes import PLACES, SHAPES, FilledShape, draw_shapes

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
SIZES = {"small": 0.22, "large": 0.37}
"""Radius of an object, as a share of half a picture's side."""
GRAMMAR = f"a size ({', '.join(SIZES)}), a colour ({', '.join(COLOURS)}), a shape ({', '.join(SHAPES)}) and a corner ({', '.join(PLACES)})"
"""What the words of a caption are, in their order."""
NOTHING = "none"
"""Value of an attribute of a corner without an object."""


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


def read_caption(caption: str) -> CaptionedScene:
    """Return the scene that a caption describes, every object in the middle of its corner: the inverse of `CaptionedScene.caption`.

    Raises:
        ValueError: for a caption that is not of that form.
    """
    objects = []
    for part in caption.lower().split(" and "):
        words = part.split()
        known = len(words) == 6 and words[0] == "a" and words[1] in SIZES and words[2] in COLOURS and words[3] in SHAPES
        if not known or " ".join(words[4:]) not in PLACES:
            raise ValueError(f'{part!r} does not describe an object as in "a small red star top left": {GRAMMAR}')
        objects.append(PlacedObject(words[2], words[3], words[1], " ".join(words[4:])))
    objects.sort(key=lambda each: PLACES.index(each.place))
    if len({each.place for each in objects}) < len(objects):
        raise ValueError(f"{caption!r} has two objects in one corner: give each its own")
    return CaptionedScene(tuple(objects))


def captioned_scene(seed: int, number: int, most: int = 2, shift: float = 0.125) -> CaptionedScene:
    """Return a random scene.

    Args:
        seed: of the whole set.
        number: of the scene in the set; the scene depends on these two alone.
        most: largest number of objects; all numbers from 1 are equally frequent.
        shift: an object is moved from its corner's middle by -shift, 0 or shift along either axis, a share of half a picture's side. The
            default is a cell of a 16x16 grid of codes, so that an object has the same codes wherever it is.

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
                pick.choice((-shift, 0.0, shift)),
                pick.choice((-shift, 0.0, shift)),
            )
            for corner in corners
        )
    )


def draw_captioned(scene: CaptionedScene, side: int = 64) -> Image.Image:
    """Return the picture of a scene: `side` x `side` pixels, RGB."""
    return draw_shapes(side, (255, 255, 255), [_placed(each, side / 2) for each in scene.objects])


def _placed(each: PlacedObject, cell: float) -> FilledShape:
    corner = PLACES.index(each.place)
    x, y = cell * (corner % 2 + 0.5 + each.dx), cell * (corner // 2 + 0.5 + each.dy)
    return FilledShape(each.shape, x, y, cell * SIZES[each.size], COLOURS[each.colour])
