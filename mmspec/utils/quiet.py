"""Warnings of other libraries, ignored for a block. Python keeps one list of warning filters for all threads."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def ignoring(message: str = "") -> Iterator[None]:
    """Ignore warnings whose text begins with `message` (a regular expression) inside the block.

    One thread at a time: two that restore the filters they found would leave the first one's filter in place.
    """
    with _lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message)
        yield
