"""Sound as the bytes of a file: the same bytes for the same samples, today and tomorrow, and a wav that grows while it is spoken.

Float wav keeps every bit, flac 24 bits, ogg what Vorbis keeps. libsndfile (by soundfile) writes the last two; into float wavs it puts the
time of day, so those are put together here, and into Ogg pages a random serial number, which is replaced.
"""

import io
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch import Tensor

SUBTYPES = {"wav": "FLOAT", "flac": "PCM_24", "ogg": "VORBIS"}
RATES = (1000, 768_000)
"""Lowest and highest number of samples a second that is read or resampled."""
WRITTEN = 192_000
"""Highest that is written: above it FLAC takes few rates, and above 200,000 libvorbis ends the process."""
_LARGEST = 2**32 - 1  # bytes that a wav's header can count
_BLOCK = 1 << 18  # samples given to libsndfile at once: libvorbis takes them on the stack, and millions end the process
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def sound_format(path: str | Path) -> str:
    """Return the format of a file name. ValueError lists the formats."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in SUBTYPES:
        raise ValueError(f"audio file {path} ends in {Path(path).suffix or 'nothing'}: give it one of .{', .'.join(SUBTYPES)}")
    return ending


def check_rate(rate: int, name: str = "sample rate", most: int = RATES[1]) -> None:
    """Check a number of samples a second.

    Args:
        rate: the number.
        name: what the message calls it.
        most: the highest that is allowed.

    Raises:
        ValueError: if it is lower than any of `RATES`, or higher than `most`.
    """
    if not RATES[0] <= rate <= most:
        raise ValueError(f"{name} is {rate}: give {RATES[0]} to {most} samples a second")


def sound_bytes(wave: Tensor | np.ndarray, rate: int, form: str = "wav") -> bytes:
    """Return the file contents of a wave.

    Args:
        wave: float [T], or [T, 2] in stereo.
        rate: samples a second.
        form: a key of `SUBTYPES`.

    Raises:
        ValueError: for a rate that the format does not have, and for more sound than a wav holds.
    """
    import soundfile

    check_rate(rate, most=WRITTEN)
    samples = np.asarray(wave, dtype="<f4")
    if form == "wav":
        return _header(len(samples), rate, samples[:1].size or 1) + samples.tobytes()
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(buffer, "w", rate, samples[:1].size or 1, format=form.upper(), subtype=SUBTYPES[form]) as file:
            for first in range(0, len(samples), _BLOCK):
                file.write(samples[first : first + _BLOCK])
    except soundfile.LibsndfileError as error:
        why = error.error_string.removeprefix("Error : ").rstrip(".")
        raise ValueError(f"{form} cannot hold {rate} samples a second ({why}): give a usual rate, or wav") from None
    return _numbered(buffer.getvalue()) if form == "ogg" else buffer.getvalue()


class GrowingWav:
    """A wav of floats that is whole after every piece: samples are appended first, and then the header counts them."""

    def __init__(self, file: BinaryIO, rate: int):
        self.file, self.rate, self.samples, self.channels = file, rate, 0, 1
        self.file.write(_header(0, rate, 1))
        self.file.flush()

    def add(self, piece: Tensor) -> None:
        """Append a piece of sound [T], or [T, 2] in stereo."""
        self.channels = piece[:1].numel() or 1
        self.file.write(np.asarray(piece, dtype="<f4").tobytes())
        self.samples += len(piece)
        self.file.seek(0)
        self.file.write(_header(self.samples, self.rate, self.channels))
        self.file.seek(0, io.SEEK_END)
        self.file.flush()


def _header(samples: int, rate: int, channels: int) -> bytes:
    """Of 32-bit floats (format 3, which asks for a `fact` chunk)."""
    frame = 4 * channels
    size = frame * samples
    if size + 58 > _LARGEST:
        raise ValueError(f"{samples} samples of {channels} channels pass the 4 GB of a wav: write several files, or flac")
    form = struct.pack("<4sIHHIIHHH", b"fmt ", 18, 3, channels, rate, frame * rate, frame, 32, 0)
    return struct.pack("<4sI4s", b"RIFF", 50 + size, b"WAVE") + form + struct.pack("<4sII4sI", b"fact", 4, samples, b"data", size)


def _numbered(ogg: bytes) -> bytes:
    """`ogg` with 1 as its stream's serial number, and the pages' check sums to match (RFC 3533)."""
    data, start = bytearray(ogg), 0
    while start < len(data):
        table = start + 27
        end = table + data[start + 26] + sum(data[table : table + data[start + 26]])
        data[start + 14 : start + 18] = struct.pack("<I", 1)
        data[start + 22 : start + 26] = bytes(4)
        data[start + 22 : start + 26] = struct.pack("<I", _check_sum(bytes(data[start:end])))
        start = end
    return bytes(data)


def _check_sum(page: bytes) -> int:
    """Ogg's CRC: zlib's polynomial from the other end, without its inversions."""
    found = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{found:032b}"[::-1], 2)
