"""What mini speech learns from: spoken digits joined into numbers, and short sentences that a synthesiser speaks.

Digits: the Free Spoken Digit Dataset (CC BY-SA 4.0), six speakers at 8 kHz; clips of one speaker are joined with short gaps. Sentences:
a small grammar of everyday words, spoken by the program `espeak-ng` in two voices, digits among them.
"""

import csv
import io
import os
import random
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import soundfile
import torch
from torch import Tensor

from mmspec.speech.sound.audio import at_rate, levelled
from mmspec.train.states.identity import keyed

RATE = 8000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
MADE = {"espeak": ("en-gb", 45), "espeak-high": ("en-us+f3", 60)}
"""The synthesiser's voices: its name for each, and the pitch."""
VOICES = (*SPEAKERS, *MADE)

_COLOURS = ("red", "green", "blue", "white", "black", "small", "big", "old", "new", "happy", "quiet", "young")
_THINGS = ("bird", "dog", "cat", "horse", "duck", "girl", "boy", "baker", "sister", "teacher", "farmer", "doctor", "king", "friend")
_DOES = ("sits", "sleeps", "sings", "waits", "runs", "plays", "works", "walks", "reads", "stands")
_WHERE = ("in the garden", "by the river", "at home", "in the house", "near the tree", "on the hill", "at school", "in the rain")
_ASKED = ("open", "close", "find", "bring", "show me", "look at", "take", "give me")
_OBJECTS = ("door", "window", "book", "letter", "apple", "bread", "water", "box", "table", "lamp")
_WHEN = ("now", "today", "tomorrow", "tonight", "again", "this morning")


@dataclass(frozen=True)
class SpokenClip:
    """One recorded digit."""

    digit: int
    speaker: str
    index: int
    split: str  # "train" or "test" (indices 0 to 4)
    wave: Tensor  # [T] at RATE, levelled


def clips(folder: Path) -> list[SpokenClip]:
    """The data set in `folder` (MMSPEC_DATA/fsdd). FileNotFoundError when it is not there."""
    if not (folder / "recordings_flac.zip").is_file():
        raise FileNotFoundError(f"no recordings_flac.zip in {folder}: set MMSPEC_DATA to the folder that holds fsdd")
    found = []
    with zipfile.ZipFile(folder / "recordings_flac.zip") as archive, (folder / "metadata.tsv").open(encoding="utf-8") as table:
        for row in csv.DictReader(table, delimiter="\t"):
            name = Path(row["file"]).with_suffix(".flac").name
            samples, rate = soundfile.read(io.BytesIO(archive.read(name)), dtype="float32")
            wave = levelled(at_rate(torch.from_numpy(samples), rate, RATE))
            found.append(SpokenClip(int(row["digit"]), row["speaker"], int(row["index"]), row["split"], wave))
    return found


def words(digits: list[int]) -> str:
    """[3, 5] -> "three five"."""
    return " ".join(DIGITS[digit] for digit in digits)


def digits(text: str) -> list[int] | None:
    """ "three five" -> [3, 5]; None where the text holds another word."""
    found = [DIGITS.index(word) if word in DIGITS else None for word in text.split()]
    return None if None in found else found  # pyright: ignore[reportReturnType]


def join_clips(found: list[SpokenClip], pick: random.Random) -> Tensor:
    """The clips one after the other, a short gap before, between and after them."""
    parts = [torch.zeros(pick.randrange(160, 480))]
    for clip in found:
        parts += [clip.wave, torch.zeros(pick.randrange(160, 800))]
    return torch.cat(parts)


def numbers(found: list[SpokenClip], count: int, seed: int, longest: int = 6) -> list[tuple[str, str, Tensor]]:
    """`count` spoken numbers of 1 to `longest` digits: (text, voice, wave). The same call gives the same ones."""
    pick = random.Random(seed)
    shelf: dict[tuple[str, int], list[SpokenClip]] = {}
    for clip in found:
        shelf.setdefault((clip.speaker, clip.digit), []).append(clip)
    made = []
    for _ in range(count):
        speaker, length = pick.choice(SPEAKERS), pick.randint(1, longest)
        chosen = [pick.choice(shelf[speaker, pick.randrange(10)]) for _ in range(length)]
        made.append((words([clip.digit for clip in chosen]), speaker, join_clips(chosen, pick)))
    return made


