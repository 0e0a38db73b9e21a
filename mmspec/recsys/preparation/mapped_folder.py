"""The catalogue of a folder, and its mapped copy: catalogue.safetensors beside catalogue.parquet, which processes share."""

import hashlib
from pathlib import Path

from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.storage.mapped import mapped_source

CATALOGUE, MAPPED = "catalogue.parquet", "catalogue.safetensors"


def read_catalogue(folder: Path) -> Catalogue:
    """Read a folder's catalogue; the mapped copy where there is one.

    Args:
        folder: the folder.

    Returns:
        The catalogue.

    Raises:
        ValueError: for a mapped copy of an earlier catalogue, and for files that cannot be read.
    """
    table, mapped = folder / CATALOGUE, folder / MAPPED
    if not mapped.exists():
        return Catalogue.read(table)
    if table.exists() and mapped_source(mapped) != file_digest(table):
        raise ValueError(f"{mapped} is not of the {CATALOGUE} beside it: write it again with mmspec recommend index {folder}, or delete it")
    return Catalogue.read(mapped)


def write_mapped_copy(table: Path, mapped: Path) -> Catalogue:
    """Write the mapped copy of a catalogue.

    Args:
        table: the Parquet file.
        mapped: where to.

    Returns:
        The catalogue as it was mapped.

    Raises:
        ValueError: for files that cannot be read or written.
    """
    Catalogue.read(table).write(mapped, source=file_digest(table))
    return Catalogue.read(mapped)


def refresh_mapped_copy(folder: Path) -> None:
    """Write a folder's mapped copy again where there is one.

    Args:
        folder: the folder.
    """
    if (folder / MAPPED).exists():
        write_mapped_copy(folder / CATALOGUE, folder / MAPPED)


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes.

    Args:
        path: the file.

    Returns:
        The digest, in hexadecimal.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
