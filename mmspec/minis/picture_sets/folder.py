"""A folder of one's own pictures: classes by subfolder, or captions and attributes by `captions.jsonl`; pixels are read once and kept."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec.text.inputs.pictures import pictures_in, read_picture
from mmspec.utils.files import note_skipped, write_json
from mmspec.utils.screen import track

CAPTIONS = "captions.jsonl"
_KEYS = ("file", "caption", "attributes")
_PART = 500  # pictures between two notes of how far reading has come


@dataclass(frozen=True)
class OwnPictures:
    """Pictures and what is known of them; one of `captions` and `classes` is given, or neither.

    Args:
        root: the folder.
        files: the pictures, relative to it.
        captions: one or more captions of each picture.
        classes: the class of each picture, a number of `labels`.
        labels: names of the classes.
        attributes: names and values that a judge checks, of each picture.
    """

    root: Path
    files: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...] = ()
    classes: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    attributes: tuple[Mapping[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.files)


def read_folder(root: str | Path) -> OwnPictures:
    """Return what a folder holds; no picture is opened.

    Args:
        root: a folder with `captions.jsonl`, of lines such as {"file": "a.png", "caption": "a red ball"}, where "caption" may be a list
            of captions of which training draws one, and "attributes": {"colour": "red"} may be added; or a folder with one subfolder a
            class; or pictures alone.

    Raises:
        ValueError: for a folder without pictures, and for a line that cannot be used, naming it.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"pictures {root} is no folder: give one with {CAPTIONS}, or with a subfolder for each class")
    if (root / CAPTIONS).exists():
        return _captioned(root)
    files = pictures_in(root)
    kinds = [name.split("/")[0] if "/" in name else None for name in files]
    if all(kind is None for kind in kinds):
        return OwnPictures(root, tuple(files))
    if None in kinds:
        stray = files[kinds.index(None)]
        raise ValueError(f"pictures {root} has subfolders and, beside them, {stray}: move it into the subfolder of its class")
    labels = sorted({str(kind) for kind in kinds})
    if len(labels) < 2:
        raise ValueError(f"pictures {root} has one class only, {labels[0]}: give two subfolders at least, or {CAPTIONS}")
    return OwnPictures(root, tuple(files), classes=tuple(labels.index(str(kind)) for kind in kinds), labels=tuple(labels))


def _captioned(root: Path) -> OwnPictures:
    """The folder by its file of captions."""
    rows = []
    for number, line in enumerate((root / CAPTIONS).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            rows.append(_row(root, number, line))
    if not rows:
        raise ValueError(f"{root / CAPTIONS} is empty: give one line a picture")
    files, captions, attributes = zip(*rows, strict=True)
    names = [sorted(each) for each in attributes]
    if any(each != names[0] for each in names):
        number = next(n for n, each in enumerate(names) if each != names[0])
        raise ValueError(
            f"{root / CAPTIONS}: {files[number]} has attributes {names[number]} and {files[0]} has {names[0]}: give all the same"
        )
    note_skipped(root, [root / CAPTIONS, *(root / file for file in files)], f"not named in {CAPTIONS}")
    return OwnPictures(root, files, captions, attributes=attributes if names[0] else ())


def _row(root: Path, number: int, line: str) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """File, captions and attributes of a line; ValueError, in one line, for what cannot be used."""
    where = f"{root / CAPTIONS}, line {number}"
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply, or holds too long a number"
        raise ValueError(f"{where} is no JSON ({reason})") from None
    if not isinstance(row, dict):
        raise ValueError(f'{where} is no object: write {{"file": ..., "caption": ...}}')
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise ValueError(f"{where} has {unknown[0]!r}, which nothing reads: the keys are {', '.join(_KEYS)}")
    file, caption, attributes = row.get("file"), row.get("caption"), row.get("attributes", {})
    captions = [caption] if isinstance(caption, str) else caption
    if not isinstance(file, str) or not (root / file).is_file():
        raise ValueError(f"{where}: file {file!r} is no file in {root}")
    if not isinstance(captions, list) or not captions or not all(isinstance(each, str) and each.strip() for each in captions):
        raise ValueError(f"{where}: caption is {caption!r:.60}: give a text, or a list of texts")
    if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
        raise ValueError(f'{where}: attributes is {attributes!r:.60}: give texts by name, such as {{"colour": "red"}}')
    return file, tuple(captions), attributes


def folder_pixels(folder: OwnPictures, size: int, work: Path) -> np.ndarray:
    """Return the pictures as uint8 [N, size, size, 3], a memory map: the middle square of each, resized.

    They are read once and kept in `work`; a stopped reading goes on, and a changed folder is read anew.

    Args:
        folder: what `read_folder` returned.
        size: pixels a side.
        work: where to keep them.

    Raises:
        ValueError: for a picture that cannot be read, naming it.
    """
    kept, part, note = (work / f"pixels-{size}{end}" for end in (".npy", ".part.npy", ".json"))
    digest = hashlib.sha256(str(size).encode())
    for name in folder.files:
        status = (folder.root / name).stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    same, done = digest.hexdigest(), 0
    if note.exists():
        found = json.loads(note.read_text(encoding="utf-8"))
        done = found["done"] if found["digest"] == same else 0
    if done == len(folder) and kept.exists():
        return np.load(kept, mmap_mode="r")
    if not part.exists():
        done = 0
    work.mkdir(parents=True, exist_ok=True)
    shape = (len(folder), size, size, 3)
    table = np.lib.format.open_memmap(part, "r+" if done else "w+", np.uint8, None if done else shape)
    for number in track(range(done, len(folder)), f"reading {len(folder)} pictures", disable=len(folder) < _PART):
        table[number] = _square(read_picture(folder.root / folder.files[number]), size)
        if (number + 1) % _PART == 0:
            table.flush()
            write_json(note, {"digest": same, "done": number + 1})
    table.flush()
    del table
    os.replace(part, kept)
    write_json(note, {"digest": same, "done": len(folder)})
    return np.load(kept, mmap_mode="r")


def _square(picture: Image.Image, size: int) -> np.ndarray:
    """The middle square of a picture as bytes [size, size, 3]."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    cut = picture.crop((left, top, left + side, top + side))
    return np.asarray(cut if side == size else cut.resize((size, size), Image.Resampling.LANCZOS))
