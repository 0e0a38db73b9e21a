"""The files of a table: a Parquet file, a folder of them, partitioned folders, and the present version of a Delta table."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_LOG = "_delta_log"
_UNREAD = {"columnMapping", "deletionVectors"}


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
    files = _delta_files(path) if (path / _LOG).is_dir() else sorted(_listed(path))
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


def _listed(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and "=" in path.name:
            yield from _listed(path)
        elif path.suffix == ".parquet" and not path.name.startswith(".") and path.is_file():
            yield path


def _delta_files(path: Path) -> list[Path]:
    """The files of the newest version; those of earlier versions lie in the folder too."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
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
