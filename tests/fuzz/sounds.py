"""Sound files as recorders write them, and as nobody should: headers that lie, bombs, broken and odd ones. The same ones for every seed."""

import io
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import soundfile

SECONDS, TONE = 0.5, 440
LONGEST = 30
"""Seconds that readers of these files take."""
READ, REFUSED, EITHER = "read", "refused", "either"


@dataclass(frozen=True)
class SoundCase:
    """A sound file.

    Attributes:
        name: what it is, with the ending that its path gets.
        content: its bytes.
        wanted: `READ`: half a second of a tone of 440 Hz; `REFUSED`; or `EITHER`, where a decoder may stop or mend.
    """

    name: str
    content: bytes
    wanted: str


def sound_cases(seed: int = 0) -> Iterator[SoundCase]:
    """Every file."""
    for rate in (1000, 7999, 8000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 44_101, 48_000, 96_000, 192_000, 352_800, 767_999):
        yield SoundCase(f"{rate}.wav", encoded(tone(rate), rate, "WAV", "PCM_16"), READ)
    for form, subtype, rate in (
        ("WAV", "PCM_U8", 8000),
        ("WAV", "PCM_24", 44_100),
        ("WAV", "DOUBLE", 16_000),
        ("WAV", "ULAW", 8000),
        ("FLAC", "PCM_24", 44_100),
        ("OGG", "VORBIS", 48_000),
        ("MP3", "MPEG_LAYER_III", 44_100),
    ):
        yield SoundCase(f"{subtype}.{form.lower()}", encoded(tone(rate), rate, form, subtype), READ)
    for channels in (2, 8, 32):
        yield SoundCase(f"{channels}-channels.wav", encoded(np.stack([tone(8000)] * channels, 1), 8000, "WAV", "PCM_16"), READ)
    yield SoundCase("raw-by-name.raw", encoded(tone(8000), 8000, "WAV", "PCM_16"), READ)
    yield from _headers()
    yield from _bombs()
    yield from _broken(random.Random(seed))


def tone(rate: int) -> np.ndarray:
    """Half a second, float64 [T]."""
    return 0.5 * np.sin(2 * np.pi * TONE * np.arange(round(SECONDS * rate)) / rate)


def encoded(wave: np.ndarray, rate: int, form: str, subtype: str) -> bytes:
    """A file's bytes, by libsndfile."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, wave[:1].size, format=form, subtype=subtype) as file:
        for first in range(0, len(wave), 1 << 18):
            file.write(wave[first : first + (1 << 18)])
    return buffer.getvalue()


def wav(data: bytes, rate: int = 8000, channels: int = 1, bits: int = 16, kind: int = 1, size: int | None = None) -> bytes:
    """A WAV with any header."""
    block = channels * bits // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    chunks = form + struct.pack("<4sI", b"data", len(data) if size is None else size) + data
    return struct.pack("<4sI4s", b"RIFF", min(4 + len(chunks), 2**32 - 1), b"WAVE") + chunks


def flac_of(content: bytes, frames: int) -> bytes:
    """A FLAC whose header tells another number of frames; 0 is "unknown"."""
    told = int.from_bytes(content[18:26], "big") >> 36 << 36 | frames
    return content[:18] + told.to_bytes(8, "big") + content[26:]


def _headers() -> Iterator[SoundCase]:
    data = (tone(8000) * 32767).astype("<i2").tobytes()
    for rate in (0, 1, 7, 999, 768_001, 10_000_000, 2**32 - 1):
        yield SoundCase(f"{rate}-hertz.wav", wav(data, rate), REFUSED)
    for channels in (0, 33, 1024, 65_535):
        yield SoundCase(f"{channels}-channels.wav", wav(data * 20, channels=channels), REFUSED)
    for bits in (0, 7, 65_535):
        yield SoundCase(f"{bits}-bits.wav", wav(data, bits=bits), EITHER)
    yield SoundCase("streamed.wav", wav(data, size=2**32 - 1), READ)
    yield SoundCase("size-too-large.wav", wav(data, size=2**31), READ)
    yield SoundCase("size-zero.wav", wav(data, size=0), EITHER)
    yield SoundCase("unknown-kind.wav", wav(data, kind=0x7777), REFUSED)
    yield SoundCase("no-samples.wav", wav(b""), REFUSED)
    yield SoundCase("one-sample.wav", wav(b"\1\0"), EITHER)
    yield SoundCase("header-only.wav", wav(data)[:30], REFUSED)
    for name, value in (("nan", np.nan), ("infinite", np.inf), ("huge", 3e38)):
        samples = np.full(4000, value, "<f4")
        samples[:100] = 0
        yield SoundCase(f"{name}.wav", wav(samples.tobytes(), bits=32, kind=3), EITHER if name == "huge" else REFUSED)


def _bombs() -> Iterator[SoundCase]:
    nothing = np.zeros(60 * 60 * 1000, np.int16)  # an hour of 1000 Hz in some kB
    hour = encoded(nothing, 1000, "FLAC", "PCM_16")
    assert len(hour) < 100_000
    yield SoundCase("hour.flac", hour, REFUSED)
    yield SoundCase("hour-of-unknown-length.flac", flac_of(hour, 0), REFUSED)
    yield SoundCase("hour-that-tells-a-second.flac", flac_of(hour, 1000), EITHER)
    yield SoundCase("eight-channels.flac", encoded(np.zeros((2_000_000, 8), np.int16), 192_000, "FLAC", "PCM_16"), REFUSED)
    short = encoded(tone(8000), 8000, "FLAC", "PCM_16")
    yield SoundCase("tells-months.flac", flac_of(short, 2**36 - 1), REFUSED)
    yield SoundCase("unknown-length.flac", flac_of(short, 0), READ)
    yield SoundCase("hour.ogg", encoded(nothing, 1000, "OGG", "VORBIS"), REFUSED)


def _broken(pick: random.Random) -> Iterator[SoundCase]:
    yield SoundCase("empty.wav", b"", REFUSED)
    yield SoundCase("text.wav", b"no sound at all\n" * 50, REFUSED)
    yield SoundCase("picture.mp3", b"\x89PNG\r\n\x1a\n" + pick.randbytes(500), REFUSED)
    for form, subtype, magic in (
        ("FLAC", "PCM_16", 4),
        ("OGG", "VORBIS", 4),
        ("MP3", "MPEG_LAYER_III", 2),
        ("WAV", "PCM_16", 12),
        ("AIFF", "PCM_16", 12),
    ):
        whole = encoded(tone(16_000), 16_000, form, subtype)
        yield SoundCase(f"cut.{form.lower()}", whole[: pick.randrange(60, len(whole) // 2)], EITHER)
        yield SoundCase(f"junk.{form.lower()}", whole[:magic] + pick.randbytes(2000), EITHER)
        for number in range(3):
            content = bytearray(whole)
            for _ in range(4 ** (number + 1)):
                content[pick.randrange(magic, len(content) if number else 100)] = pick.randrange(256)
            yield SoundCase(f"changed-{number}.{form.lower()}", bytes(content), EITHER)
