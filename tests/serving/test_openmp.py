"""OpenMP's idle threads end when they are released, and come back."""

import os
import sys

import pytest
import torch

from mmspec.serving.openmp import release_threads


@pytest.mark.skipif(sys.platform != "linux", reason="does nothing elsewhere")
def test_released_threads_end():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        release_threads()
        least = len(os.listdir("/proc/self/task"))
        for _ in range(2):
            assert torch.ones(400_000).mul(2).sum() == 800_000
            assert len(os.listdir("/proc/self/task")) == least + 1
            release_threads()
            assert len(os.listdir("/proc/self/task")) == least
    finally:
        torch.set_num_threads(before)
