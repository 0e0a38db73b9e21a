"""Large files that stay mapped while they are used, as copies that nobody else writes.

A file that is written over in place changes the answers of every process that has it mapped, and one that is cut short ends the process
without a word (SIGBUS). So what is mapped is a copy in the cache folder. It is made once for each version of a file; all processes map the
same copy, and share its memory.
"""

import hashlib
import os
import shutil
from pathlib import Path

from mmspec.utils.cache_folder import cache_folder


def private_copy(path: str | Path) -> Path | None:
    """Return a copy of a file that stays as it is while the file may change.

    Args:
        path: the file.

    Returns:
        The copy, in `mapped/` of the cache folder; copies of earlier versions of the file are removed. None where it cannot be written:
        then the file is to be read into memory.

    Raises:
        OSError: when the file cannot be read.
    """
    path = Path(path).resolve()
    try:
        place = kept_version(path, "mapped")
        if place.exists():
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError):
        return None
    try:
        shutil.copyfile(path, part)
        if kept_version(path, "mapped") != place:
            return None
        part.chmod(0o444)
        os.replace(part, place)
    except OSError:
        return None
    finally:
        part.unlink(missing_ok=True)
    drop_earlier(place)  # a process that has one mapped keeps it
    return place


def kept_version(path: Path, room: str, form: str = "copy") -> Path:
    """Return where the cache folder keeps what is made of one version of a file.

    Args:
        path: the file.
        room: folder of the cache folder.
        form: what is made of it, such as a dtype; there may be several of one file.

    Returns:
        The place; it need not exist.
    """
    found = path.stat()  # the time of an inode's last change cannot be set back
    version = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
    return cache_folder() / room / _name(str(path.resolve())) / f"{form}-{_name(version)}{path.suffix}"


def drop_earlier(place: Path) -> None:
    """Remove what was kept of earlier versions of the file of `place`, in the same form."""
    for earlier in place.parent.glob(f"{place.name.partition('-')[0]}-*"):
        if earlier != place:
            shutil.rmtree(earlier, ignore_errors=True) if earlier.is_dir() else earlier.unlink(missing_ok=True)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
