"""Sound as numbers: files, resampling and mel spectrograms by torchaudio, and a spectrogram's wave without its phases."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchaudio.functional import resample
from torchaudio.transforms import MelSpectrogram

from mmspec.speech.sound.containers import SUFFIXES, read_container
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
    if Path(path).suffix.lower() in SUFFIXES:
        return  # known when it is read
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
    if Path(path).suffix.lower() in SUFFIXES:
        wave, found = read_container(path)
        return at_rate(wave.mean(1), found, rate)
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


class PhaseFinder:
    """Griffin and Lim's iteration (1984) with momentum (Perraudin et al. 2013), block by block: what has been given out stays as it is.

    Each block of magnitudes is iterated behind the committed spectrogram of the blocks before it, and only new frames change, in the
    manner of real-time iterative inversion (Beauregard, Zhu and Wyse 2005). A wave given out in pieces is therefore the very wave
    given out in one, and depends on nothing but the magnitudes and where the blocks lie.
    """

    def __init__(self, *, hop: int, window: int, points: int, rounds: int = 32, momentum: float = 0.9, keep: int = 8):
        self.hop, self.points, self.rounds, self.momentum = hop, points, rounds, momentum
        self.keep = keep  # committed frames that new ones are fitted to
        self.committed = torch.zeros(0, points // 2 + 1, dtype=torch.complex64)
        before = (points - window) // 2
        self.taper = F.pad(torch.hann_window(window), (before, points - window - before))
        self.overlaps: dict[int, tuple[Tensor, Tensor]] = {}  # by number of frames

    def push(self, magnitudes: Tensor, count: int) -> Tensor:
        """The next `count` frames' samples [count * hop]; `magnitudes` [bins, count + ahead] also hold the frames behind them."""
        before, wanted = len(self.committed), magnitudes.T.contiguous()
        spectrum = torch.cat([self.committed, self._draft_token(wanted)])
        last = torch.zeros_like(spectrum)
        for _ in range(self.rounds):
            found = self._analyse(self._synthesise(spectrum))
            fresh = found.sub(last, alpha=self.momentum / (1 + self.momentum))
            last = found
            spectrum = torch.cat([self.committed, fresh[before:].sgn() * wanted])
        wave = self._synthesise(spectrum)
        self.committed = spectrum[: before + count][-self.keep :]
        return wave[before * self.hop : (before + count) * self.hop]

    def _draft_token(self, magnitudes: Tensor) -> Tensor:
        """First phases [F, bins]: every bin goes on at its own frequency from the last committed frame."""
        frames, bins = magnitudes.shape
        step = 2 * torch.pi * self.hop * torch.arange(bins) / self.points
        start = self.committed[-1].angle() if len(self.committed) else torch.zeros(bins)
        return torch.polar(magnitudes, start + step * torch.arange(1, frames + 1)[:, None])

    def _analyse(self, wave: Tensor) -> Tensor:
        """Spectra [F, bins] of a wave [F * hop], a frame every `hop` samples; there is nothing before the wave, nor behind it."""
        padded = F.pad(wave, (self.points // 2, self.points // 2))
        return torch.fft.rfft(padded.unfold(0, self.points, self.hop)[: len(wave) // self.hop] * self.taper)

    def _synthesise(self, spectrum: Tensor) -> Tensor:
        """The wave [F * hop] of spectra [F, bins], by overlap-add of windowed frames."""
        count, start = len(spectrum), self.points // 2
        if count not in self.overlaps:
            self.overlaps[count] = self._overlap(count)
        places, weights = self.overlaps[count]
        frames = torch.fft.irfft(spectrum, self.points) * self.taper
        wave = torch.zeros_like(weights).index_add_(0, places, frames.flatten()) / weights
        return wave[start : start + count * self.hop]

    def _overlap(self, count: int) -> tuple[Tensor, Tensor]:
        """Where the samples [count * points] of frames lie in their sum, and the sum of the squared windows there."""
        places = (torch.arange(count)[:, None] * self.hop + torch.arange(self.points)).flatten()
        weights = torch.zeros(self.points + (count - 1) * self.hop)
        return places, weights.index_add_(0, places, self.taper.square().repeat(count))
