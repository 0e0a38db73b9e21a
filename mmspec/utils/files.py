"""Files: prompts are read strictly, results are written completely or not at all, tables may be folders."""

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mmspec.utils.places import refuse_input
from mmspec.utils.screen import note_once

_DELTA = "_delta_log"
_UNREAD = {"columnMapping", "deletionVectors"}


def is_path(name: str) -> bool:
    """Whether a name can only mean a place on this machine; hub names are `name` or `owner/name`, without the ending of a GGUF file."""
    return name.startswith((".", "~", os.sep)) or name.endswith(".gguf") or name.count("/") > 1 or "\\" in name


@contextmanager
def whole(path: str | Path, binary: bool = False) -> Iterator[Any]:
    """Open a text or binary file that takes its name only when the block ends without an error; otherwise nothing is left.

    Of a symbolic link the file it leads to is written, and the link stays. Devices and pipes are written to as they are.
    It is opened at once, so that a path that cannot be written fails before the work begins, with a ValueError. So does a file that the
    running command reads.
    """
    path = _resolved(Path(path))
    refuse_input(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        with _opened_device(path, binary) as file:
            yield file
        return
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        if not path.name:
            raise IsADirectoryError(21, "it names no file")
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        file = temporary.open("wb") if binary else temporary.open("w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose a file in a folder that exists and is writable") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _resolved(path: Path) -> Path:
    """Where `path` leads, through symbolic links; a link that leads to itself stays, and is refused when it is opened."""
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):
        return path


@contextmanager
def _opened_device(path: Path, binary: bool) -> Iterator[Any]:
    """A device or a pipe, written in place: it cannot be replaced by a file. Refused without waiting where nothing reads a pipe."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(handle, True)
        file = os.fdopen(handle, "wb") if binary else os.fdopen(handle, "w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose a file, or start what reads the pipe first") from None
    with file:
        yield file


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` to `path`, completely or not at all."""
    with whole(path) as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def read_prompts(path: str | Path) -> list[dict[str, Any]]:
    """The prompts of a file, each a record with "line" and "prompt".

    One prompt per line, blank lines skipped; or, for *.jsonl, one object per line whose other keys are kept. ValueError names
    the line that is wrong.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"prompts file {path} does not exist: give a text file with one prompt per line, or JSON lines") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompts file {path} cannot be read as UTF-8 text: {error}") from None
    strict = path.suffix in (".jsonl", ".json")
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    records = [_record(path, number, line) if strict else {"line": number, "prompt": line} for number, line in numbered]
    if not records:
        raise ValueError(f"prompts file {path} holds no prompt: give at least one")
    return records


def read_texts(path: str | Path) -> list[str]:
    """The texts of a file: of *.jsonl the "prompt" of every line, else the whole file is one. ValueError if there is none."""
    records = read_prompts(path)
    if Path(path).suffix in (".jsonl", ".json"):
        return [record["prompt"] for record in records]
    return [Path(path).read_text(encoding="utf-8")]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f'{path}, line {number} is not JSON ({reason}): write one object per line, such as {{"prompt": "..."}}') from None
    prompt = found.get("prompt") if isinstance(found, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f'{path}, line {number} has no "prompt" with text in it: write one object per line, such as {{"prompt": "..."}}')
    return {"line": number, **found}


def prompt_argument(given: str | None) -> str:
    """A prompt from the command line; "-" reads standard input. ValueError if it is empty."""
    if given is None:
        raise ValueError('no prompt: give one ("..."), - to read standard input, or --input FILE')
    prompt = sys.stdin.read().rstrip("\n") if given == "-" else given
    if not prompt.strip():
        raise ValueError("the prompt is empty: give some text to continue")
    return prompt


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder that takes its name only when the block ends without an error, in place of what has the name then.

    Raises:
        ValueError: when the folder cannot be made.
    """
    path = Path(path).expanduser()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose a folder that can be made") from None
    try:
        yield temporary
        shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def parquet_files(path: Path) -> list[Path]:
    """List a table's files in the order of their names.

    In a folder that is no Delta table, `*.parquet` and those in folders called NAME=VALUE count, as Spark and Hive write partitions.

    Args:
        path: a Parquet file, or a folder.

    Returns:
        The files; at least one. A file is not looked for.

    Raises:
        ValueError: for a folder without any, and for a Delta table that cannot be read.
    """
    if not path.is_dir():
        return [path]
    if (path / _DELTA).is_dir():
        files = _delta_files(path)  # the other files are of earlier versions
    elif files := sorted(_partitions(path)):
        notes = [file for file in listed(path) if file.name.startswith("_")]  # of who wrote the table, such as _SUCCESS
        note_skipped(path, [*files, *notes], "no *.parquet beside these or in a folder NAME=VALUE")
    if not files:
        raise ValueError(f"folder {path} holds no *.parquet file: give a Parquet file, or a folder of them")
    return files


def partition_of(file: Path, table: Path) -> dict[str, str]:
    """Return the columns that the names of a file's folders stand for.

    Args:
        file: one of `parquet_files(table)`.
        table: the table.

    Returns:
        Values by name of column, as texts.
    """
    folders = file.relative_to(table).parts[:-1] if file != table else ()
    return {unquote(name): unquote(value) for name, _, value in (folder.partition("=") for folder in folders if "=" in folder)}


def _partitions(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and "=" in path.name:
            yield from _partitions(path)
        elif path.suffix == ".parquet" and not path.name.startswith(".") and path.is_file():
            yield path


def _delta_files(path: Path) -> list[Path]:
    """The files of the newest version; those of earlier versions lie in the folder too."""
    try:
        from deltalake import DeltaTable  # pyright: ignore[reportMissingImports]
        from deltalake.exceptions import DeltaError  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"{path} is a Delta table, and deltalake is not installed: pip install 'mmspec[delta]'") from None
    try:
        table = DeltaTable(str(path.absolute()))
        features = set(table.protocol().reader_features or ())
        names = table.file_uris()
    except (DeltaError, OSError, ValueError) as error:
        raise ValueError(f"Delta table {path} cannot be read: {str(error).splitlines()[0]}") from None
    if unread := features & _UNREAD:
        raise ValueError(f"Delta table {path} uses {', '.join(sorted(unread))}, which is not read here: write it without, or as Parquet")
    return sorted(path / Path(unquote(name.removeprefix("file://"))).relative_to(path.absolute()) for name in names)


def listed(folder: str | Path) -> list[Path]:
    """Return every file of a folder and its subfolders that is not hidden, sorted."""
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(here, name) for name in names if not name.startswith(".")]
    return sorted(found)


def note_skipped(folder: Path, taken: Collection[Path], why: str) -> list[Path]:
    """Return the files of a folder and its subfolders that are not taken, and name them on stderr, once; hidden ones are not counted.

    Args:
        folder: the folder.
        taken: the files that are read.
        why: why the others are not, such as "no picture by its ending".
    """
    known = set(taken)
    skipped = [path for path in listed(folder) if path not in known]
    if skipped:
        note_once(f"skipped in {folder}, {why}: {len(skipped)} ({named_shortly([path.relative_to(folder) for path in skipped])})")
    return skipped


def named_shortly(paths: Sequence[str | Path], most: int = 8) -> str:
    """Return some paths in a line: the first of them, and how many more there are."""
    shown = ", ".join(map(str, paths[:most]))
    return shown if len(paths) <= most else f"{shown} and {len(paths) - most:,} more"
