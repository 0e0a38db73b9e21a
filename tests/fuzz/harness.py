"""Runs one request, a command line or a call, and says how it ended."""

import argparse
import io
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from mmspec.cli import app

OUTCOMES = ("clear", "traceback", "internal", "hang", "silent", "half-written")
"""clear: it did what was asked, or was refused in one line that names what is wrong.

traceback: an error escaped that is none of those a caller is told to expect, or one whose message does not name the argument.
internal: the name of an exception class was shown. hang: over `SECONDS` of processor time. silent: a wrong value changed nothing.
half-written: an output or a temporary file was left behind by a failure.
"""
SECONDS = 4.0
EXPECTED = (ValueError, TypeError, FileNotFoundError, OSError, FloatingPointError)
LONGEST = 700  # characters of a message
INTERNAL = re.compile(r"\b[A-Z][A-Za-z]*(Error|Exception|Iteration|Interrupt)\b(?!s)|validation error|object at 0x|site-packages")
_LEFT_BEHIND = (".tmp", ".unfinished")


class Hang(BaseException):
    """The request took longer than `SECONDS` of processor time."""


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `Hang` in the block once it has used so many seconds of processor time."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def bounded_memory(more: int = 3 << 30) -> Iterator[None]:
    """Let the process map at most `more` bytes beyond what it has: a request for more gets an error."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass
class Report:
    """How many requests ended in which way, and the ones that did not end clearly."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, outcome: str, detail: str, request: str) -> None:
        self.counts[outcome] += 1
        if outcome != "clear":
            self.findings.append(f"{outcome}: {request}\n    {' '.join(detail.split())[:300]}")
            print(self.findings[-1], flush=True)

    def table(self, title: str) -> str:
        """The counts, a line each, and every finding."""
        counted = [f"  {name:<13}{self.counts[name]:>5}" for name in OUTCOMES]
        return "\n".join([f"{title}: {self.counts.total()} requests", *counted, *self.findings])

    @property
    def clear(self) -> bool:
        """True where every request ended clearly."""
        return self.counts["clear"] == self.counts.total()


def command(args: list[str], folder: Path, wrong: bool) -> tuple[str, str]:
    """(outcome, detail) of a command line run in the empty `folder`; `wrong` says that it must be refused."""
    out, err, code = io.StringIO(), io.StringIO(), None
    home = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err), limited(), patch.object(sys, "stdin", io.StringIO()):
            app(args)
    except SystemExit as stopped:
        code = stopped.code
    except Hang:
        return "hang", ""
    except BaseException as error:  # whatever escapes is a finding
        return "traceback", f"{type(error).__name__}: {error}"
    finally:
        os.chdir(home)
    return _command_outcome(code, out.getvalue(), err.getvalue(), folder, wrong)


def _command_outcome(code: Any, out: str, err: str, folder: Path, wrong: bool) -> tuple[str, str]:
    lines = err.strip().splitlines()
    if "Traceback" in out + err or code not in (0, 1, 2):
        return "traceback", f"{code} {err}"
    left = [str(path.relative_to(folder)) for path in folder.rglob("*") if any(mark in path.name for mark in _LEFT_BEHIND)]
    loose = [path.name for path in folder.iterdir() if code != 0 and path.is_file()]
    if left or loose:
        return "half-written", f"{left + loose}: {err}"
    if code == 0:
        return ("silent", f"exit 0 {out[-100:]} {err[-100:]}") if wrong else ("clear", "")
    found = INTERNAL.search(err)
    if found:
        return "internal", err
    if not lines or not lines[-1].startswith("mmspec: ") or len(lines) > 3 or len(lines[-1]) > LONGEST:
        return "traceback", f"exit {code} {len(lines)} lines {err[:300]}"
    return "clear", ""


def call(function: Callable[[], Any], words: tuple[str, ...], wrong: bool) -> tuple[str, str]:
    """(outcome, detail) of a call; a refusal must name one of `words`, and `wrong` says that it must be refused."""
    try:
        with limited(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            function()
    except Hang:
        return "hang", ""
    except EXPECTED as error:
        text = str(error)
        if "\n" in text.strip() or len(text) > LONGEST or not any(word in text for word in words):
            return "traceback", f"{type(error).__name__}: {text}"
        return ("internal", text) if INTERNAL.search(text) else ("clear", "")
    except BaseException as error:  # whatever escapes is a finding
        return "traceback", f"{type(error).__name__}: {error}"
    return ("silent", "it ran") if wrong else ("clear", "")


def main(title: str, run: Callable[..., Report]) -> None:
    """The command line of a fuzz: run it, show its counts, and exit with 1 where a request did not end clearly."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        report = run(Path(folder), share=args.share, only=args.only)
    print(report.table(title))
    raise SystemExit(not report.clear)
