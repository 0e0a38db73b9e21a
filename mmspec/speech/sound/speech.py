"""The result of `mmspec.speech.synthesize`."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mmspec.core.result import Result
from mmspec.speech.sound.audio import save


@dataclass(frozen=True)
class Speech(Result):
    """Result of `synthesize`.

    Attributes:
        waveforms: float32 [T] samples of each row.
        sample_rate: samples a second.
        tokens: the steps of every row, right-padded: ids [B, S], frames of K codes [B, S, K] or latents [B, S, d].
        lengths: [B] steps of each row, the end included.
        stats: counts of forwards, draft tokens and rounds.
        first_sound: seconds from the call to each row's first piece of sound; nan without sound.
        worst_gap: largest number of seconds between two pieces of a row; nan with fewer than two.
        seconds: seconds of the whole call, sound included.
    """

    waveforms: list[Tensor] = field(repr=False)
    sample_rate: int
    first_sound: list[float]
    worst_gap: list[float]
    seconds: float

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
