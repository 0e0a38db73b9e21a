"""Synthetic scenes with their captions and questions: the training data of mini vlm.

A scene is a square with shapes in some of its four corners. The same seed gives the same scenes, pictures, captions and questions.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from mmspec.minis.drawn.shapes import PLACES, FilledShape, draw_shapes

SIDE = 64
"""Pixels of a picture's side."""
COLOURS = {
    "red": (221, 60, 54),
    "green": (62, 160, 78),
    "blue": (58, 106, 214),
    "yellow": (243, 202, 60),
    "purple": (152, 84, 190),
    "orange": (242, 138, 46),
}
SHAPES = ("circle", "square", "triangle", "star")
SIZES = {"small": 7.0, "large": 12.5}  # mean radius in pixels
BACKGROUNDS = {"light": (246, 243, 235), "dark": (40, 44, 58)}
NUMBERS = ("no", "one", "two", "three", "four")
DESCRIBE = ("describe the picture.", "describe this picture.", "what do you see?", "what does the picture show?")
DESCRIBE_BOTH = ("describe the pictures.", "describe both pictures.")

_KINDS = {
    **dict.fromkeys(COLOURS, "colour"),
    **dict.fromkeys([*SHAPES, *(f"{shape}s" for shape in SHAPES), "shape", "shapes"], "shape"),
    **dict.fromkeys([*NUMBERS, "yes", "nothing"], "number"),
    **dict.fromkeys(SIZES, "size"),
    **dict.fromkeys(["top", "bottom", "left", "right"], "place"),
    **dict.fromkeys(BACKGROUNDS, "background"),
}


@dataclass(frozen=True)
class Thing:
    """A shape in one corner; `x`, `y` and `radius` in pixels, `tint` what is added to its colour."""

    colour: str
    shape: str
    size: str
    place: str
    x: float
    y: float
    radius: float
    tint: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Scene:
    """One to four things in reading order, at most one in a corner."""

    things: tuple[Thing, ...]
    background: str


@dataclass(frozen=True)
class Question:
    """`kind`: describe, count, colour, presence, place, what, shape, size or background."""

    text: str
    answer: str
    kind: str


def scenes(seed: int, count: int, most: int = 4) -> Iterator[Scene]:
    """Yield `count` scenes of one to `most` things."""
    pick = random.Random(f"scenes {seed}")
    return (scene(pick, most) for _ in range(count))


def scene(pick: random.Random, most: int = 4) -> Scene:
    """Return the next scene of a random stream."""
    many = pick.choices(range(1, most + 1), [0.15, 0.4, 0.3, 0.15][:most])[0]
    corners = sorted(pick.sample(range(4), many))
    return Scene(tuple(_thing(pick, corner) for corner in corners), pick.choice(list(BACKGROUNDS)))


