"""OpenMP's idle threads.

PyTorch's operations on a CPU run on a pool of OpenMP threads. Every Python thread that calls them has a pool of its own, and idle pools
count: with more threads than cores, GNU OpenMP lets threads sleep between operations instead of waiting a moment for the next one, and to
wake them takes longer than a small operation. A forward of a small model then takes about twice as long.
"""

import ctypes
import sys
from functools import lru_cache
from typing import Any

_SOFT = 1  # omp_pause_soft: settings are kept


def release_threads() -> None:
    """End the OpenMP threads of the calling thread. Its next operation that needs them starts them again.

    For threads that will be idle while another one runs a model. Does nothing where PyTorch's OpenMP is not found, or not on Linux.
    """
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@lru_cache(maxsize=1)
def _pause() -> Any:
    """`omp_pause_resource_all` of OpenMP 5.0, which PyTorch has loaded."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
