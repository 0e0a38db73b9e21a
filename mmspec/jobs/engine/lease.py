"""Who works on a job's folder: an exclusive lease per process of the launch, and an orderly end on SIGTERM."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmspec.jobs.engine.folder import LEASE, Stopped, stopped_for


@contextmanager
def leased(path: Path, rank: int | str) -> Iterator[None]:
    """Hold the lease of process `rank` on a folder, which is made if it is missing.

    The lease is a lock of the operating system on `.lease-RANK`, so it ends with the process, however that ends. File systems without locks
    give no lease, and the block runs without one.

    Args:
        path: the output folder.
        rank: number of the process in its launch.

    Raises:
        Stopped: if another process holds it.
        ValueError: if the folder cannot be written to.
    """
    name = path / f"{LEASE}{rank}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = _locked(name)
    except OSError as error:
        raise stopped_for(error, path) or ValueError(
            f"cannot write to {path}: {error.strerror}; give a folder that can be written to"
        ) from None
    if handle is None:
        raise Stopped(f"{path} is in use by {_holder(name)}: wait until that has ended or stop it, then start the same command again")
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        name.unlink(missing_ok=True)
        os.close(handle)


def free(path: Path, rank: str) -> bool:
    """Tell whether no process holds a lease, and remove what is left of it.

    Args:
        path: the output folder.
        rank: number of the process, as in the name of the lease.

    Returns:
        True if nobody holds it.
    """
    name = path / f"{LEASE}{rank}"
    if not name.exists():
        return True
    handle = _locked(name)
    if handle is None:
        return False
    name.unlink(missing_ok=True)
    os.close(handle)
    return True


@contextmanager
def ended_by_sigterm(path: Path) -> Iterator[None]:
    """Raise `Stopped` in the block on SIGTERM, so that unfinished files are removed. A handler of the caller's own is left in place.

    Args:
        path: the output folder, for the message.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows only cleans up
        raise Stopped(f"stopped by SIGTERM: finished shards stay in {path}, and the same command goes on from them")

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _locked(name: Path) -> int | None:
    """Open and lock a file; None if another process has locked it."""
    while True:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(handle):
                os.close(handle)
                return None
            if os.fstat(handle).st_ino == name.stat().st_ino:
                return handle
        except FileNotFoundError:  # removed by its last holder between the two calls
            pass
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no locks here
        return True
    return True


def _holder(name: Path) -> str:
    try:
        return name.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
