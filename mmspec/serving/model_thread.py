"""The thread that runs a model for an engine or a worker."""

import atexit
import os
import warnings
from collections.abc import Callable
from threading import TIMEOUT_MAX, Thread
from weakref import WeakSet


class EngineClosed(RuntimeError):
    """Raised by `submit` after `close`."""


def check_process(process: int, owner: str) -> None:
    """Check that the calling process is the one that runs a thread. A forked process has no copy of it and would wait for ever.

    Args:
        process: the id of the process that started the thread.
        owner: what the thread works for, such as "engine".

    Raises:
        RuntimeError: in another process.
    """
    if os.getpid() != process:
        raise RuntimeError(f"this {owner} runs in process {process}, from which this one was forked: make it in the process that uses it")


def check_wait(name: str, seconds: float | None) -> float | None:
    """Check a number of seconds to wait for a thread.

    Args:
        name: of the argument.
        seconds: the number; None for no limit.

    Returns:
        The number, at most what a lock can wait.

    Raises:
        ValueError: for what is no number from 0 on, NaN included.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValueError(f"{name} is {seconds!r}: give a number of seconds from 0 on, or None for no limit")
    return min(seconds, TIMEOUT_MAX)


class ModelThread(Thread):
    """A started thread that runs a model. At the end of the program it is ended first.

    A daemon thread that is inside PyTorch while the interpreter is taken down aborts the process, and one that is no daemon would keep a
    program alive whose main thread has ended.

    Args:
        name: of the thread.
        run: what it does.
        cancel: has `run` return soon, and returns how many requests did not get to their end; called in another thread.
    """

    def __init__(self, name: str, run: Callable[[], None], cancel: Callable[[], int]):
        super().__init__(target=run, name=name, daemon=True)
        self.cancel, self.process = cancel, os.getpid()
        _threads.add(self)
        self.start()


_threads: WeakSet[ModelThread] = WeakSet()


@atexit.register
def _end_threads() -> None:
    threads = [thread for thread in _threads if thread.is_alive()]
    for thread in threads:
        if lost := thread.cancel():
            warnings.warn(
                f"{thread.name} was still open at the end of the program, and {lost} requests were cancelled: wait for their results, "
                "or leave its with block",
                stacklevel=1,
            )
    for thread in threads:
        thread.join()
