"""The picture sets of the minis, read from the data folder (MMSPEC_DATA) as uint8 arrays; none of them ships."""

import gzip
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_SIDED = re.compile(r"left|right|clock|thirty|number|letter|word|symbol|dollar|euro|pound|yen|medal|calendar|date|globe|map")


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


def emoji(data: Path) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return Noto emoji on white: pictures [N, 64, 64, 3] and their captions (name, group, subgroup, keywords), in the caption file's
    order.
    """
    rows = emoji_rows(data)
    with zipfile.ZipFile(data / "noto-emoji-64" / "images_64.zip") as box:
        return np.stack([_on_white(box.read(row["file"])) for row in rows]), rows


def emoji_rows(data: Path) -> list[dict[str, Any]]:
    """Return the captions of Noto emoji (name, group, subgroup, keywords), in their file's order."""
    text = (data / "noto-emoji-64" / "captions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _on_white(raw: bytes) -> np.ndarray:
    """A picture file as [H, W, 3] bytes, its transparent parts white."""
    picture = Image.open(io.BytesIO(raw)).convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB"))


def held_out(count: int) -> np.ndarray:
    """Return which of `count` emoji are kept from training: every tenth, [count] bool."""
    return np.arange(count) % 10 == 0


def may_mirror(row: Mapping[str, Any]) -> bool:
    """Return True if an emoji keeps its meaning in a mirror: not with writing, clock hands, maps, sides or arrows."""
    return row["group"] not in ("Symbols", "Flags") and not _SIDED.search(row["name"])


def emoji_classes(rows: Sequence[Mapping[str, Any]], least: int = 24) -> tuple[np.ndarray, list[str]]:
    """Return a class for every emoji [N], and the classes' names: "group: subgroup", or "group: other" for subgroups of fewer than
    `least`.
    """
    count = Counter((row["group"], row["subgroup"]) for row in rows)
    named = [f"{row['group']}: {row['subgroup'] if count[row['group'], row['subgroup']] >= least else 'other'}" for row in rows]
    names = sorted(set(named))
    return np.array([names.index(name) for name in named]), names
