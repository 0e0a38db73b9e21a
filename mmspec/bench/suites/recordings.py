"""Recordings with the words that are said in them, from MMSPEC_DATA: sentences of LJ Speech, alone and joined to windows of 30 seconds, and
digits that one speaker says in a row.
"""

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.minis.speech_data import DIGITS, RATE, SPEAKERS, clips, join_clips, words
from mmspec.speech.sound.audio import at_rate, read_sound
from mmspec.utils.names import unknown

_ROWS, _LONG = 2, 10  # rows of digits of every speaker, and digits of a row
_WINDOW = 30  # seconds that a recogniser hears at once


@dataclass(frozen=True)
class Recording:
    """A recording: its kind, a name such as "ljspeech/LJ001-0001", the words that are said, and the wave [T]."""

    kind: str
    name: str
    text: str
    wave: Tensor


def recordings_of(kind: str, rate: int, data: Path | None = None) -> list[Recording]:
    """Return every recording of a kind.

    Args:
        kind: one of `RECORDINGS`.
        rate: samples a second of the waves.
        data: the folder of data sets; MMSPEC_DATA, else ../shared/data.

    Raises:
        ValueError: for data that is not there.
    """
    return RECORDINGS[kind](rate, data or Path(os.environ.get("MMSPEC_DATA", "../shared/data")))


def recorded_kinds(names: str | None) -> tuple[str, ...]:
    """Return the kinds that a list separated by commas names; all for None. ValueError for unknown ones."""
    asked = tuple(RECORDINGS) if names is None else tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in asked:
        if name not in RECORDINGS:
            raise unknown("kind of recordings", name, RECORDINGS)
    return asked


def compared_words(text: str) -> str:
    """Return the words of a text as they are compared: without case and punctuation, digits one by one."""
    spelled = re.sub(r"\d", lambda digit: f" {DIGITS[int(digit[0])]} ", text.lower())
    return " ".join(re.sub(r"[^\w' ]", " ", spelled).split())


def _sentences(rate: int, data: Path) -> list[Recording]:
    home = data / "ljspeech-8"
    if not (home / "metadata.csv").is_file():
        raise ValueError(f"{home} holds no recordings: set MMSPEC_DATA to the folder of data sets that holds ljspeech-8")
    lines = [line.split("|") for line in (home / "metadata.csv").read_text(encoding="utf-8").splitlines()]
    return [Recording("ljspeech", f"ljspeech/{name}", text, read_sound(home / f"{name}.flac", rate)) for name, *_, text in lines]


def _joined(rate: int, data: Path) -> list[Recording]:
    """Sentences in a row, as many as a window holds, beginning with each of them; the first one follows the last."""
    sentences, found = _sentences(rate, data), []
    for first in range(len(sentences)):
        row, length = [], 0
        for each in (*sentences[first:], *sentences[:first]):
            if length + len(each.wave) > _WINDOW * rate:
                break
            row.append(each)
            length += len(each.wave)
        name = sentences[first].name.replace("ljspeech/", "joined/", 1)
        if row:
            found.append(Recording("joined", name, " ".join(each.text for each in row), torch.cat([each.wave for each in row])))
    return found


def _digits(rate: int, data: Path) -> list[Recording]:
    """Rows of clips of the official test split."""
    try:
        spoken = [clip for clip in clips(data / "fsdd") if clip.split == "test"]
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    found = []
    for speaker in SPEAKERS:
        own, pick = [clip for clip in spoken if clip.speaker == speaker], random.Random(speaker)
        for row in range(_ROWS if own else 0):
            chosen = pick.choices(own, k=_LONG)
            wave = at_rate(join_clips(chosen, pick), RATE, rate)
            found.append(Recording("digits", f"digits/{speaker}-{row}", words([clip.digit for clip in chosen]), wave))
    return found


RECORDINGS: dict[str, Callable[[int, Path], list[Recording]]] = {"ljspeech": _sentences, "joined": _joined, "digits": _digits}
"""Kind -> (rate, the folder of data sets) -> its recordings."""
