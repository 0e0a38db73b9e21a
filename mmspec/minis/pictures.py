"""Fashion-MNIST, read from the data folder (MMSPEC_DATA) as uint8 arrays; it does not ship. Which pictures of a set are held out."""

import gzip
from pathlib import Path

import numpy as np

FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def fashion(data: Path, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Return Fashion-MNIST: grey pictures [N, 28, 28] on black and classes [N], named in FASHION. `part` is "train" or "test"."""
    if part not in ("train", "test"):
        raise ValueError(f"part is {part!r}: Fashion-MNIST has 'train' and 'test'")
    start = data / "fashion-mnist" / ("train" if part == "train" else "t10k")
    pictures, classes = (read_idx(start.with_name(f"{start.name}-{kind}-ubyte.gz")) for kind in ("images-idx3", "labels-idx1"))
    if len(pictures) != len(classes):
        raise ValueError(f"{start}: {len(pictures)} pictures and {len(classes)} classes; fetch the set again")
    return pictures, classes


def read_idx(path: Path) -> np.ndarray:
    """Return the array of bytes in a gzipped IDX file: two zeros, the type (8 = bytes), the number of axes, each size as 4 bytes, the
    data.
    """
    with gzip.open(path, "rb") as file:
        raw = file.read()
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} begins with {raw[:3]!r}: an IDX file of bytes begins with {bytes((0, 0, 8))!r}; fetch the set again")
    shape = tuple(int(side) for side in np.frombuffer(raw, ">u4", count=raw[3], offset=4))
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if len(body) != np.prod(shape):
        raise ValueError(f"{path} holds {len(body)} bytes and its header says {shape}; fetch the set again")
    return body.reshape(shape)


def held_out(count: int) -> np.ndarray:
    """Return which of `count` pictures are kept from training: every tenth, [count] bool."""
    return np.arange(count) % 10 == 0