def _thing(pick: random.Random, corner: int) -> Thing:
    size = pick.choice(list(SIZES))
    radius, cell = SIZES[size] + pick.uniform(-0.8, 0.8), SIDE / 2
    budget = min(2.5, cell / 2 - radius - 1.5)
    x, y = (cell * (part + 0.5) + pick.uniform(-budget, budget) for part in (corner % 2, corner // 2))
    tint = tuple(pick.randint(-10, 10) for _ in range(3))
    return Thing(pick.choice(list(COLOURS)), pick.choice(SHAPES), size, PLACES[corner], x, y, radius, tint)  # pyright: ignore


def draw_scene(scene: Scene) -> Image.Image:
    """Return the picture of a scene, SIDE x SIDE, RGB."""
    return draw_shapes(SIDE, BACKGROUNDS[scene.background], [part for thing in scene.things for part in _edged(thing)])


def _edged(thing: Thing) -> tuple[FilledShape, FilledShape]:
    """The shape in a darker colour, and a smaller one over it."""
    fill = tuple(min(255, max(0, part + more)) for part, more in zip(COLOURS[thing.colour], thing.tint, strict=True))
    edge = tuple(int(part * 0.72) for part in fill)
    outer = FilledShape(thing.shape, thing.x, thing.y, thing.radius, edge)
    return outer, replace(outer, radius=thing.radius - 1.1, ink=fill)


def scene_caption(scene: Scene, name: str = "the picture") -> str:
    """Return the description of a scene, in reading order."""
    first = f"{name} shows {_counted(len(scene.things), '', 'shape')} on a {scene.background} background."
    return " ".join([first, *(_told(thing) for thing in scene.things)])


def caption_pair(left: Scene, right: Scene) -> str:
    """Return the description of two pictures."""
    return f"{scene_caption(left, 'the left picture')} {scene_caption(right, 'the right picture')}"


def questions(scene: Scene, pick: random.Random) -> list[Question]:
    """Return a request to describe the scene and one question of every other kind; `pick` chooses subjects and wording."""
    thing, at = pick.choice(scene.things), pick.choice(["in", "at"])
    here = f"{at} the {thing.place}"
    named = thing.shape if pick.random() < 0.7 else "shape"
    asked = [Question(pick.choice(DESCRIBE), scene_caption(scene), "describe"), _count(scene, pick), _presence(scene, pick)]
    told = f"the {named} in the {thing.place} is"
    asked.append(Question(f"what colour is the {named} {here}?", f"{told} {thing.colour}.", "colour"))
    sizing = pick.choice([f"what size is the {named} {here}?", f"is the {named} {here} small or large?"])
    asked.append(Question(sizing, f"{told} {thing.size}.", "size"))
    shaping = pick.choice([f"what shape is {here}?", f"which shape is {here}?"])
    asked.append(Question(shaping, f"the shape in the {thing.place} is a {thing.shape}.", "shape"))
    corner = pick.choice(PLACES)
    found = next((_told(other) for other in scene.things if other.place == corner), f"there is nothing in the {corner}.")
    asked.append(Question(f"what is {at} the {corner}?", found, "what"))
    if len(_like(scene, thing.colour, thing.shape)) == 1:
        asked.append(
            Question(f"where is the {thing.colour} {thing.shape}?", f"the {thing.colour} {thing.shape} is in the {thing.place}.", "place")
        )
    ground = pick.choice(["is the background light or dark?", "what is the background?"])
    return [*asked, Question(ground, f"the background is {scene.background}.", "background")]


def questions_pair(left: Scene, right: Scene, pick: random.Random) -> list[Question]:
    """Return a request to describe two pictures, and a count in one of them."""
    side, asked = pick.choice([("left", left), ("right", right)])
    colour, shape = _sought(asked, pick)
    answer = _number(asked, colour, shape, f"the {side} picture")
    count = Question(f"how many {_plural(colour, shape)} are in the {side} picture?", answer, "count")
    return [Question(pick.choice(DESCRIBE_BOTH), caption_pair(left, right), "describe"), count]


def word_kinds(words: Sequence[str]) -> list[str]:
    """Return what each word of an answer takes from the picture: colour, shape, number, size, place, background, or "function" for
    nothing.
    """
    found = [_KINDS.get(word, "function") for word in words]
    for turn, word in enumerate(words[1:]):
        if word in ("picture", "pictures") and found[turn] == "place":  # "the left picture" is which picture, not where in it
            found[turn] = "function"
    return found


def _told(thing: Thing) -> str:
    return f"in the {thing.place} there is a {thing.size} {thing.shape}, and its colour is {thing.colour}."


def _like(scene: Scene, colour: str, shape: str) -> list[Thing]:
    """The things of a colour and a shape; "" is any colour and "shape" any shape."""
    return [thing for thing in scene.things if colour in ("", thing.colour) and shape in ("shape", thing.shape)]


def _plural(colour: str, shape: str) -> str:
    return f"{colour} {shape}s".strip()


def _counted(many: int, colour: str, shape: str) -> str:
    return f"{NUMBERS[many]} {f'{colour} {shape}'.strip()}{'' if many == 1 else 's'}"


def _sought(scene: Scene, pick: random.Random) -> tuple[str, str]:
    """A colour and a shape to ask for: two times in three the scene's own."""
    thing = pick.choice(scene.things)
    colour, shape = (thing.colour, thing.shape) if pick.random() < 0.67 else (pick.choice(list(COLOURS)), pick.choice(SHAPES))
    form = pick.random()
    return ("", shape) if form < 0.25 else (colour, "shape") if form < 0.4 else ("", "shape") if form < 0.5 else (colour, shape)


def _number(scene: Scene, colour: str, shape: str, where: str) -> str:
    many = len(_like(scene, colour, shape))
    return f"there {'is' if many == 1 else 'are'} {_counted(many, colour, shape)} in {where}."


def _count(scene: Scene, pick: random.Random) -> Question:
    colour, shape = _sought(scene, pick)
    form = pick.choice(["how many {}?", "how many {} are there?", "how many {} are in the picture?", "count the {}."])
    return Question(form.format(_plural(colour, shape)), _number(scene, colour, shape, "the picture"), "count")


def _presence(scene: Scene, pick: random.Random) -> Question:
    thing = pick.choice(scene.things)
    colour, shape = (thing.colour, thing.shape) if pick.random() < 0.5 else (pick.choice(list(COLOURS)), pick.choice(SHAPES))
    found = _like(scene, colour, shape)
    form = pick.choice(["is there {}?", "is there {} in the picture?", "can you see {}?"])
    one = f"{'an' if colour == 'orange' else 'a'} {colour} {shape}"
    if not found:
        answer = f"no, there is no {colour} {shape} in the picture."
    elif len(found) == 1:
        answer = f"yes, there is {one} in the {found[0].place}."
    else:
        answer = f"yes, {_number(scene, colour, shape, 'the picture')}"
    return Question(form.format(one), answer, "presence")
