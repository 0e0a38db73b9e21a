"""Folders of one's own pictures, and drawn scenes with captions."""

import json
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.minis.drawn.captioned import COLOURS, NOTHING, SHAPES, SIZES, captioned_scene, draw_captioned, read_caption
from mmspec.minis.picture_sets import folder as folders
from mmspec.minis.picture_sets.folder import CAPTIONS, folder_pixels, read_folder
from mmspec.minis.picture_sets.sets import code_table, labelled_pictures, random_pictures, training_captions
from mmspec.vision.codes import tokenizer as tokens


def plain(path, colour, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def class_folder(root, each=12):
    for number, (name, colour) in enumerate({"dark": (9, 9, 9), "light": (240, 240, 240)}.items()):
        for picture in range(each):
            path = root / name / f"{picture:02}.png"
            plain(path, colour, (6 + number, 6))
            shown = Image.open(path)
            shown.putpixel((2, 0), (picture, 0, 0))  # no two are the same
            shown.save(path)
    return root


def captioned_folder(root, count=20):
    (root / "images").mkdir(parents=True)
    lines = []
    for number in range(count):
        scene = captioned_scene(3, number)
        draw_captioned(scene, 16).save(root / "images" / f"{number}.png")
        lines.append(json.dumps({"file": f"images/{number}.png", "caption": scene.caption, "attributes": scene.attributes}))
    (root / CAPTIONS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def test_subfolders_are_classes_and_every_tenth_is_held_out(tmp_path):
    data = labelled_pictures(class_folder(tmp_path / "mine"), size=6, work=tmp_path / "work")
    assert (data.labels, data.size, data.colours) == (("dark", "light"), 6, 3)
    assert (len(data.train), len(data.held)) == (21, 3)
    assert data.values == {"class": ["dark", "light"]}
    for part in (data.train, data.held):
        assert part.attributes[:, 0].tolist() == part.conditions
        assert not part.mirror.any()
        for number, kind in enumerate(part.conditions):
            assert (part[number][1:] == (240 if kind else 9)).all()
    assert labelled_pictures(tmp_path / "mine", size=6, mirror=True, work=tmp_path / "work").train.mirror.all()


def test_captions_and_attributes_are_read_as_written(tmp_path):
    data = labelled_pictures(captioned_folder(tmp_path / "mine"), size=16, work=tmp_path / "work")
    scene = captioned_scene(3, 10)
    assert data.held.conditions[1] == [scene.caption]
    seen = {name: values[n] for (name, values), n in zip(data.values.items(), data.held.attributes[1], strict=True)}
    assert seen == scene.attributes
    assert (data.held[1] == np.asarray(draw_captioned(scene, 16))).all()
    assert training_captions(tmp_path / "mine")[0] == captioned_scene(3, 1).caption
    assert len(training_captions(tmp_path / "mine")) == 18


def test_pixels_are_read_once_and_a_stopped_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_PART", 4)
    found, read = read_folder(class_folder(tmp_path / "mine", each=5)), []

    def stops(path):
        if len(read) == 6:
            raise KeyboardInterrupt
        read.append(path)
        return original(path)

    original = folders.read_picture
    monkeypatch.setattr(folders, "read_picture", stops)
    with pytest.raises(KeyboardInterrupt):
        folder_pixels(found, 6, tmp_path / "work")
    read[:] = read[:4]  # what was noted down
    monkeypatch.setattr(folders, "read_picture", lambda path: read.append(path) or original(path))
    once = folder_pixels(found, 6, tmp_path / "work")
    assert [path.relative_to(found.root).as_posix() for path in read] == list(found.files)
    assert once.shape == (10, 6, 6, 3)
    folder_pixels(found, 6, tmp_path / "work")
    assert len(read) == 10
    plain(found.root / "dark" / "00.png", (1, 2, 3))  # a changed picture
    os.utime(found.root / "dark" / "00.png", (1, 1))
    assert (folder_pixels(read_folder(found.root), 6, tmp_path / "work")[0] == (1, 2, 3)).all()
    assert len(read) == 20


def test_the_middle_square_is_taken(tmp_path):
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 200
    for kind in ("a", "b"):
        (tmp_path / "mine" / kind).mkdir(parents=True)
        Image.fromarray(wide).save(tmp_path / "mine" / kind / "wide.png")
    assert (folder_pixels(read_folder(tmp_path / "mine"), 4, tmp_path / "work") == 200).all()


MISTAKES = {
    "no JSON": ("{", "line 1 is no JSON"),
    "no object": ("[1]", "line 1 is no object"),
    "an unknown key": ('{"file": "a.png", "text": "x"}', "'text', which nothing reads"),
    "no file": ('{"file": "b.png", "caption": "x"}', "'b.png' is no file"),
    "no caption": ('{"file": "a.png", "caption": " "}', "give a text"),
    "numbers": ('{"file": "a.png", "caption": "x", "attributes": {"colour": 3}}', "give texts by name"),
    "uneven": ('{"file": "a.png", "caption": "x", "attributes": {"b": "c"}}\n{"file": "a.png", "caption": "x"}', "give all the same"),
    "nothing": ("", "is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_line_that_cannot_be_used_is_named(mistake, tmp_path):
    text, words = MISTAKES[mistake]
    plain(tmp_path / "a.png", "red")
    (tmp_path / CAPTIONS).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words) as error:
        read_folder(tmp_path)
    assert "\n" not in str(error.value)


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no picture"):
        read_folder(tmp_path)
    plain(tmp_path / "one" / "a.png", "red")
    with pytest.raises(ValueError, match="one class only"):
        read_folder(tmp_path)
    plain(tmp_path / "b.png", "red")
    with pytest.raises(ValueError, match="move it into the subfolder"):
        read_folder(tmp_path)
    alone = tmp_path / "alone"
    plain(alone / "a.png", "red")
    assert read_folder(alone).files == ("a.png",)
    with pytest.raises(ValueError, match="needs 20 at least"):
        labelled_pictures(alone, size=8, work=tmp_path / "work")
    with pytest.raises(ValueError, match="has no captions"):
        training_captions(alone)


def test_scenes_say_what_they_show():
    kinds = set()
    for number in range(200):
        scene = captioned_scene(0, number)
        assert scene == captioned_scene(0, number)
        assert 1 <= len(scene.objects) <= 2
        said = {f"{each.place} {name}": getattr(each, name) for each in scene.objects for name in ("colour", "shape", "size")}
        assert {name: value for name, value in scene.attributes.items() if value != NOTHING} == said
        assert all(word in scene.caption for word in said.values())
        kinds |= {(each.colour, each.shape, each.size) for each in scene.objects}
    assert {len(set(each)) for each in zip(*kinds, strict=True)} == {len(COLOURS), len(SHAPES), len(SIZES)}
    assert scene.caption.count(" and ") == len(scene.objects) - 1
    with pytest.raises(ValueError, match="1 to 4 objects"):
        captioned_scene(0, 0, most=5)


def test_captions_are_read_back():
    for number in range(100):
        scene = captioned_scene(0, number)
        again = read_caption(scene.caption)
        assert again.attributes == scene.attributes
        assert again.caption == scene.caption
    swapped = read_caption("A large blue ring bottom left and a small green heart top right")
    assert swapped.caption == "a small green heart top right and a large blue ring bottom left"


@pytest.mark.parametrize(
    ("caption", "said"),
    [
        ("a red apple", "'a red apple' does not describe an object"),
        ("a red star top left", "a size (small, large)"),
        ("a large red star left top", "a corner (top left,"),
        ("a large red star top left and a large mauve star top right", "'a large mauve star top right'"),
        ("a large red star top left and a small blue ring top left", "two objects in one corner"),
        ("", "does not describe"),
    ],
)
def test_other_captions_are_refused(caption, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        read_caption(caption)
    assert "\n" not in str(error.value)


def test_an_object_is_drawn_in_its_corner_and_colour():
    for number in range(40):
        scene = captioned_scene(1, number)
        pixels = np.asarray(draw_captioned(scene, 64)).astype(int)
        for corner, place in enumerate(("top left", "top right", "bottom left", "bottom right")):
            cell = pixels[32 * (corner // 2) :, 32 * (corner % 2) :][:32, :32].reshape(-1, 3)
            drawn = cell[(cell != 255).any(1)]
            colour = scene.attributes[f"{place} colour"]
            assert (len(drawn) > 8) == (colour != NOTHING), (scene.caption, place)
            if colour != NOTHING:
                nearest = min(abs(drawn - COLOURS[colour]).sum(1))
                assert nearest == 0


def test_codes_of_a_set_with_and_without_a_mirror():
    torch.manual_seed(0)
    vq = tokens.make_tokenizer(**tokens.sizes_for(16, 4, codes=16, width=8)).eval()
    part = random_pictures(16, 3, count=20).train
    table = code_table(vq, part, mirrored=True)
    assert table.shape == (18, 2, 16)
    assert torch.equal(table[:, 0].long(), tokens.encode_codes(vq, part[:]).flatten(1))
    assert torch.equal(table[:, 1].long(), tokens.encode_codes(vq, part[:][:, :, ::-1].copy()).flatten(1))
    part.mirror[:] = False
    assert torch.equal(*code_table(vq, part, mirrored=True).unbind(1))


@pytest.mark.parametrize(
    ("size", "grid", "patch", "levels"), [(64, 16, 4, 1), (48, 24, 2, 1), (96, 12, 4, 2), (40, 40, 1, 1), (128, 4, 4, 4)]
)
def test_any_size_and_grid(size, grid, patch, levels):
    sizes = tokens.sizes_for(size, grid, codes=16, width=8)
    assert (sizes["patch"], len(sizes["channels"])) == (patch, levels)
    model = tokens.make_tokenizer(**sizes).eval()
    codes = tokens.encode_codes(model, torch.zeros(1, 3, size, size))
    assert codes.shape == (1, grid, grid)
    assert tokens.codes_to_pixels(model, codes).shape == (1, 3, size, size)


@pytest.mark.parametrize(("size", "grid"), [(60, 16), (48, 16), (8, 16), (16, 0)])
def test_a_size_that_is_no_power_of_two_times_the_grid_is_refused(size, grid):
    with pytest.raises(ValueError, match="times the grid"):
        tokens.sizes_for(size, grid)
