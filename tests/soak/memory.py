"""Many calls in one process: memory, tensors, threads and files must stay flat after a warm-up.

The criterion: after every turn of settings has come twice, the resident memory (sampled every few calls) must not rise by more than
`SLOPE` bytes a call, by least squares, or by less than `NOISE` bytes in all; and the number of tensors alive and their bytes, threads,
open files and temporary files must be at the end what they were then.
"""

import os
import time
from pathlib import Path

import numpy as np

from tests.snapshots import differences, resources
from tests.soak.calls import CALLS, COUNTS

SLOPE = 4096
NOISE = 8 * 2**20


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watched(what: str, calls: int, every: int = 10, warm: int | None = None) -> tuple[list[tuple[int, int]], list[str]]:
    """Samples (calls since the warm-up, bytes), and what was left behind. `warm` is the calls of the warm-up."""
    call, warm = CALLS[what](), 2 * COUNTS[what] if warm is None else warm
    for turn in range(warm):
        call(turn)
    before, samples = resources(), []
    for turn in range(calls):
        if turn % every == 0:
            samples.append((turn, resident()))
        call(warm + turn)
    samples.append((calls, resident()))
    return samples, differences(before, resources())


def rise(samples: list[tuple[int, int]]) -> float:
    """Bytes a call, by least squares."""
    turns, held = np.array(samples, dtype=float).T
    return float(np.polyfit(turns, held, 1)[0])


def soak(what: str, calls: int) -> int:
    """Run, print the figures and return the exit code."""
    start = time.perf_counter()
    samples, left = watched(what, calls)
    slope, first, last = rise(samples), samples[0][1], samples[-1][1]
    seconds = time.perf_counter() - start
    print(f"{what}: {calls} calls in {seconds:.0f} s; memory {first / 2**20:.1f} MiB after the warm-up, {last / 2**20:.1f} MiB at the end")
    print(f"{what}: {slope:+.0f} bytes a call; most {max(held for _, held in samples) / 2**20:.1f} MiB")
    print("\n".join(f"left behind: {line}" for line in left) or f"{what}: tensors, threads, files and temporary files as after the warm-up")
    rising = slope > SLOPE and slope * calls > NOISE
    if rising:
        print(f"{what}: memory rises by more than {SLOPE} bytes a call")
    return int(rising or bool(left))
