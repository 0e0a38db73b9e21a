"""The folder for files kept between processes: MMSPEC_CACHE, else XDG_CACHE_HOME/mmspec, else ~/.cache/mmspec."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for files kept between processes. It need not exist.

    Returns:
        The folder.

    Raises:
        RuntimeError: when there is no home folder.
    """
    own = os.environ.get("MMSPEC_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "mmspec"
