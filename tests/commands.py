"""Commands run in this process, and what a refusal must look like."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmspec.cli import app

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "torchaudio", "transformers", "numpy", "diffusers", "accelerate", "matplotlib", "pyarrow", "PIL", "soundfile")
"""Libraries that help, completion and `import mmspec` must not load."""
Result = tuple[int, str, str, Path]
"""Exit code, stdout, stderr, and the file that was to be written."""


def runner(capsys: Any, tmp_path: Path, command: str, own: Any, name: str) -> Callable[..., Result]:
    """Runs `command` with the model `own` into a file of its own, `name` unless told otherwise."""

    def run(*args: object, model: Any = own, out: str = name) -> Result:
        capsys.readouterr()
        path = tmp_path / out
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in (command, *args, "--model", model, "--out", path, "--device", "cpu")])
        return (stopped.value.code, *capsys.readouterr(), path)

    return run


def refused(result: Result, *words: str) -> None:
    """Exit 2, nothing on stdout, one line on stderr with all of `words`, no file nor part of one."""
    code, out, err, path = result
    assert (code, out) == (2, "")
    assert err.startswith("mmspec: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert not list(path.parent.iterdir()) if path.parent.is_dir() else True


def python(code: str, **environment: str) -> str:
    """Standard output of `code` in a fresh interpreter, with mmspec of this checkout."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout
