"""The demo's speech: the shipped mini's example texts, by every method with the same seeds."""

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from mmspec.bench.compare.run import versus
from mmspec.bench.compare.speech import speech_methods
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import millions
from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.loading.text import device_of
from mmspec.minis import HOME, Mini, load
from mmspec.speech import synthesize

METHODS = {
    "plain": "one code a forward",
    "model": "a smaller model drafts a chain",
    "heads": "heads on the target draft a chain",
    "tree": "the heads draft a planned tree",
    "tree tau 3": "the same tree, a draft token may be any of 3 draws",
    "pcg codec": "the chain, accepted by groups of codes that sound alike",
}
_BUDGET = 20.0  # seconds after which no further text is begun
_POINTS, _HOP, _STRIP = 256, 80, 10  # of a spectrogram: samples of a window and between windows, and the strip's height in pixels
_SHADES = np.array([(74, 144, 217), (250, 200, 90)], np.uint8)


@dataclass
class SpeechRun:
    """One text by one method."""

    wave: Tensor  # [T]
    codes: Tensor  # [S]
    committed: list[int]  # codes committed by each forward
    stats: Any
    first_sound: float
    seconds: float  # of the whole call
    same: bool = False  # sample for sample plain decoding's sound


@dataclass
class SpeechResults:
    """Data of the section."""

    mini: Mini
    texts: list[tuple[str, str]]  # and voices
    runs: dict[str, list[SpeechRun]] = field(default_factory=dict)


def there() -> bool:
    """Return True if the mini is installed."""
    return (HOME / "speech" / "target" / "model.safetensors").exists()


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return len(METHODS) * _examples(request) + 1


def section(request: DemoRequest) -> Section:
    """Synthesize every text by every method in turn, and compare with plain decoding."""
    mini = load("speech")
    mini.target.model.to(device_of(request.device))
    texts = list(zip(mini.examples["texts"], mini.examples["voice"], strict=True))[: _examples(request)]
    found, given = SpeechResults(mini, texts, {way: [] for way in METHODS}), speech_methods(mini)
    _once(mini, given["model"], texts[0], request.seed)  # the first run pays for allocations
    request.done()
    start = perf_counter()
    for number, text in enumerate(texts):
        if number and perf_counter() - start > _BUDGET:  # a slow machine shows fewer texts to bound the waiting time
            found.texts = texts[:number]
            break
        turns = list(METHODS)
        for way in turns[number % len(turns) :] + turns[: number % len(turns)]:
            found.runs[way].append(_once(mini, given[way], text, request.seed + number))
            request.done()
    for way in METHODS:
        for run, plain in zip(found.runs[way], found.runs["plain"], strict=True):
            run.same = torch.equal(run.wave, plain.wave)
    rows = [_row(way, found) for way in METHODS]
    promised = [run.same for way in METHODS if way != "plain" for run in found.runs[way] if run.stats.exactness == TOKEN_EXACT]
    exact = [row for row in rows if row["way"] != "plain" and row["exactness"] == TOKEN_EXACT]
    spectrograms = {way: [spectrogram(run.wave, run.committed) for run in runs] for way, runs in found.runs.items()}
    view = {"found": found, "target": millions(mini.target.model), "spectrograms": spectrograms}
    return Section("Speech", rows, exact, view, sum(promised), len(promised))


def _examples(request: DemoRequest) -> int:
    return 2 if request.quick else 4


def _once(mini: Mini, given: dict[str, Any], text: tuple[str, str], seed: int) -> SpeechRun:
    committed: list[int] = []
    out = synthesize(
        mini.target, [text[0]], voice=text[1], seed=seed, on_step=lambda step: committed.append(len(step.committed.values[0])), **given
    )
    return SpeechRun(out.waveforms[0], out.tokens[0], committed, out.stats, out.first_sound[0], out.seconds)


def _row(way: str, found: SpeechResults) -> dict[str, Any]:
    runs, plain = found.runs[way], found.runs["plain"]
    drafted, rate = sum(run.stats.drafted for run in runs), found.mini.target.rate
    tokens, calls = (sum(part) for part in zip(*((run.stats.tokens, run.stats.row_calls) for run in runs), strict=True))
    sound, seconds = sum(len(run.wave) for run in runs) / rate, sum(run.seconds for run in runs)
    drifts = [run.stats.drift for run in runs if run.stats.drift is not None]
    paces = [(one.seconds / max(1, len(one.wave)), two.seconds / max(1, len(two.wave))) for one, two in zip(plain, runs, strict=True)]
    return {
        "way": way,
        "what": METHODS[way],
        "exactness": runs[0].stats.exactness,
        "tokens": tokens,
        "target_calls": calls,
        "tokens_per_call": tokens / calls,
        "acceptance": sum(run.stats.accepted for run in runs) / drafted if drafted else None,
        "real_time_factor": seconds / sound,
        "first_sound": median(run.first_sound for run in runs),
        "tokens_per_second": tokens / seconds,
        **versus("plain", [before / after for before, after in paces]),
        "drift": sum(drifts) / len(drifts) if drifts else None,
        "same_sounds": {"same": sum(run.same for run in runs), "of": len(runs)} if way != "plain" else None,
    }


def spectrogram(wave: Tensor, committed: list[int]) -> Image.Image:
    """Draw log-magnitudes, low frequencies at the bottom, above a strip whose shade changes with every forward.

    Args:
        wave: float [T], samples.
        committed: number of codes committed by each forward.

    Returns:
        A picture, one column a window.
    """
    if len(wave) < _POINTS:
        wave = torch.nn.functional.pad(wave, (0, _POINTS - len(wave)))
    found = torch.stft(wave, _POINTS, _HOP, window=torch.hann_window(_POINTS), return_complex=True).abs()
    level = ((found.clamp_min(1e-3).log() + 6.9) / 10).clamp(0, 1).flip(0).numpy()  # [bins, frames]
    picture = (255 * colormaps["magma"](level)[..., :3]).astype(np.uint8)
    shades = np.repeat([turn % 2 for turn in range(len(committed))], committed)
    place = np.arange(picture.shape[1]) * max(1, len(shades)) // picture.shape[1]
    strip = _SHADES[shades[place]][None]
    return Image.fromarray(np.concatenate([picture, np.repeat(strip, _STRIP, 0)]))
