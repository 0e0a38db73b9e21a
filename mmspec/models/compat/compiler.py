"""torch's compiler: limits changed for a block, and a cache on disk that a killed process left broken.

Relies on `torch._dynamo.config.patch` and its two limits, `torch._dynamo.exc.BackendCompilerFailed`,
`torch._dynamo.eval_frame.cached_backends` and `torch._inductor.runtime.cache_dir_utils.cache_dir` (torch 2.11).
"""

import ast
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch

R = TypeVar("R")


def many_shapes(count: int) -> AbstractContextManager[Any]:
    """Inside, torch may compile one function for `count` shapes: transformers wraps the forwards of all models in the same function."""
    now = torch._dynamo.config
    limits = {"recompile_limit": count, "accumulated_recompile_limit": 4 * count}
    return now.patch({name: max(limit, getattr(now, name)) for name, limit in limits.items()})


def with_whole_cache(run: Callable[[], R]) -> R:
    """Call a function that may compile. If compiling fails on truncated files of torch's cache, they are deleted and it is called again.

    A process that is killed while it compiles can leave such files, and torch then fails in every process after it.

    Args:
        run: the function.

    Returns:
        What `run` returns.
    """
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        return run()
    except BackendCompilerFailed:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        broken = list(truncated_files(Path(cache_dir())))
        if not broken:
            raise
        for path in broken:
            path.unlink(missing_ok=True)
        warnings.warn(f"{len(broken)} truncated files of torch's compile cache are deleted, and compiled again", stacklevel=2)
        reset_compiler()
        return run()


def reset_compiler() -> None:
    """Forget everything that torch compiled in this process.

    `torch._dynamo.reset` alone fails when resetting one compiled function changes the table of them that it iterates over.
    """
    from torch._dynamo import eval_frame

    gc.collect()
    for backend in list(eval_frame.cached_backends.values()):
        if hasattr(backend, "reset"):
            backend.reset()
    eval_frame.cached_backends.clear()
    torch._dynamo.reset()


def truncated_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files and the libraries of a compile cache that are not complete."""
    for path in folder.rglob("*.py"):
        if not _is_whole_python(path):
            yield path
    for path in folder.rglob("*.so"):
        if not _is_whole_library(path):
            yield path


def _is_whole_python(path: Path) -> bool:
    try:
        return bool(ast.parse(path.read_bytes()).body)
    except (OSError, SyntaxError, ValueError):
        return False


def _is_whole_library(path: Path) -> bool:
    """True if an ELF file is as long as its header says: the table of sections is its last part. Other formats count as whole."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
        if len(head) == 64 and head[:4] != b"\x7fELF":
            return True
        start, size, count = (int.from_bytes(head[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
        return len(head) == 64 and path.stat().st_size >= start + size * count
    except OSError:
        return False
