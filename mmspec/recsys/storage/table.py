"""The Parquet file of a catalogue: columns `item`, `path` and, where given, `name`; other settings in its metadata."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.recsys.storage.column import Column, typed
from mmspec.recsys.storage.parquet_columns import id_values

COLUMNAR = 100_000
"""From so many items on, a catalogue that is read keeps them in columns and its paths in int32."""
_KEY = b"mmspec.catalogue"


@dataclass(frozen=True)
class CatalogueTable:
    """Content of a catalogue file, not yet checked.

    Attributes:
        items: the items, a tuple or, from `COLUMNAR` of them on, a `Column`.
        paths: token ids of each item's path [items, L], int64 beside a tuple and int32 beside a `Column`.
        names: names of the items, or None.
        settings: "before", "after" and "most" of the catalogue; empty without metadata.
    """

    items: Sequence[Any]
    paths: Tensor
    names: Sequence[str] | None
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

    count, levels = paths.shape
    starts = pa.array(np.arange(0, count * levels + 1, levels, dtype=np.int64))
    values = pa.array(paths.cpu().to(torch.int32).contiguous().view(-1).numpy())
    path_column = pa.LargeListArray.from_arrays(starts, values)
    if count * levels < 2**31:
        path_column = path_column.cast(pa.list_(pa.int32()))
    columns: dict[str, Any] = {"item": column_of(items), "path": path_column}
    if names is not None:
        columns["name"] = column_of(names)
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(settings)})
    with whole(path, binary=True) as file:
        pq.write_table(table, file)


def column_of(values: Sequence[Hashable]) -> Any:
    """Return items or names as a pyarrow Array; whole numbers beyond int64 make it uint64."""
    import pyarrow as pa

    if isinstance(values, Column):
        return values.values
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())


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
    try:
        settings = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError as error:
        raise ValueError(f"catalogue {path}: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"catalogue {path}: its metadata is {settings!r}: write it with Catalogue.write")
    names = table["name"] if "name" in table.column_names else None
    paths = _paths(path, table["path"])
    if len(paths) < COLUMNAR:
        items = _items(table["item"])
        if twice := len(items) - len(set(items)):
            raise ValueError(f"catalogue {path}: {twice} items are in it twice: give every item one path")
        return CatalogueTable(items, paths.long(), None if names is None else tuple(names.to_pylist()), settings)
    try:
        items = Column.of(id_values(table["item"], "column item"))
    except ValueError as error:
        raise ValueError(f"catalogue {path}: {error}") from None
    if items.values.null_count:
        raise ValueError(f"catalogue {path}: an item is null: give every path an item")
    return CatalogueTable(items, paths, None if names is None else Column(typed(names)), settings)


def _items(column: Any) -> tuple[Any, ...]:
    """The items; whole numbers that are stored with a fraction as int."""
    found = column.to_pylist()
    if found and all(type(item) is float and item.is_integer() for item in found):
        return tuple(int(item) for item in found)
    return tuple(found)


def _paths(path: str | Path, column: Any) -> Tensor:
    """The paths [items, L], read column by column. ValueError for nulls and for paths that differ in length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise ValueError(f"catalogue {path}: a path is NoneType: give every item a path")
    if not len(column):
        return torch.zeros(0, 0, dtype=torch.long)
    lengths = sorted(pc.call_function("unique", [pc.call_function("list_value_length", [column])]).to_pylist())
    if len(lengths) > 1:
        raise ValueError(f"catalogue {path}: paths have lengths {', '.join(map(str, lengths))}: all must be equally long")
    values = pc.call_function("list_flatten", [column]).combine_chunks()
    if values.null_count:
        raise ValueError(f"catalogue {path}: a path holds NoneType, which is no token id")
    try:
        numbers = values.cast(pa.int32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        raise ValueError(f"catalogue {path}: a path holds a number beyond 2**31, which is no token id") from None
    return torch.from_numpy(numbers.copy()).view(len(column), lengths[0])
