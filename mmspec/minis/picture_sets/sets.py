"""A set of pictures in two parts, for training and held out, with what each picture is written from: Fashion-MNIST, or a folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.minis import pictures
from mmspec.minis.picture_sets.folder import OwnPictures, folder_pixels, read_folder
from mmspec.train.held_out import HeldOut, apart, array_keys
from mmspec.utils.screen import track
from mmspec.vision.codes import tokenizer as tokens


@dataclass(frozen=True)
class PicturePart:
    """Some pictures of a set. `part[index]` gives their bytes.

    Args:
        pixels: uint8 [N, H, W] or [N, H, W, 3] of the whole set; may be a memory map.
        rows: int64 [M], which of them are meant.
        conditions: of each of the M: a class number, or a list of captions; empty if nothing is known.
        mirror: bool [M], which may be mirrored.
        attributes: int64 [M, A], what a judge checks: the value of each attribute, a number of its list in `LabelledPictures.values`.
    """

    pixels: np.ndarray
    rows: np.ndarray
    conditions: list
    mirror: np.ndarray
    attributes: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self.pixels[self.rows[index]])

    def floats(self, index: Any) -> Tensor:
        """Return pictures as float32 [B, C, H, W] in [-1, 1]; `index` is a tensor, an array or a slice."""
        return tokens.as_tensor(self[index.numpy() if isinstance(index, Tensor) else index])


@dataclass(frozen=True)
class LabelledPictures:
    """A set of pictures.

    Args:
        train: the pictures to train on.
        held: the pictures kept from training; none of them is also among those to train on.
        labels: names of the classes; empty unless pictures are written from classes.
        values: what a judge checks: the values of each attribute by its name. Of classes one attribute, "class".
    """

    train: PicturePart
    held: PicturePart
    labels: tuple[str, ...] = ()
    values: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def split(self) -> HeldOut:
        """Numbers of the pictures of `train`, and those of `held`, which have been told apart from them."""
        return HeldOut(tuple(range(len(self.train))), tuple(range(len(self.held))), frozenset(array_keys(self.held.pixels[self.held.rows])))

    @property
    def size(self) -> int:
        """Pixels a side."""
        return self.train.pixels.shape[1]

    @property
    def colours(self) -> int:
        """Colour channels."""
        return 1 if self.train.pixels.ndim == 3 else 3


def labelled_pictures(name: str | Path, *, size: int = 64, mirror: bool = False, work: Path | None = None) -> LabelledPictures:
    """Return a set of pictures.

    Args:
        name: "fashion", read from the data folder (MMSPEC_DATA), or a folder, see `read_folder`; every tenth picture of a folder is held
            out.
        size: pixels a side of a folder's pictures.
        mirror: whether a folder's pictures keep their meaning in a mirror.
        work: where the pixels of a folder are kept.

    Raises:
        ValueError: for a folder that cannot be used, or that has fewer than 20 pictures.
    """
    if name == "fashion":
        return _fashion(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
    folder = read_folder(name)
    if len(folder) < 20:
        raise ValueError(f"pictures {name} has {len(folder)} pictures: training needs 20 at least, of which every tenth is held out")
    found = folder_pixels(folder, size, Path(f"build/pictures-{folder.root.name}") if work is None else work)
    values, attributes = _attributes(folder)
    conditions: list = list(folder.classes) or [list(texts) for texts in folder.captions]
    held = pictures.held_out(len(folder))
    return _parts(found, conditions, np.full(len(folder), mirror), attributes, held, folder.labels, values)


def training_captions(folder: str | Path) -> list[str]:
    """Return the first caption of every training picture of a folder; no picture is opened.

    Raises:
        ValueError: for a folder without captions.
    """
    found = [texts[0] for texts in read_folder(folder).captions]
    if not found:
        raise ValueError(f"pictures {folder} has no captions: give a folder with captions.jsonl")
    return [text for text, held in zip(found, pictures.held_out(len(found)), strict=True) if not held]


def random_pictures(size: int, colours: int, *, classes: int = 2, count: int = 32) -> LabelledPictures:
    """Return a set of noise, for `--smoke`.

    Args:
        size: pixels a side.
        colours: 1 or 3.
        classes: number of classes in turn.
        count: pictures; every tenth is held out.
    """
    generator = np.random.default_rng(0)
    found = generator.integers(0, 256, (count, size, size, 3)[: 3 if colours == 1 else 4], dtype=np.uint8)
    kinds, names = np.arange(count) % classes, [f"kind: {number}" for number in range(classes)]
    mirror = np.ones(count, dtype=bool)
    return _parts(found, kinds.tolist(), mirror, kinds[:, None], pictures.held_out(count), names, {"class": names})


def _attributes(folder: OwnPictures) -> tuple[dict[str, list[str]], np.ndarray]:
    """The values of each attribute by name, and their numbers [N, A]."""
    if folder.classes:
        return {"class": list(folder.labels)}, np.array(folder.classes)[:, None]
    names = list(folder.attributes[0]) if folder.attributes else []
    values = {name: sorted({row[name] for row in folder.attributes}) for name in names}
    numbers = [[values[name].index(row[name]) for name in names] for row in folder.attributes]
    return values, np.array(numbers or [[]] * len(folder), np.int64)


def _fashion(data: Path) -> LabelledPictures:
    parts = [pictures.fashion(data, part) for part in ("train", "test")]
    made = []
    for shown, classes in parts:
        mirror = np.isin(classes, (0, 1, 2, 3, 4, 6, 8))  # shoes all look one way
        made.append(PicturePart(shown, np.arange(len(shown)), classes.tolist(), mirror, classes.astype(np.int64)[:, None]))
    return _apart(LabelledPictures(made[0], made[1], pictures.FASHION, {"class": list(pictures.FASHION)}))


def _parts(
    found: np.ndarray,
    conditions: Sequence[Any],
    mirror: np.ndarray,
    attributes: np.ndarray,
    held: np.ndarray,
    labels: Sequence[str],
    values: dict[str, list[str]],
) -> LabelledPictures:
    def part(which: np.ndarray) -> PicturePart:
        rows = np.flatnonzero(which)
        given = [conditions[row] for row in rows.tolist()] if len(conditions) else []
        return PicturePart(found, rows, given, mirror[rows], attributes[rows])

    return _apart(LabelledPictures(part(~held), part(held), tuple(labels), values))


def _apart(data: LabelledPictures) -> LabelledPictures:
    """`data` without the held-out pictures that are also trained on."""
    train, held = ([key for rows in _chunks(part.rows) for key in array_keys(part.pixels[rows])] for part in (data.train, data.held))
    kept = np.array(apart(train, held, "pictures").held)
    part = data.held
    conditions = [part.conditions[number] for number in kept] if part.conditions else []
    return replace(data, held=PicturePart(part.pixels, part.rows[kept], conditions, part.mirror[kept], part.attributes[kept]))


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, max(1, len(rows) // 1024))


@torch.no_grad()
def code_table(model: Any, part: PicturePart, *, mirrored: bool = False, title: str = "pictures") -> Tensor:
    """Return the codes of a part's pictures, with a progress bar.

    Args:
        model: the tokenizer, a diffusers `VQModel`.
        part: the pictures.
        mirrored: add a second version of each picture: mirrored where the part allows it, else the plain one again.
        title: what the progress bar says.

    Returns:
        int16 [N, versions, h * w], raster order.
    """
    table = []
    for first in track(range(0, len(part), 256), f"codes of {title}", disable=len(part) < 512):
        rows = slice(first, first + 256)
        shown, mirror = part[rows], part.mirror[rows]
        versions = [tokens.encode_codes(model, shown).flatten(1)]
        if mirrored:
            flipped = tokens.encode_codes(model, np.ascontiguousarray(shown[:, :, ::-1])).flatten(1)
            versions.append(torch.where(torch.tensor(mirror)[:, None], flipped, versions[0]))
        table.append(torch.stack(versions, 1).to(torch.int16).cpu())
    return torch.cat(table)
