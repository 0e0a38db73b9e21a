"""What was said. `tokens` are the steps of every row: ids, frames of K codes, or latents of d numbers."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mmspec.core.stats import Stats
from mmspec.speech.sound.audio import save


@dataclass(frozen=True)
class Speech:
    """What was said. `tokens` are the steps of every row: ids, frames of K codes, or latents of d numbers."""

    waveforms: list[Tensor] = field(repr=False)  # [T] float32 each
    sample_rate: int
    tokens: Tensor = field(repr=False)  # [B, S], [B, S, K] or [B, S, d], right-padded
    lengths: Tensor  # [B] steps, the end included
    stats: Stats
    first_sound: list[float]  # seconds from the call to each row's first piece of sound; nan where there was none
    worst_gap: list[float]  # the most seconds between two pieces of a row; nan where there were no two
    seconds: float  # of the whole call, sound included

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound, over the whole batch."""
        return self.seconds * self.sample_rate / max(1, sum(map(len, self.waveforms)))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sound: `path` itself for one utterance, else numbered beside it (out-0.wav, out-1.wav). Returns the paths written.

        The ending says the format: .wav, .flac or .ogg. Each file has a temporary name until it is whole.
        """
        path = Path(path)
        many = len(self.waveforms) > 1
        paths = [path.with_stem(f"{path.stem}-{row}") for row in range(len(self.waveforms))] if many else [path]
        for each, wave in zip(paths, self.waveforms, strict=True):
            save(each, wave, self.sample_rate)
        return paths
