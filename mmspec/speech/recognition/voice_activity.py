"""Where somebody speaks: a recording cut at pauses into windows, by Silero's detector, so that its windows are decoded together.

Silero VAD (Silero Team, 2021; MIT licence) comes with its weights: `pip install mmspec[vad]`.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mmspec.speech.sound.audio import at_rate

_RATE = 16_000
_MARGIN = 0.2
"""Seconds of sound kept before and behind speech."""


@cache
def _detector() -> Any:
    if find_spec("silero_vad") is None:
        raise ValueError("vad needs Silero's detector: pip install silero-vad, or leave vad out")
    from silero_vad import load_silero_vad

    threads = torch.get_num_threads()
    try:
        return load_silero_vad()
    finally:
        torch.set_num_threads(threads)  # the package sets one


def speech_parts(wave: Tensor, rate: int, longest: float) -> list[tuple[int, int]]:
    """Return where there is speech, as parts of at most `longest` seconds that begin and end in pauses where they can.

    Args:
        wave: float [T].
        rate: samples a second.
        longest: seconds.

    Returns:
        (first, end) samples of each part, in order; empty for silence.

    Raises:
        ValueError: if the detector is not installed.
    """
    detector = _detector()
    from silero_vad import get_speech_timestamps

    found = get_speech_timestamps(
        at_rate(wave, rate, _RATE), detector, sampling_rate=_RATE, max_speech_duration_s=longest - 2 * _MARGIN, return_seconds=True
    )
    spoken = [(max(0.0, each["start"] - _MARGIN), min(len(wave) / rate, each["end"] + _MARGIN)) for each in found]
    return [(round(first * rate), round(end * rate)) for first, end in joined(spoken, longest)]


def joined(spoken: Sequence[tuple[float, float]], longest: float) -> list[tuple[float, float]]:
    """Return parts in seconds, in order, joined to parts that are as long as `longest` allows."""
    found: list[tuple[float, float]] = []
    for first, end in spoken:
        if found and end - found[-1][0] <= longest:
            found[-1] = (found[-1][0], end)
        else:
            found.append((max(first, found[-1][1]) if found else first, end))
    return found
