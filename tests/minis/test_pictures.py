"""Reading Fashion-MNIST, on tiny made-up files in the same format."""

import gzip

import numpy as np
import pytest

from mmspec.minis import pictures


def write_idx(path, array, head=b"\x00\x00\x08"):
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    with gzip.open(path, "wb") as file:
        file.write(head + bytes([array.ndim]) + sides + array.tobytes())


def write_fashion(data, count=5, classes=5):
    found = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    for start in ("train", "t10k"):
        write_idx(data / "fashion-mnist" / f"{start}-images-idx3-ubyte.gz", found)
        write_idx(data / "fashion-mnist" / f"{start}-labels-idx1-ubyte.gz", np.arange(classes, dtype=np.uint8))
    return found


def test_fashion_is_read_as_written(tmp_path):
    written = write_fashion(tmp_path)
    for part in ("train", "test"):
        shown, classes = pictures.fashion(tmp_path, part)
        assert (shown == written).all()
        assert classes.tolist() == [0, 1, 2, 3, 4]


def test_an_unknown_part_and_uneven_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="'train' and 'test'"):
        pictures.fashion(tmp_path, "all")
    write_fashion(tmp_path, classes=4)
    with pytest.raises(ValueError, match="5 pictures and 4 classes"):
        pictures.fashion(tmp_path)


def test_a_file_of_another_kind_or_cut_short_is_refused(tmp_path):
    array = np.zeros((2, 3), np.uint8)
    write_idx(tmp_path / "floats.gz", array, head=b"\x00\x00\x0d")
    with pytest.raises(ValueError, match=r"floats\.gz begins with"):
        pictures.read_idx(tmp_path / "floats.gz")
    with gzip.open(tmp_path / "short.gz", "wb") as file:
        file.write(b"\x00\x00\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(5))
    with pytest.raises(ValueError, match="holds 5 bytes"):
        pictures.read_idx(tmp_path / "short.gz")


def test_every_tenth_is_held_out():
    assert np.flatnonzero(pictures.held_out(25)).tolist() == [0, 10, 20]
