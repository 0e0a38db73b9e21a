"""mmspec: every autoregressive generator faster, without changing what it says.

>>> import mmspec
>>> mini = mmspec.load("text")
>>> out = mmspec.text.generate(mini.target, mini.examples, drafter=mini.drafters["model"])
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mmspec.utils.torchaudio_check import check_torchaudio
from mmspec.utils.version import __version__  # noqa: F401

try:
    check_torchaudio()
except ImportError as error:
    if Path(sys.argv[0]).name == "mmspec":  # the command: one line and exit 2, as for anything else that is set up wrong
        print(f"mmspec: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    raise

__all__ = ["load", "load_drafter", "recsys", "speech", "text", "vision"]


def load(name: str) -> Any:
    """A shipped mini: `.target`, `.drafters`, `.catalogue` (recsys), `.processor`, `.examples`, `.card`. ValueError lists the names."""
    return import_module("mmspec.minis").load(name)


def load_drafter(path: str | Path, target: Any = None, **options: Any) -> Any:
    """The trained drafter in a folder, its own or a published one; `generate` takes it as `drafter`.

    `target` is the transformers model it is for: needed by layouts that leave out what it tells, and given its device and dtype.
    `options` are those of `mmspec.drafters.checkpoints.load.load_drafter`. ValueError, in one line, for what is broken or does not fit.
    """
    return import_module("mmspec.drafters.checkpoints.load").load_drafter(path, target, **options)


def __getattr__(name: str) -> Any:
    if name in ("recsys", "speech", "text", "vision"):
        return import_module(f"mmspec.{name}")
    raise AttributeError(f"module 'mmspec' has no attribute {name!r}; it has {', '.join(__all__)}")
