"""Video clips from files: opened by PyAV, sampled as in the model's video processor, as upright RGB frames.

Only local MP4, MOV, Matroska, WebM and AVI files are opened, so that a playlist under another name reads no further files.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

CLIP_SUFFIXES = (".mp4", ".m4v", ".mkv", ".webm", ".mov", ".avi")
"""Endings of files that are read as clips."""
_SAFE = {"protocol_whitelist": "file", "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"}
_MOST = 1_000_000_000  # pixels of all sampled frames of a clip, 3 bytes each: 482 frames of 1920 x 1080


@dataclass(frozen=True)
class FrameSampling:
    """Frames to take of a clip: `fps` a second, or `frames` in total, evenly spaced; by default as in the video processor."""

    fps: float | None = None
    frames: int | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.frames is not None:
            raise ValueError("--fps and --frames were both given: give one of them")
        for name, value in (("--fps", self.fps), ("--frames", self.frames)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}: give a number above 0")


@dataclass(frozen=True)
class Clip:
    """An opened clip. According to the file, its first video stream has `frames` frames at `fps` a second."""

    path: Path
    name: str
    frames: int
    fps: float | None
    height: int
    width: int
    sampling: FrameSampling = FrameSampling()

    def indices(self, video_processor: Any) -> list[int]:
        """Return the numbers of the sampled frames, ascending, from 0.

        Raises:
            ValueError: if the video processor cannot sample a clip of this length.
        """
        from mmspec.models.compat import sampled_frames

        sampling = self.sampling
        count = sampling.frames
        if sampling.fps is not None:
            if self.fps is None:
                raise ValueError(f"clip {self.name} does not state its frames per second: give --frames N in place of --fps")
            count = max(1, int(self.frames / self.fps * sampling.fps))
        if count is not None:
            count = min(count, self.frames)
            return [place * self.frames // count for place in range(count)]
        try:
            return sampled_frames(video_processor, self.metadata())
        except (ValueError, RuntimeError, ZeroDivisionError, TypeError) as error:
            raise ValueError(
                f"clip {self.name} has {self.frames} frames, which the model's processor cannot sample ({_why(error)}): give --frames N"
            ) from None

    def metadata(self, indices: list[int] | None = None) -> Any:
        """Return the clip's metadata for transformers' processors. `indices` are the sampled frames."""
        from transformers.video_utils import VideoMetadata

        duration = self.frames / self.fps if self.fps else None
        size = {"height": self.height, "width": self.width}
        return VideoMetadata(self.frames, fps=self.fps, duration=duration, video_backend="pyav", frames_indices=indices, **size)

    def read(self, video_processor: Any) -> tuple[np.ndarray, Any]:
        """Return the sampled frames [F, H, W, 3], uint8 RGB, and the clip's metadata.

        Raises:
            ValueError: if the clip is broken, has no decodable frame, or its sampled frames have too many pixels.
        """
        indices = self.indices(video_processor)
        pixels = len(indices) * self.height * self.width
        if pixels > _MOST:
            size = f"{len(indices)} frames of {self.width} x {self.height} pixels"
            raise ValueError(f"clip {self.name} gives {size}, and at most {_MOST:,} pixels are read: give --frames N or --fps N")
        found, decoded = self._decode(set(indices))
        if decoded == 0:
            raise ValueError(f"clip {self.name} has no frame that can be decoded: save it anew, or leave it out")
        if len(found) < len(set(indices)):  # the file declares more frames than it holds
            return replace(self, frames=decoded).read(video_processor)
        frames = np.stack([found[index] for index in indices])
        return frames, replace(self, height=frames.shape[1], width=frames.shape[2]).metadata(indices)  # turning swaps them

    def _decode(self, wanted: set[int]) -> tuple[dict[int, np.ndarray], int]:
        """Return the wanted frames by number, and the number of decoded frames, up to the last wanted one."""
        found, count, last = {}, 0, max(wanted)
        with _opened(self.path, self.name) as container:
            container.streams.video[0].thread_type = "AUTO"
            for index, frame in enumerate(container.decode(video=0)):
                count = index + 1
                if index in wanted:
                    found[index] = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
                if index >= last:
                    break
        return found, count


def is_clip(name: str | Path) -> bool:
    """Return True if a file name has the extension of a clip."""
    return Path(name).suffix.lower() in CLIP_SUFFIXES


def read_clip(path: str | Path, called: str | None = None, sampling: FrameSampling | None = None) -> Clip:
    """Open and measure a clip; its frames are decoded by `Clip.read`.

    Args:
        path: a file that ends in one of `CLIP_SUFFIXES`.
        called: its name in errors; the path by default.
        sampling: frames to take; by default as in the model's video processor.

    Raises:
        ValueError: if PyAV is not installed; if the file does not exist, is no clip, is broken, or holds no video frames.
    """
    path, name = Path(path), str(called or path)
    if not path.exists():
        raise ValueError(f"clip {name} does not exist: give a file that ends in {', '.join(CLIP_SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"clip {name} is no file: give one clip, or a folder with --out answers.jsonl")
    with _opened(path, name) as container:
        if not container.streams.video:
            raise ValueError(f"clip {name} holds no video: give one that does, or leave it out")
        stream = container.streams.video[0]
        frames = stream.frames or sum(1 for packet in container.demux(stream) if packet.size)  # Matroska and WebM do not state it
        rate = stream.average_rate or stream.drafted_rate
        found = Clip(path, name, frames, float(rate) if rate else None, stream.height, stream.width, sampling or FrameSampling())
    if not (found.frames and found.height and found.width):
        raise ValueError(f"clip {name} holds no frames: give one that does, or leave it out")
    return found


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    """Context with the clip's container. Errors inside become a ValueError that names the clip."""
    try:
        import av
    except ImportError:
        raise ValueError("clips are decoded by PyAV, which is not installed: pip install 'mmspec[video]'") from None
    try:
        with av.open(f"file:{path}", container_options=_SAFE) as container:
            yield container
    except PermissionError:
        raise ValueError(f"clip {name} may not be read: give one that can, or change its permissions") from None
    except ValueError as error:
        if not isinstance(error, av.FFmpegError):
            raise
        raise _broken(name, path, error) from None
    except Exception as error:  # decoders raise various errors for broken bytes
        raise _broken(name, path, error) from None


def _broken(name: str, path: Path, error: Exception) -> ValueError:
    if path.is_file() and path.stat().st_size == 0:
        return ValueError(f"clip {name} is an empty file: save it anew, or leave it out")
    return ValueError(f"clip {name} cannot be decoded ({_why(error)}): give an MP4, MOV, MKV, WebM or AVI file that plays, or leave it out")


def _why(error: Exception) -> str:
    """Return the first line of an error, without the number and path of FFmpeg's messages."""
    line = (str(getattr(error, "strerror", None) or error).splitlines() or [""])[0]
    return line or type(error).__name__
