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
    version = _version(path)
    try:
        home = cache_folder() / "mapped" / _name(str(path))
        place = home / f"{_name(version)}{path.suffix}"
        if place.exists():
            return place
        home.mkdir(parents=True, exist_ok=True)
        part = home / f".{place.name}.{os.getpid()}.tmp"
    except (OSError, RuntimeError):
        return None
    try:
        shutil.copyfile(path, part)
        if _version(path) != version:
            return None
        part.chmod(0o444)
        os.replace(part, place)
    except OSError:
        return None
    finally:
        part.unlink(missing_ok=True)
    for earlier in home.iterdir():  # a process that has it mapped keeps it
        if earlier != place and not earlier.name.startswith("."):
            earlier.unlink(missing_ok=True)
    return place


def _version(path: Path) -> str:
    """What changes whenever a file is written: the time of its inode's last change cannot be set back."""
    found = path.stat()
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
