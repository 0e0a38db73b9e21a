"""The result of a speech request."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mmspec.core.result import Result
from mmspec.speech.sound.audio import save


@dataclass(frozen=True)
class Speech(Result):
    """Speech, one utterance a row.

    Attributes:
        tokens: ids LongTensor [B, S], frames of codes [B, S, K] or latents float [B, S, d], right-padded.
        lengths: LongTensor [B], steps a row, the end included.
        stats: counts and seconds.
        waveforms: float32 [T] each, at `sample_rate`.
        sample_rate: samples a second.
        first_sound: seconds from the call to the first samples of each row; nan where there were none.
        worst_gap: the longest wait between two pieces of a row, in seconds; nan where there were fewer than two.
        seconds: the whole call, sound included.
    """

    waveforms: list[Tensor] = field(repr=False)
    sample_rate: int
    first_sound: list[float]
    worst_gap: list[float]
    seconds: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound, over the whole batch."""
        return self.seconds * self.sample_rate / max(1, sum(map(len, self.waveforms)))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sound. Each file has a temporary name until it is complete.

        Args:
            path: ends in .wav, .flac or .ogg. Several utterances are numbered: out-0.wav, out-1.wav.

        Returns:
            The paths written, one an utterance.

        Raises:
            ValueError: for an ending of another format.
        """
        path = Path(path)
        many = len(self.waveforms) > 1
        paths = [path.with_stem(f"{path.stem}-{row}") for row in range(len(self.waveforms))] if many else [path]
        for each, wave in zip(paths, self.waveforms, strict=True):
            save(each, wave, self.sample_rate)
        return paths
