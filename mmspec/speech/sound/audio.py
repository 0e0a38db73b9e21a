"""Sound as numbers: files, resampling and mel spectrograms by torchaudio, and a spectrogram's wave without its phases."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchaudio.functional import resample
from torchaudio.transforms import MelSpectrogram

from mmspec.speech.sound.files import sound_bytes, sound_format
from mmspec.utils.files import whole

LEVEL = 0.08
"""Root mean square that speech is brought to: recordings of one set differ eightfold."""
QUIET = 1e-3
"""Magnitudes below this are silence."""


def mel_spectrogram(rate: int, *, hop: int, window: int, points: int, bands: int) -> MelSpectrogram:
    """Of magnitudes, one frame every `hop` samples."""
    return MelSpectrogram(rate, n_fft=points, win_length=window, hop_length=hop, n_mels=bands, power=1.0)


def logs(magnitudes: Tensor) -> Tensor:
    """Natural logarithms, silence cut off at `QUIET`."""
    return magnitudes.clamp_min(QUIET).log()


def levelled(wave: Tensor, level: float = LEVEL) -> Tensor:
    """`wave` [T] at root mean square `level`, its peaks at most 0.99."""
    loud = wave * (level / wave.square().mean().sqrt().clamp_min(1e-6))
    return loud * (0.99 / loud.abs().max().clamp_min(0.99))


def at_rate(wave: Tensor, rate: int, wanted: int) -> Tensor:
    """`wave` [T], or [T, 2] in stereo, resampled."""
    return wave if rate == wanted else resample(wave.T, rate, wanted).T if wave.dim() == 2 else resample(wave, rate, wanted)


def check_sound(path: str | Path) -> None:
    """Read the header of a sound file.

    Raises:
        ValueError: if it is none.
        FileNotFoundError: if it is missing.
    """
    import soundfile

    if not Path(path).is_file():
        raise FileNotFoundError(f"audio file {path} does not exist: give a WAV, FLAC, OGG or MP3 file")
    try:
        soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"audio file {path} cannot be read ({error.error_string}): give a WAV, FLAC, OGG or MP3 file") from None


def read_sound(path: str | Path, rate: int) -> Tensor:
    """Return the sound in a file, mono, float32 [T], at `rate`.

    Raises:
        ValueError: if the file cannot be read.
        FileNotFoundError: if it is missing.
    """
    import soundfile

    check_sound(path)
    try:
        samples, found = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"audio file {path} cannot be read ({error.error_string}): give a WAV, FLAC, OGG or MP3 file") from None
    return at_rate(torch.from_numpy(samples).mean(1), found, rate)


def save(path: str | Path, wave: Tensor | np.ndarray, rate: int) -> None:
    """Write `wave` [T], or [T, 2] in stereo, in the format of the path's ending (.wav, .flac, .ogg), under a temporary name first: an old
    file is whole until the new one is. ValueError, in one line, for another ending and for a place that cannot be written to."""
    content = sound_bytes(wave, rate, sound_format(path))
    with whole(path, binary=True) as file:
        file.write(content)


@cache
def _window(size: int) -> Tensor:
    return torch.hann_window(size)


class PhaseFinder:
    """Griffin and Lim's iteration (1984) with momentum (Perraudin et al. 2013), block by block: what has been given out stays as it is.

    Each block of magnitudes is iterated behind the committed spectrogram of the blocks before it, and only new frames change, in the
    manner of real-time iterative inversion (Beauregard, Zhu and Wyse 2005). A wave given out in pieces is therefore the very wave
    given out in one, and depends on nothing but the magnitudes and where the blocks lie.
    """

    def __init__(self, *, hop: int, window: int, points: int, rounds: int = 32, momentum: float = 0.9, keep: int = 8):
        self.hop, self.window, self.points, self.rounds, self.momentum = hop, window, points, rounds, momentum
        self.keep = keep  # committed frames that new ones are fitted to
        self.committed = torch.zeros(points // 2 + 1, 0, dtype=torch.complex64)

    def push(self, magnitudes: Tensor, count: int) -> Tensor:
        """The next `count` frames' samples [count * hop]; `magnitudes` [bins, count + ahead] also hold the frames behind them."""
        before = self.committed.shape[1]
        known = torch.cat([self.committed.abs(), magnitudes], 1)
        spectrum = torch.cat([self.committed, self._draft_token(magnitudes)], 1)
        last = torch.zeros_like(spectrum)
        for _ in range(self.rounds):
            found = self._analyse(self._synthesise(spectrum))
            fresh = found - self.momentum / (1 + self.momentum) * last
            last = found
            phases = fresh[:, before:] / fresh[:, before:].abs().clamp_min(1e-8)
            spectrum = torch.cat([self.committed, known[:, before:] * phases], 1)
        wave = self._synthesise(spectrum)
        self.committed = spectrum[:, : before + count][:, -self.keep :]
        return wave[before * self.hop : (before + count) * self.hop]

    def _draft_token(self, magnitudes: Tensor) -> Tensor:
        """First phases: every bin goes on at its own frequency from the last committed frame."""
        bins, frames = magnitudes.shape
        step = 2 * torch.pi * self.hop * torch.arange(bins) / self.points
        start = self.committed[:, -1].angle() if self.committed.shape[1] else torch.zeros(bins)
        return torch.polar(magnitudes, start[:, None] + step[:, None] * torch.arange(1, frames + 1))

    def _analyse(self, wave: Tensor) -> Tensor:
        """A frame every `hop` samples; there is nothing before the wave, nor behind it."""
        found = torch.stft(wave, self.points, self.hop, self.window, _window(self.window), pad_mode="constant", return_complex=True)
        return found[:, :-1]

    def _synthesise(self, spectrum: Tensor) -> Tensor:
        """`hop` samples a frame."""
        return torch.istft(spectrum, self.points, self.hop, self.window, _window(self.window), length=spectrum.shape[1] * self.hop)
