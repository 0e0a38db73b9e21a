"""The program that draws scenes: what is drawn is what is said, and what is said can be read back."""

import hashlib
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from mmspec.minis import vlm_model as sights
from mmspec.minis.drawn import captioned, scenes
from mmspec.minis.drawn.shapes import FilledShape, draw_shapes

SCENES = list(scenes.scenes(3, 200))
FOUND = re.compile(r"in the (\w+ \w+) there is a (\w+) (\w+), and its colour is (\w+)\.")


def read_back(text):
    return [(colour, shape, size, place) for place, size, shape, colour in FOUND.findall(text)]


def told(scene):
    return [(thing.colour, thing.shape, thing.size, thing.place) for thing in scene.things]


def words(text):
    return re.findall(r"\w+|[^\w\s]", text)


def test_the_same_seed_gives_the_same_scenes_pictures_and_questions():
    again = list(scenes.scenes(3, 200))
    assert again == SCENES
    assert scenes.draw_scene(again[0]).tobytes() == scenes.draw_scene(SCENES[0]).tobytes()
    assert scenes.questions(SCENES[0], random.Random(1)) == scenes.questions(again[0], random.Random(1))
    assert list(scenes.scenes(4, 200)) != SCENES


def test_a_caption_tells_the_whole_scene_in_reading_order():
    for scene in SCENES:
        text = scenes.scene_caption(scene)
        assert read_back(text) == told(scene)
        assert f"on a {scene.background} background" in text
        assert 20 <= len(words(text)) <= 75
        places = [scenes.PLACES.index(thing.place) for thing in scene.things]
        assert places == sorted(set(places))


def test_two_pictures_are_told_left_first():
    text = scenes.caption_pair(SCENES[0], SCENES[1])
    left, right = text.split("the right picture shows")
    assert (read_back(left), read_back(right)) == (told(SCENES[0]), told(SCENES[1]))


def test_every_colour_shape_size_place_and_number_occurs():
    seen = {part for scene in SCENES for thing in told(scene) for part in thing}
    assert seen == {*scenes.COLOURS, *scenes.SHAPES, *scenes.SIZES, *scenes.PLACES}
    assert {len(scene.things) for scene in SCENES} == {1, 2, 3, 4}


def centre(thing):
    return round(thing.x), round(thing.y)


def test_the_picture_shows_what_the_scene_holds():
    for scene in SCENES:
        picture = scenes.draw_scene(scene)
        assert (picture.mode, picture.size) == ("RGB", (64, 64))
        for thing in scene.things:
            wanted = [min(255, max(0, part + more)) for part, more in zip(scenes.COLOURS[thing.colour], thing.tint, strict=True)]
            assert list(picture.getpixel(centre(thing))) == wanted
        held = {thing.place for thing in scene.things}
        for corner, at in zip(scenes.PLACES, [(16, 16), (48, 16), (16, 48), (48, 48)], strict=True):
            assert (picture.getpixel(at) == scenes.BACKGROUNDS[scene.background]) == (corner not in held)


def test_the_pictures_are_those_that_the_shipped_weights_were_trained_on():
    """The digest was taken before scenes and captioned scenes shared their shapes."""
    pixels = hashlib.sha256()
    for seed in (0, 5):
        for scene in scenes.scenes(seed, 30):
            pixels.update(scenes.draw_scene(scene).tobytes())
    assert pixels.hexdigest() == "144278474eeebd6d2c7ca34cb3eb6af4d0548ef829c6d2f66990430a901de1bf"


def test_both_kinds_of_scenes_are_drawn_by_the_same_shapes():
    """A captioned object covers the pixels of a plain shape of the same middle and radius."""
    for shape in captioned.SHAPES:
        placed = captioned.PlacedObject("red", shape, "large", "bottom right")
        shown = np.asarray(captioned.draw_captioned(captioned.CaptionedScene((placed,)), 64))
        alone = np.asarray(draw_shapes(64, (0, 0, 0), [FilledShape(shape, 48.0, 48.0, 32 * captioned.SIZES["large"], (255, 255, 255))]))
        assert ((shown == 255).all(-1) == (alone == 0).all(-1)).all(), shape


def test_edges_are_smooth_and_sizes_differ():
    thing = replace(SCENES[0].things[0], shape="circle", x=16.0, y=16.0, tint=(0, 0, 0))
    areas = []
    for radius in scenes.SIZES.values():
        picture = scenes.draw_scene(scenes.Scene((replace(thing, radius=radius),), "light"))
        areas.append(sum(count for count, colour in picture.getcolors(4096) if colour != scenes.BACKGROUNDS["light"]))
        assert len(picture.getcolors(4096)) > 8
    assert areas[1] > 2.5 * areas[0]


