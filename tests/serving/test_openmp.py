"""OpenMP's idle threads end when they are released, and come back."""

import sys

import pytest

from tests.forked import Started

SCRIPT = """
import os
import torch
from mmspec.serving.openmp import release_threads

torch.set_num_threads(2)
release_threads()
least = len(os.listdir("/proc/self/task"))
for _ in range(2):
    assert torch.ones(400_000).mul(2).sum() == 800_000
    assert len(os.listdir("/proc/self/task")) == least + 1
    release_threads()
    assert len(os.listdir("/proc/self/task")) == least
"""
"""In a process of its own, in which no other thread begins or ends."""


@pytest.mark.skipif(sys.platform != "linux", reason="does nothing elsewhere")
def test_released_threads_end(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = Started(tmp_path / "script.py", cwd=tmp_path, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr
