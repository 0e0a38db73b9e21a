"""What an example shows its reader, judged: pictures and sound by the minis' own judges, texts by whether they go round in circles."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mmspec.minis import HOME
from mmspec.minis.images import asked_values, load_judge
from mmspec.minis.speech_model import load_recogniser
from mmspec.speech.sound.audio import read_sound
from mmspec.vision.codes.tokenizer import as_tensor
from mmspec.vision.quality.classifier import classify, seen_values


@cache
def judge(name: str) -> Any:
    return load_judge(HOME / "vision" / name)


def wrong_pictures(prompt: str, images: Sequence[Any], labels: Sequence[str] = ()) -> list[int]:
    """The numbers of pictures that do not show what their prompt says, by mini vision's judge."""
    found = judge("fashion" if labels else "scenes")
    wanted = asked_values(found, [prompt], labels)
    assert wanted is not None, prompt
    seen = seen_values(found, classify(found, as_tensor(list(images)))[0])
    return torch.nonzero((seen != wanted).any(1))[:, 0].tolist()


@cache
def recogniser() -> Any:
    return load_recogniser(HOME / "speech")


def heard(path: Path) -> str:
    """What mini speech's recogniser hears in a sound file."""
    return recogniser().hear(read_sound(path, recogniser().config.rate))


def goes_round(text: str) -> bool:
    """Whether a text is empty, or says one line three times, or hardly any two words."""
    lines, words = Counter(line.strip() for line in text.splitlines() if line.strip()), re.findall(r"\w+", text)
    return not words or max(lines.values()) > 2 or len(set(words)) < 0.3 * len(words)
