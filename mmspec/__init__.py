"""mmspec: every autoregressive generator faster, without changing what it says.

>>> import mmspec
>>> mini = mmspec.load("text")
>>> out = mmspec.text.generate(mini.target, mini.examples, drafter=mini.drafters["model"])
"""

from importlib import import_module
from typing import Any

from mmspec._audio import check_torchaudio

check_torchaudio()

__version__ = "0.1.0"
__all__ = ["load", "text"]


def load(name: str) -> Any:
    """A shipped mini: `.target`, `.drafters`, `.processor`, `.examples`, `.card`. ValueError lists the names there are."""
    return import_module("mmspec.minis").load(name)


def __getattr__(name: str) -> Any:
    if name == "text":
        return import_module("mmspec.text")
    raise AttributeError(f"module 'mmspec' has no attribute {name!r}; it has {', '.join(__all__)}")
