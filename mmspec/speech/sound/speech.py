"""The result of `mmspec.speech.synthesize`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from mmspec.core.result import Result
from mmspec.speech.sound.audio import save

OnSound = Callable[[int, Tensor], None] | None
"""Called with (row, samples) as sound is committed."""


def decode_rows(
    lengths: Sequence[int], decode: Callable[[int], Tensor], clock: float, on_sound: OnSound
) -> tuple[list[Tensor], list[float]]:
    """Decode the sound of every row once all rows are complete.

    Args:
        lengths: steps of each row; a row without steps has no sound.
        decode: maps the number of a row to its samples, float [T].
        clock: `perf_counter()` at the call.
        on_sound: called with every row that has sound.

    Returns:
        The waveforms, and for each row the seconds from the call to its sound; nan without sound.
    """
    waves, first = [], []
    for row, length in enumerate(lengths):
        waves.append(decode(row) if length else torch.zeros(0))
        first.append(perf_counter() - clock if len(waves[-1]) else float("nan"))
        if on_sound is not None and len(waves[-1]):
            on_sound(row, waves[-1])
    return waves, first


@dataclass(frozen=True)
class Speech(Result):
    """Result of `synthesize`.

    Attributes:
        waveforms: float32 [T] samples of each row; [T, 2] from stereo models.
        sample_rate: samples a second.
        tokens: the steps of every row, right-padded: ids [B, S], frames of K codes [B, S, K] or latents [B, S, d].
        lengths: [B] steps of each row, the end included.
        stats: counts of forwards, draft tokens and rounds.
        first_sound: seconds from the call to each row's first piece of sound; nan without sound.
        worst_gap: largest number of seconds between two pieces of a row; nan with fewer than two.
        underruns: how often a listener who began to play a row at its first piece had played all that there was before the next one came.
        jitter: standard deviation of the seconds between two pieces of a row; nan with fewer than three.
        seconds: seconds of the whole call, sound included.
    """

    waveforms: list[Tensor] = field(repr=False)
    sample_rate: int
    first_sound: list[float]
    worst_gap: list[float]
    seconds: float
    underruns: list[int] = field(default_factory=list)
    jitter: list[float] = field(default_factory=list)

    def __post_init__(self):
        super().__post_init__()
        rows = len(self.waveforms)
        object.__setattr__(self, "underruns", self.underruns or [0] * rows)
        object.__setattr__(self, "jitter", self.jitter or [float("nan")] * rows)

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of sound, over the whole batch."""
        return self.seconds * self.sample_rate / max(1, sum(map(len, self.waveforms)))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sound, atomically.

        Args:
            path: file name ending in .wav, .flac or .ogg. With several rows they are numbered (out-0.wav, out-1.wav).

        Returns:
            The paths written.

        Raises:
            ValueError: for another ending.
        """
        path = Path(path)
        many = len(self.waveforms) > 1
        paths = [path.with_stem(f"{path.stem}-{row}") for row in range(len(self.waveforms))] if many else [path]
        for each, wave in zip(paths, self.waveforms, strict=True):
            save(each, wave, self.sample_rate)
        return paths
