"""Sound as numbers: files by libsndfile and PyAV, resampling by soxr, mel spectrograms by torchaudio, and a spectrogram's wave without its
phases.

What a file says about itself is not trusted: it is read in blocks, mixed and resampled block by block, and reading stops at a bound. The
memory that it takes is that of the sound returned, whatever the file's rate and channels.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor
from torchaudio.transforms import MelSpectrogram

from mmspec.speech.sound.containers import SUFFIXES, Container
from mmspec.speech.sound.files import check_rate, sound_bytes, sound_format
from mmspec.utils.files import whole

LEVEL = 0.08
"""Root mean square that speech is brought to: recordings of one set differ eightfold."""
QUIET = 1e-3
"""Magnitudes below this are silence."""
CHANNELS = 32
"""Most channels of a file that is read."""
LONGEST = 8 * 3600
"""Seconds that a file may last, where its reader has no bound of its own: 1.8 GB of samples at 16 kHz."""
DENSEST = 384_000
"""Samples a second, all channels together, that a file may hold over the longest duration: eight channels at 48 kHz."""
_BLOCK = 1 << 20  # samples decoded at once, all channels together
_UNKNOWN = 1 << 40  # more frames than this are no number: libsndfile's word for a stream whose header does not tell
_GIVE = "give a WAV, FLAC, OGG or MP3 file with sound in it"


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


class SoundTooLong(ValueError):
    """A recording that is longer, or holds more samples, than its reader takes."""


def at_rate(wave: Tensor, rate: int, wanted: int) -> Tensor:
    """Resample a wave.

    Args:
        wave: float [T], or [T, 2] in stereo.
        rate: its samples a second.
        wanted: those of the result.

    Returns:
        `wave` itself if the rates are equal, else float32 [T * wanted / rate, ...] on its device.

    Raises:
        ValueError: for other rates than `RATES`.
    """
    if rate == wanted:
        return wave
    check_rate(rate)
    check_rate(wanted)
    return torch.from_numpy(soxr.resample(np.ascontiguousarray(wave.detach().float().cpu().numpy()), rate, wanted)).to(wave.device)


def check_sound(path: str | Path) -> None:
    """Read the header of a sound file.

    Raises:
        ValueError: if it is none, or one that `read_sound` refuses for its header.
        FileNotFoundError: if it is missing.
    """
    with _opened(path, LONGEST):
        pass


def read_sound(path: str | Path, rate: int, longest: float | None = None) -> Tensor:
    """Return the sound in a file, mono, float32 [T], at `rate`.

    Args:
        path: a WAV, FLAC, OGG or MP3 file; several channels are averaged.
        rate: samples a second.
        longest: seconds that it may last; `LONGEST` by default.

    Raises:
        ValueError: if the file cannot be read or holds no sound; a `SoundTooLong` if it is longer.
        FileNotFoundError: if it is missing.
    """
    return read_sound_and_rate(path, rate, longest)[0]


def read_sound_and_rate(source: str | Path | bytes, rate: int | None = None, longest: float | None = None) -> tuple[Tensor, int]:
    """Return the sound in a file, mono, and its samples a second; as `read_sound`.

    Args:
        source: the file's path, or its contents.
        rate: samples a second; None for the file's own.
        longest: seconds that it may last; `LONGEST` by default.

    Returns:
        Samples, float32 [T] with T > 0, and their rate.

    Raises:
        ValueError: as `read_sound`.
        FileNotFoundError: if it is missing.
    """
    longest = LONGEST if longest is None else longest
    with _opened(source, longest) as (file, name):
        wanted = file.samplerate if rate is None else rate
        pieces = list(_resampled(_mixed(file, name, longest), file.samplerate, wanted))
    wave = torch.from_numpy(np.concatenate(pieces))
    if not len(wave):
        raise ValueError(f"{name} holds no sound: {_GIVE}")
    return wave, wanted


class _Forward(soundfile.SoundFile):
    """A sound file that is read from its beginning on. soundfile seeks behind every block, which a stream of unknown length forbids."""

    def seekable(self) -> bool:
        return False


@contextmanager
def _opened(source: str | Path | bytes, longest: float) -> Iterator[tuple[Any, str]]:
    """The open file and what messages call it, once its header has been checked. What libsndfile refuses in the block is a ValueError."""
    inside = isinstance(source, bytes)
    name = "the file" if inside else f"audio file {source}"
    if not inside and not Path(source).is_file():
        raise FileNotFoundError(f"{name} does not exist: {_GIVE}")
    if not inside and Path(source).suffix.lower() in SUFFIXES:
        with Container(source) as file:
            _check_header(file, name, longest)
            yield file, name
        return
    try:
        # without the file's name, by whose ending soundfile would take a .raw file for samples of a rate that the caller gives
        with io.BytesIO(source) if inside else Path(source).open("rb") as bare:
            with _Forward(bare if inside else bare.fileno(), closefd=False) as file:
                _check_header(file, name, longest)
                yield file, name
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{name} cannot be read ({error.error_string.removeprefix('Error : ').rstrip('.')}): {_GIVE}") from None


def _check_header(file: Any, name: str, longest: float) -> None:
    check_rate(file.samplerate, f"the sample rate of {name}")
    if file.channels > CHANNELS:
        raise ValueError(f"{name} has {file.channels} channels: give one of at most {CHANNELS}")
    if file.frames < _UNKNOWN:
        _check_length(file.frames, file, name, longest)


def _check_length(frames: int, file: Any, name: str, longest: float) -> None:
    """Raise `SoundTooLong` for more frames than `longest` seconds have, or for more samples than a recording of that length holds."""
    if frames > longest * file.samplerate:
        raise SoundTooLong(f"{name} lasts more than {_duration(longest)}: cut it into pieces")
    if frames * file.channels > longest * DENSEST:
        most = f"{DENSEST} a second for {_duration(longest)}"
        raise SoundTooLong(f"{name} holds more samples than {most}: give it fewer channels or a lower rate, or cut it into pieces")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g} hours" if seconds >= 7200 else f"{seconds:g} s"


def _mixed(file: Any, name: str, longest: float) -> Iterator[np.ndarray]:
    """Blocks of the channels' mean, float32 [T]. Counts what is decoded, since headers lie."""
    frames, size = 0, _BLOCK // file.channels
    while len(block := file.read(size, dtype="float32", always_2d=True)):
        frames += len(block)
        _check_length(frames, file, name, longest)
        mean = block.mean(1, dtype=np.float64).astype(np.float32)
        if not np.isfinite(mean).all():
            raise ValueError(f"{name} holds samples that are NaN or infinite: give it finite ones")
        yield mean


def _resampled(blocks: Iterator[np.ndarray], rate: int, wanted: int) -> Iterator[np.ndarray]:
    """The blocks at another rate: the samples that `at_rate` makes of all of them at once."""
    if rate == wanted:
        yield np.zeros(0, np.float32)
        yield from blocks
        return
    check_rate(wanted)
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


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