def all_words() -> tuple[str, ...]:
    """Every word that occurs, sorted."""
    lists = (
        _COLOURS,
        _THINGS,
        _DOES,
        _WHERE,
        _ASKED,
        _OBJECTS,
        _WHEN,
        DIGITS,
        [f"{thing}s" for thing in _THINGS],
        ["the please there are"],
    )
    return tuple(sorted({word for each in lists for phrase in each for word in phrase.split()}))


def sentence(pick: random.Random, split: str | None = None) -> str:
    """One of some 30,000 short sentences; three in ten are numbers. Of a split "train" or "test", of which no sentence is in both."""
    text = _sentence(pick)
    while split is not None and (crc32(text.encode()) % 10 == 0) != (split == "test"):
        text = _sentence(pick)
    return text


def _sentence(pick: random.Random) -> str:
    kind = pick.random()
    if kind < 0.3:
        return words([pick.randrange(10) for _ in range(pick.randint(1, 6))])
    if kind < 0.65:
        return f"the {pick.choice(_COLOURS)} {pick.choice(_THINGS)} {pick.choice(_DOES)} {pick.choice(_WHERE)}"
    if kind < 0.85:
        return f"please {pick.choice(_ASKED)} the {pick.choice(_COLOURS)} {pick.choice(_OBJECTS)} {pick.choice(_WHEN)}"
    return f"there are {DIGITS[pick.randrange(2, 10)]} {pick.choice(_COLOURS)} {pick.choice(_THINGS)}s {pick.choice(_WHERE)}"


def requests(count: int, seed: int, longest: int = 6) -> list[tuple[str, str]]:
    """Texts and voices to ask for, in turn: numbers of 1 to `longest` digits for the speakers, sentences for the synthesiser's voices."""
    pick, asked = random.Random(seed), []
    for turn in range(count):
        number = words([pick.randrange(10) for _ in range(pick.randint(1, longest))]), pick.choice(SPEAKERS)
        said = sentence(pick), pick.choice(tuple(MADE))
        asked.append(said if turn % 2 else number)
    return asked


def speak(text: str, voice: str, speed: int = 165, pitch: int = 0) -> Tensor:
    """`text` in one of `MADE`'s voices by the program espeak-ng, levelled, at RATE. FileNotFoundError where it is not installed."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise FileNotFoundError("the program espeak-ng is not installed: install it (Debian: apt-get install espeak-ng)")
    name, usual = MADE[voice]
    command = [program, "-v", name, "-s", str(speed), "-p", str(usual + pitch), "--stdout", text]
    samples, rate = soundfile.read(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout), dtype="float32")
    return levelled(at_rate(torch.from_numpy(samples), rate, RATE))


def sentences(count: int, seed: int, split: str | None = None) -> list[tuple[str, str, Tensor]]:
    """`count` sentences spoken at slightly different speeds and pitches: (text, voice, wave); of a split, see `sentence`."""
    pick, made = random.Random(seed), []
    for _ in range(count):
        text, voice = sentence(pick, split), pick.choice(tuple(MADE))
        wave = speak(text, voice, pick.randrange(150, 181), pick.randrange(-4, 5))
        made.append((text, voice, torch.cat([torch.zeros(pick.randrange(0, 320)), wave])))
    return made


Spoken = list[tuple[str, str, Tensor]]
"""Texts, voices and waves."""


def corpus(kept: Path, count: int, seed: int, split: str = "train") -> Spoken:
    """`count` spoken numbers of a split of the recorded digits, and as many sentences of it; made once and kept beside the file `kept`."""
    kept = keyed(kept, count, seed, split)
    if not kept.exists():
        data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
        found = [clip for clip in clips(data / "fsdd") if clip.split == split]
        made = [(text, voice, wave.half()) for text, voice, wave in numbers(found, count, seed) + sentences(count, seed, split)]
        temporary = kept.with_suffix(".tmp")
        torch.save(made, temporary)
        os.replace(temporary, kept)
    return [(text, voice, wave.float()) for text, voice, wave in torch.load(kept)]
