"""The Parquet file of a catalogue: columns `item`, `path` and, where given, `name`; other settings in its metadata."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

_KEY = b"mmspec.catalogue"


@dataclass(frozen=True)
class CatalogueTable:
    """Content of a catalogue file, not yet checked.

    Attributes:
        items: the items.
        paths: token ids of each item's path.
        names: names of the items, or None.
        settings: "before", "after" and "most" of the catalogue; empty without metadata.
    """

    items: list[Any]
    paths: list[list[int]]
    names: tuple[str, ...] | None
    settings: dict[str, Any]


def write_table(
    path: str | Path, items: Sequence[Hashable], paths: Tensor, names: Sequence[str] | None, settings: Mapping[str, Any]
) -> None:
    """Write a catalogue file, atomically.

    Args:
        path: the file.
        items: the items.
        paths: LongTensor [items, L], token ids of each item's path.
        names: names of the items, or None.
        settings: plain data for the metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mmspec.utils.files import whole

    columns: dict[str, Any] = {"item": list(items), "path": pa.array(paths.tolist(), pa.list_(pa.int32()))}
    if names is not None:
        columns["name"] = list(names)
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(settings)})
    with whole(path, binary=True) as file:
        pq.write_table(table, file)


def read_table(path: str | Path) -> CatalogueTable:
    """Read a catalogue file. ValueError for a missing file, one that is not Parquet, and missing or unsuitable columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise ValueError(f"catalogue {path} does not exist: give a Parquet file with columns item and path") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"catalogue {path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    if missing := {"item", "path"} - set(table.column_names):
        raise ValueError(f"catalogue {path} has no column {', '.join(sorted(missing))}; it has {', '.join(table.column_names)}")
    kind = table.schema.field("path").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise ValueError(f"catalogue {path}: column path holds {kind}, but a path is a list of whole numbers")
    names = tuple(table["name"].to_pylist()) if "name" in table.column_names else None
    try:
        settings = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError as error:
        raise ValueError(f"catalogue {path}: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"catalogue {path}: its metadata is {settings!r}: write it with Catalogue.write")
    return CatalogueTable(table["item"].to_pylist(), table["path"].to_pylist(), names, settings)
