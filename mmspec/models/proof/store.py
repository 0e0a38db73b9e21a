"""Proofs on disk: one small JSON file a fingerprint, in MMSPEC_CACHE, else in XDG_CACHE_HOME/mmspec, else in ~/.cache/mmspec."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.utils.cache_folder import cache_folder


def folder() -> Path:
    """The folder of proofs. It need not exist."""
    return cache_folder() / "proofs"


def read_proof(fingerprint: str) -> dict[str, Any] | None:
    """The record of `fingerprint`; None if there is none that can be read."""
    try:
        found = json.loads((folder() / f"{fingerprint}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, RuntimeError):  # RuntimeError: no home folder
        return None
    return found if isinstance(found, dict) else None


def write_proof(fingerprint: str, record: Mapping[str, Any]) -> None:
    """Write `record`. If that fails nothing is kept, and the next process tests again."""
    name = None
    try:
        folder().mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder(), suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dict(record), file)
        os.replace(name, folder() / f"{fingerprint}.json")
    except (OSError, RuntimeError):
        if name is not None:
            Path(name).unlink(missing_ok=True)
