"""Pictures are read as people see them: upright, on white, as RGB; what cannot be read is one line that names it."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mmspec.text.inputs.pictures import marked, pictures_in, read_picture, split_arguments


def levels(path):
    return np.asarray(read_picture(path)).astype(int)


def test_rgb_is_as_it_was(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").mode == "RGB"
    assert (levels(tmp_path / "a.png") == values).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_seen_through_is_white(tmp_path, mode):
    picture = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (200, 200, 200, 255))
    if mode == "P":
        picture = Image.new("P", (2, 1), 0)
        picture.putpalette([0, 0, 0, 200, 200, 200])
        picture.putpixel((1, 0), 1)
        picture.save(tmp_path / "a.png", transparency=0)
    else:
        picture.convert(mode).save(tmp_path / "a.png")
    assert levels(tmp_path / "a.png").tolist() == [[[255] * 3, [200] * 3]]


def test_half_seen_through_is_mixed_with_white(tmp_path):
    Image.new("RGBA", (1, 1), (0, 0, 0, 128)).save(tmp_path / "a.png")
    assert levels(tmp_path / "a.png")[0, 0].tolist() == [127] * 3


def test_ink_and_grey_and_depth(tmp_path):
    Image.new("CMYK", (1, 1), (0, 255, 255, 0)).save(tmp_path / "a.tif")
    assert levels(tmp_path / "a.tif")[0, 0].tolist() == [255, 0, 0]
    Image.fromarray(np.array([[0, 32896, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert levels(tmp_path / "a.png")[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)).save(tmp_path / "b.tif")
    assert levels(tmp_path / "b.tif")[0, :, 1].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[-7, 100000, 200007]], np.int32)).save(tmp_path / "c.tif")
    assert levels(tmp_path / "c.tif")[0, :, 2].tolist() == [0, 128, 255]
    Image.new("1", (1, 1), 1).save(tmp_path / "d.png")
    assert levels(tmp_path / "d.png")[0, 0].tolist() == [255] * 3


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    picture = Image.new("RGB", (4, 2), "black")
    picture.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    picture.save(tmp_path / "a.png", exif=exif)
    found = levels(tmp_path / "a.png")
    assert found.shape == (4, 2, 3)
    assert found[0, 1].tolist() == [255] * 3
    assert found.sum() == 3 * 255


def test_the_first_picture_of_a_moving_one(tmp_path):
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    for name in ("a.gif", "a.webp"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **({"lossless": True} if name == "a.webp" else {}))
        assert levels(tmp_path / name)[0, 0].tolist() == [255, 0, 0]


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and is a few bytes."""
    part = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"\0" * 64)) + part(b"IEND", b"")


BROKEN = {
    "an empty file": (b"", "an empty file"),
    "text": (b"not a picture", "no picture that can be read"),
    "half a picture": (None, "is broken"),
    "a large one": (bomb(12000, 8000), "12000 x 8000 pixels, and at most 89,478,485"),
    "a bomb": (bomb(60000, 60000), "over 178,956,970 pixels, and at most 89,478,485"),
    "a document": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "no picture that can be read"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path, kind):
    content, words = BROKEN[kind]
    if content is None:
        buffer = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, format="PNG")
        content = buffer.getvalue()[:1500]
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png") as error:
        read_picture(tmp_path / "a.png")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_every_cut_of_a_file_is_a_picture_or_one_line(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(buffer, format="JPEG")
    whole, read, lines = buffer.getvalue(), 0, set()
    for end in range(0, len(whole), 7):
        (tmp_path / "a.jpg").write_bytes(whole[:end])
        try:
            read_picture(tmp_path / "a.jpg")
            read += 1
        except ValueError as error:
            lines.add(len(str(error).splitlines()))
    assert lines == {1}
    assert read <= 1  # a JPEG may lack its last marker


def test_places_that_hold_no_picture(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_picture(tmp_path / "a.png")
    with pytest.raises(ValueError, match="is no file"):
        read_picture(tmp_path)
    with pytest.raises(ValueError, match="holds no picture"):
        pictures_in(tmp_path)


def test_the_pictures_of_a_folder_come_in_order(tmp_path):
    for name in ("b.PNG", "a.jpg", "notes.txt", "in/c.webp", ".hidden.png", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert pictures_in(tmp_path) == ["a.jpg", "b.PNG", "in/c.webp"]


def test_marks_and_pictures_must_agree():
    assert marked("what?", 2, "<image>") == ["", "", "what?"]
    assert marked("left <image> right <image>?", 2, "<image>") == ["left ", " right ", "?"]
    for prompt, count in (("a <image>", 2), ("<image><image>", 1), ("<image>", 0)):
        with pytest.raises(ValueError, match="for each picture"):
            marked(prompt, count, "<image>")


def test_the_last_argument_is_the_prompt_unless_it_is_a_picture(tmp_path):
    there = str(tmp_path)
    assert split_arguments(["a.png"]) == (["a.png"], None)
    assert split_arguments(["a.png", "how many?"]) == (["a.png"], "how many?")
    assert split_arguments(["a.png", "b.png"]) == (["a.png", "b.png"], None)
    assert split_arguments(["a.png", there]) == (["a.png", there], None)
    assert split_arguments(["a.png", "x" * 5000]) == (["a.png"], "x" * 5000)
    assert split_arguments(["a.png", ""]) == (["a.png"], "")
    assert split_arguments(["a question"]) == (["a question"], None)
    assert split_arguments([]) == ([], None)
