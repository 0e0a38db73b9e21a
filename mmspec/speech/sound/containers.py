"""Sound in containers that libsndfile does not read (M4A, AAC, WMA, WebM, the sound of clips), by PyAV."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".m4a", ".mp4", ".m4b", ".aac", ".wma", ".webm", ".mka", ".mkv", ".mov", ".3gp", ".amr", ".ac3")
"""Endings of files that are read here."""
MOST_SECONDS = 24 * 3600
"""Longest sound, so that a small file cannot fill the memory."""


def read_container(path: str | Path) -> "tuple[Tensor, int]":
    """Read the first stream of sound in a file.

    Args:
        path: a file that ends in one of `SUFFIXES`.

    Returns:
        Samples, float32 [T, channels], and samples a second.

    Raises:
        ValueError: for a file without sound, one that is broken or too long, and where PyAV is not installed.
    """
    import numpy as np
    import torch

    try:
        import av  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"audio file {path} is no WAV, FLAC, OGG or MP3, and reading {Path(path).suffix} needs PyAV: "
            "pip install 'mmspec[video]', or convert it"
        ) from None
    pieces: list[Any] = []
    try:
        with av.open(str(path), options={"protocol_whitelist": "file"}) as file:
            if not file.streams.audio:
                raise ValueError(f"audio file {path} holds no sound")
            stream: Any = file.streams.audio[0]
            rate, count, turned = int(stream.rate), 0, None
            for frame in file.decode(stream):
                turned = turned or av.AudioResampler(format="fltp", layout=frame.layout, rate=rate)
                for piece in turned.resample(frame):
                    pieces.append(piece.to_ndarray())
                    count += pieces[-1].shape[1]
                if count > MOST_SECONDS * rate:
                    raise ValueError(f"audio file {path} is longer than {MOST_SECONDS // 3600} hours: cut it")
    except (av.error.FFmpegError, OSError) as error:
        raise ValueError(f"audio file {path} cannot be read ({str(error).splitlines()[0]}): convert it to WAV, FLAC, OGG or MP3") from None
    if not pieces:
        raise ValueError(f"audio file {path} holds no samples")
    return torch.from_numpy(np.concatenate(pieces, 1).T.copy()), rate
