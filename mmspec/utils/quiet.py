"""Warnings of other libraries, ignored for a moment. Python keeps one list of warning filters for all threads."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def ignoring(message: str = "") -> Iterator[None]:
    """Inside, warnings whose text begins with `message` (a regular expression) are ignored; afterwards the filters are what they were.

    One thread at a time: two that each put back what they had found would leave the first one's filter in place.
    """
    with _lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message)
        yield
