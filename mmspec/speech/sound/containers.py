"""Sound in containers that libsndfile does not read (M4A, AAC, WMA, WebM, the sound of clips), by PyAV."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".m4a", ".mp4", ".m4b", ".aac", ".wma", ".webm", ".mka", ".mkv", ".mov", ".3gp", ".amr", ".ac3")
"""Endings of files that are read here."""


class Container:
    """The first stream of sound in a file, read forward as a `soundfile.SoundFile` is.

    Args:
        path: a file that ends in one of `SUFFIXES`.

    Raises:
        ValueError: for a file without sound, and where PyAV is not installed.
    """

    frames = 2**62  # how many there are is known at the end

    def __init__(self, path: str | Path):
        import numpy as np

        try:
            import av  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ValueError(
                f"audio file {path} is no WAV, FLAC, OGG or MP3, and reading {Path(path).suffix} needs PyAV: "
                "pip install 'mmspec[video]', or convert it"
            ) from None
        self.path, self.errors = path, (av.error.FFmpegError, OSError)  # pyright: ignore[reportAttributeAccessIssue]
        with self._told():
            self._file = av.open(str(path), options={"protocol_whitelist": "file"})
        if not self._file.streams.audio:
            raise ValueError(f"audio file {path} holds no sound")
        stream: Any = self._file.streams.audio[0]
        self.samplerate, self.channels = int(stream.rate), int(stream.channels)
        self._blocks = self._decoded(av.AudioResampler, stream)
        self._rest = np.zeros((0, self.channels), np.float32)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, frames: int, dtype: str = "float32", always_2d: bool = True) -> "np.ndarray":
        """Return the next samples, float32 [at most `frames`, channels]; none at the end."""
        import numpy as np

        pieces, count = [self._rest], len(self._rest)
        with self._told():
            while count < frames and (block := next(self._blocks, None)) is not None:
                pieces.append(block)
                count += len(block)
        samples = np.concatenate(pieces)
        self._rest = samples[frames:]
        return samples[:frames]

    def _decoded(self, resampler: Any, stream: Any) -> "Iterator[np.ndarray]":
        planes = None  # of floats, as the first frame's channels and rate are
        for frame in self._file.decode(stream):
            planes = planes or resampler(format="fltp", layout=frame.layout, rate=self.samplerate)
            for piece in planes.resample(frame):
                yield piece.to_ndarray().T

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"audio file {self.path} cannot be read ({reason}): convert it to WAV, FLAC, OGG or MP3") from None
