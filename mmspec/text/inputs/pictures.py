"""Pictures from files, as upright RGB on white; and the pictures of a folder, in order.

Only raster formats are opened, and only files that unpack to no more pixels than Pillow's limit, so that a small file cannot fill the
memory and no file is passed to another program.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.text.inputs.clips import CLIP_SUFFIXES, is_clip
from mmspec.utils.files import listed, note_skipped
from mmspec.utils.quiet import ignoring

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
"""Extensions of picture files; other files in a folder are skipped."""
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_MOST = 89_478_485  # pixels: Pillow's own limit, unless the user has set another


def is_picture(name: str | Path) -> bool:
    """Return True if a file name has the extension of a picture."""
    return Path(name).suffix.lower() in SUFFIXES


def pictures_in(folder: str | Path) -> list[str]:
    """Return the pictures in a folder and its subfolders, as sorted relative paths. ValueError without any."""
    found = _files_in(folder, is_picture, "no picture by its ending")
    if not found:
        raise ValueError(f"folder {folder} holds no picture: give one with files that end in {', '.join(SUFFIXES)}")
    return found


def pictures_and_clips_in(folder: str | Path) -> list[str]:
    """Return the pictures and clips in a folder and its subfolders, as sorted relative paths. ValueError without any."""
    found = _files_in(folder, lambda name: is_picture(name) or is_clip(name), "no picture or clip by its ending")
    if not found:
        raise ValueError(
            f"folder {folder} holds no picture and no clip: give one with files that end in {', '.join(SUFFIXES + CLIP_SUFFIXES)}"
        )
    return found


def _files_in(folder: str | Path, takes: Callable[[str], bool], why: str) -> list[str]:
    """Return the files whose names pass `takes`, as sorted paths relative to `folder`; others are named on stderr."""
    root = Path(folder)
    found = [path for path in listed(root) if takes(path.name)]
    if found:
        note_skipped(root, found, why)
    return sorted(path.relative_to(root).as_posix() for path in found)


def read_picture(path: str | Path, called: str | None = None) -> Any:
    """Read a picture as RGB: its first frame, rotated as in its EXIF data, transparency on white, 16 bits reduced to 8.

    `called` is its name in errors, by default the path. ValueError for a file that is missing, no picture, broken, or too large.
    """
    path, name = Path(path), called or path
    if not path.exists():
        raise ValueError(f"picture {name} does not exist: give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"picture {name} is no file: give one picture, or a folder with --out answers.jsonl")
    return _decoded(path, f"picture {name}", lambda: path.stat().st_size == 0)


def decoded_picture(content: bytes, called: str = "the picture") -> Any:
    """Decode the content of a picture file as `read_picture` does. `called` is its name in errors."""
    return _decoded(BytesIO(content), called, lambda: not content)


def _decoded(file: Path | BytesIO, name: str, is_empty: Callable[[], bool]) -> Any:
    from PIL import Image, UnidentifiedImageError

    Image.init()
    most = Image.MAX_IMAGE_PIXELS or _MOST
    try:
        formats = [each for each in _FORMATS if each in Image.OPEN]
        with ignoring(), Image.open(file, formats=formats) as picture:  # sizes are checked below, and odd tags are harmless
            if picture.width * picture.height > most:
                raise Image.DecompressionBombError(f"{picture.width} x {picture.height} pixels")
            picture.load()
            return _rgb(picture)
    except Image.DecompressionBombError as error:
        size = str(error) if str(error).endswith(" pixels") else f"over {2 * most:,} pixels"
        raise ValueError(f"{name} has {size}, and at most {most:,} are unpacked: make it smaller first") from None
    except UnidentifiedImageError:
        known = "an empty file" if is_empty() else "no picture that can be read"
        raise ValueError(f"{name} is {known}: give a PNG, JPEG, WebP, GIF, BMP, TIFF or PPM file") from None
    except PermissionError:
        raise ValueError(f"{name} may not be read: give one that can, or change its permissions") from None
    except Exception as error:  # decoders raise various errors for broken bytes
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} is broken ({why}): save it anew, or leave it out") from None


def _rgb(picture: Any) -> Any:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith(("I", "F")):
        upright = Image.fromarray(_eight_bits(np.asarray(upright), upright.mode))
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    seen = upright.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")


def _eight_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """Return grey levels [H, W] of any depth as bytes: 16-bit values by their range, wider ones and fractions by their own range."""
    levels = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(levels.min()), float(levels.max())
    whole = (1.0, 255.0) if mode.startswith("F") else (65535.0,)
    fits = next((top for top in whole if low >= 0 and high <= top), None)
    low, high = (0.0, fits) if fits is not None else (low, high)
    return (255 * (levels - low) / max(high - low, 1e-12)).round().astype(np.uint8)


def marked(prompt: str, count: int, mark: str, unit: str = "picture") -> list[str]:
    """Split `prompt` at its marks into one piece more than there are pictures; without marks the pictures come first.

    ValueError if the number of marks differs from `count`.
    """
    pieces = prompt.split(mark)
    if len(pieces) == 1:
        return [""] * count + pieces
    if len(pieces) - 1 != count:
        held = f"{len(pieces) - 1} {mark} mark{'s' if len(pieces) > 2 else ''} for {count} {unit}{'s' if count != 1 else ''}"
        raise ValueError(f"the prompt has {held}: give one for each {unit}, or none to have the {unit}s in front")
    return pieces


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return (pictures, clips or folders, prompt) of a command line: the last argument is the prompt unless it is, or is named like, a
    file.
    """
    last = arguments[-1] if arguments else ""
    if len(arguments) < 2 or is_picture(last) or is_clip(last) or Path(last).suffix == ".jsonl" or _exists(last):
        return list(arguments), None
    return list(arguments[:-1]), arguments[-1]


def _exists(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).exists()
    except OSError:  # too long for a name
        return False