@pytest.mark.parametrize("scene", SCENES[:40])
def test_answers_are_true(scene):
    """Judged by a reader that knows the scene and the English, not the functions that wrote them."""
    pick = random.Random(7)
    for asked in [each for _ in range(6) for each in scenes.questions(scene, pick)]:
        said, things = asked.answer, told(scene)
        if asked.kind == "count":
            number, thing = re.fullmatch(r"there (?:is|are) (\w+) (.*) in the picture\.", said).groups()
            sought = [word.removesuffix("s") if word.removesuffix("s") in (*scenes.SHAPES, "shape") else word for word in thing.split()]
            many = sum(all(word in ("shape", *each[:2]) for word in sought) for each in things)
            assert scenes.NUMBERS.index(number) == many
            assert said.startswith("there is") == (many == 1)
        elif asked.kind == "presence":
            colour, shape = re.search(r"\ban? (\w+) (\w+)", asked.text).groups()
            many = sum(each[:2] == (colour, shape) for each in things)
            assert said.startswith("yes, there" if many else "no, there")
            assert many < 2 or f"{scenes.NUMBERS[many]} {colour} {shape}s" in said
            assert many != 1 or next(each[3] for each in things if each[:2] == (colour, shape)) in said
        elif asked.kind == "what":
            corner = re.search(r"the (\w+ \w+)\?", asked.text)[1]
            here = [each for each in things if each[3] == corner]
            assert read_back(said) == here
            assert here or said == f"there is nothing in the {corner}."
        elif asked.kind == "place":
            colour, shape, place = re.fullmatch(r"the (\w+) (\w+) is in the (\w+ \w+)\.", said).groups()
            assert [each[3] for each in things if each[:2] == (colour, shape)] == [place]
        elif asked.kind in ("colour", "size", "shape"):
            place, value = re.search(r"in the (\w+ \w+) is (?:a )?(\w+)\.", said).groups()
            field = ("colour", "shape", "size").index(asked.kind)
            assert [each[field] for each in things if each[3] == place] == [value]
        elif asked.kind == "background":
            assert scene.background in said
        else:
            assert asked.kind == "describe"
            assert said == scenes.scene_caption(scene)


def test_a_question_of_two_pictures_counts_in_the_one_it_names():
    pick = random.Random(2)
    one, red = SCENES[0], replace(SCENES[0], things=tuple(replace(thing, colour="red") for thing in SCENES[0].things))
    for _ in range(20):
        _, count = scenes.questions_pair(one, red, pick)
        if "left" in count.text:
            assert "in the left picture" in count.answer
        elif "how many red shapes" in count.text:
            assert f"there are {scenes.NUMBERS[len(red.things)]} red shapes in the right picture" in count.answer


def test_function_words_are_the_same_whatever_is_shown_and_the_others_tell_it_all():
    templates: dict[int, set[str]] = {}
    for scene in SCENES:
        found = words(scenes.scene_caption(scene))
        kept = [word if kind == "function" else "_" for word, kind in zip(found, scenes.word_kinds(found), strict=True)]
        templates.setdefault(len(scene.things), set()).add(" ".join(kept))
        shown = {kind: word for word, kind in zip(found, scenes.word_kinds(found), strict=True)}
        assert shown["background"] == scene.background
    assert all(len(found) == 1 for found in templates.values())
    assert "colour" not in next(iter(templates[1])).replace("its colour is", "")


def test_which_picture_is_no_place_in_one():
    found = words("in the top left of the left picture")
    assert scenes.word_kinds(found) == ["function", "function", "place", "place", "function", "function", "function", "function"]


def reds(turns, order):
    """The share of red among the colours of each batch of captions that `order` makes of a pool."""
    found = []
    for turn in turns:
        pool = sorted(sights.asked(turn, 128, "describe"), key=lambda each: order(each.question.answer))
        batch = pool[: len(pool) // 4]
        colours = [thing.colour for each in batch for scene in each.pictures for thing in scene.things]
        found.append(colours.count("red") / len(colours))
    return found


def test_a_batch_of_like_lengths_is_of_all_colours():
    """Ordered by letters, a batch is red and blue or yellow and orange: what is then learned of colours is the last batch's."""
    by_words, by_letters = (sum(reds(range(12), order)) / 12 for order in (lambda text: len(text.split()), len))
    assert abs(by_words - 1 / 6) < 0.04
    assert by_letters > 1 / 6 + 0.06
    steps = [sights.batch(turn, 32) for turn in range(0, 96, 8)]
    colours = [thing.colour for batch in steps for each in batch for scene in each.pictures for thing in scene.things]
    assert all(abs(colours.count(colour) / len(colours) - 1 / 6) < 0.04 for colour in scenes.COLOURS)
