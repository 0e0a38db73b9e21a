"""Nothing here outlives the machine's power, so the tests do not wait for the disk: their folders are in memory where that can be."""

import os
import tempfile
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def tmp_path(tmp_path):
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="jobs", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
