"""Runs Python files in processes of their own, forked from one that has imported the libraries already.

Importing torch and transformers takes seconds and most scripts less than one, so a new interpreter for each would spend its time there.
"""

import importlib
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.preloaded"])


class Started:
    """A file that runs in a process of its own: `python path arguments` in the folder `cwd`, with `env` added to the environment.

    Args:
        path: the file.
        arguments: of its command line.
        cwd: working directory.
        folder: where its standard output and error are kept.
        env: environment variables.
        before: name of a module to import first.
    """

    def __init__(
        self, path: Path, *arguments: Any, cwd: Path, folder: Path, env: Mapping[str, str] | None = None, before: str | None = None
    ):
        self.argv, self.streams = [str(path), *map(str, arguments)], [folder / name for name in ("stdout", "stderr")]
        args = (self.argv, str(cwd), [str(stream) for stream in self.streams], dict(env or {}), before)
        self.process = _CONTEXT.Process(target=_main, args=args)
        self.process.start()

    def finish(self, timeout: float) -> CompletedProcess[str]:
        """What `subprocess.run` returns; TimeoutError if it runs for more than `timeout` seconds from now."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"{' '.join(self.argv)} ran for more than {timeout} s")
        out, err = (stream.read_text(encoding="utf-8") for stream in self.streams)
        return CompletedProcess(self.argv, self.process.exitcode, out, err)


def _main(argv: list[str], cwd: str, streams: list[str], env: dict[str, str], before: str | None) -> None:
    for number, stream in enumerate(streams, start=1):
        with open(stream, "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    try:
        if before is not None:
            importlib.import_module(before)
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
