"""What a command or a recipe reads and where it writes: no output takes the place of an input."""

import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = "manifest.json"
"""File of a job's folder, which the same job may go on with."""


@dataclass(frozen=True)
class Writes:
    """Marks the parameter of a command that says where it writes, inside `Annotated`.

    Args:
        keeps: files are added to a folder and none is replaced, so it may hold inputs.
        beside: parameters whose folders may be written into: a text goes beside its recording.
    """

    keeps: bool = False
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Output:
    name: str
    path: Path
    how: Writes


_OUTPUTS: ContextVar[tuple[_Output, ...]] = ContextVar("outputs", default=())
_INPUTS: ContextVar[dict[tuple[int, int], str]] = ContextVar("inputs", default={})  # noqa: B039 - replaced, never changed


def declare(values: Mapping[str, Any], outputs: Mapping[str, Writes], shown: Mapping[str, str]) -> Any:
    """Refuse outputs that are inputs, and remember both for the rest of the context.

    Args:
        values: every parameter of a command line: text, a path, a list of these, or anything else, which names no file.
        outputs: parameters that say where is written, and how.
        shown: the words that a parameter is called by on the command line; its own name where there are none.

    Returns:
        What `forget` takes.

    Raises:
        ValueError: for an output that is an input, holds one, or is a part of one; and for two outputs in one file.
    """
    written = [
        _Output(shown.get(name, name), Path(path).expanduser(), how) for name, how in outputs.items() for path in _paths(values.get(name))
    ]
    tokens = _OUTPUTS.set(tuple(written)), _INPUTS.set({})
    for number, one in enumerate(written):
        for other in written[:number]:
            if not (one.how.keeps or other.how.keeps) and _where(one.path) == _where(other.path) and not _is_device(one.path):
                raise ValueError(f"{other.name} and {one.name} are both {one.path}: give each a place of its own")
    for name, value in values.items():
        if name not in outputs:
            for path in _paths(value):
                reads(path, shown.get(name, name), name)
    return tokens


def forget(tokens: Any) -> None:
    """Undo a `declare`: what it remembered is not refused any more."""
    for variable, token in zip((_OUTPUTS, _INPUTS), tokens, strict=True):
        variable.reset(token)


def reads(path: str | Path, name: str, parameter: str | None = None) -> None:
    """Say that a file or a folder is read; nothing for a path that does not exist.

    Args:
        path: the file or folder.
        name: what it is called in errors, such as "--prompts".
        parameter: the parameter of the command that names it, for `Writes.beside`.

    Raises:
        ValueError: if an output that was declared would take its place, or that of a part of it.
    """
    path = Path(path).expanduser()
    try:
        there = path.stat()
    except (OSError, ValueError):  # no path, such as a prompt
        return
    if path.is_file():
        _INPUTS.set(_INPUTS.get() | {(there.st_dev, there.st_ino): name})
    elif not path.is_dir():
        return
    for out in _OUTPUTS.get():
        if how := _taken(out, path, there, parameter in out.how.beside):
            raise ValueError(f"{out.name} is {out.path}, which {how} {name} ({path}): it would be overwritten; give another place")


def refuse_input(path: Path) -> None:
    """Raise ValueError for a place that something which was declared as read has, under whatever name."""
    if inputs := _INPUTS.get():
        try:
            there = path.stat()
        except OSError:
            return
        if name := inputs.get((there.st_dev, there.st_ino)):
            raise ValueError(f"{path} is read as {name}: it would be overwritten; give another place")


def _taken(out: _Output, path: Path, there: os.stat_result, beside: bool) -> str | None:
    """How an output takes the place of what is read at `path`; None where it does not, as beside the files of a folder."""
    try:
        old: os.stat_result | None = out.path.stat()
    except (OSError, ValueError):
        old = None
    place, source, is_folder = _where(out.path), _where(path), path.is_dir()
    if place == source or (old is not None and (old.st_dev, old.st_ino) == (there.st_dev, there.st_ino)):
        return None if out.how.keeps and beside and is_folder else "is"
    if old is None or out.how.keeps or (out.path / MARKER).exists():
        return None
    if out.path.is_dir() and source.is_relative_to(place):
        return "holds"
    return "is a part of" if is_folder and not beside and place.is_relative_to(source) else None


def _where(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link that leads to itself
        return path.absolute()


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _paths(value: Any) -> Iterable[str | Path]:
    """The texts and paths of a parameter's value; what is too long for a path, or empty, is none."""
    if isinstance(value, str | Path):
        return [value] if 0 < len(str(value)) <= 4096 and "\0" not in str(value) else []
    return [path for one in value for path in _paths(one)] if isinstance(value, list | tuple) else []
