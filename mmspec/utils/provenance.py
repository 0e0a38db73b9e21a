"""The provenance of a figure: command, code, versions and machine."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mmspec.utils.version import __version__

_PACKAGES = ("mmspec", "torch", "transformers")


def provenance(device: torch.device) -> dict[str, Any]:
    """Everything that identifies the run of a figure, ready for JSON."""
    return {
        "argv": [_program(), *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
    }


def machine(found: dict[str, Any]) -> str:
    """The machine of a record of `provenance`, in a few words."""
    threads = f"{found['threads']} of {found['cores']} cores"
    cpu = f"{found['cpu']}, {threads}"
    return cpu if found["device"] == "cpu" else f"{found['device']} ({cpu})"


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "mmspec" if name in ("__main__.py", "cli.py") else name


def _version(name: str) -> str:
    if name == "mmspec":
        return __version__
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor's model, as the system reports it."""
    return cpu_fact("model name") or platform.processor() or platform.machine()


def cpu_fact(name: str) -> str | None:
    """What Linux says of the first processor under `name`, such as "vendor_id"; None where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)


def git_state() -> str | None:
    """The commit this package runs from, with "+changes" where files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        sha = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return sha + ("+changes" if dirty.strip() else "")
