"""Columns of Parquet tables: read with clear errors, and as values that a catalogue may hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec.utils.files import parquet_files, partition_of


def read_columns(path: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """Read columns of a Parquet file, or of the files of a folder or Delta table in the order of their names.

    Args:
        path: the file or folder. Of folders called NAME=VALUE inside it, NAME is a column of texts.
        wanted: columns that must be there.
        optional: columns that are read where they are.

    Returns:
        A pyarrow Table of the columns found.

    Raises:
        ValueError: for a path that is missing, unreadable or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in parquet_files(path):
        parts = partition_of(file, path)
        try:
            own = pq.read_schema(file).names
        except FileNotFoundError:
            raise ValueError(f"{file} does not exist: give a Parquet file with columns {', '.join(wanted)}") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        have = [*own, *parts]
        if missing := [name for name in wanted if name not in have]:
            raise ValueError(f"{file} has no column {', '.join(map(repr, missing))}; it has {', '.join(have)}: name yours by the options")
        asked = [name for name in dict.fromkeys((*wanted, *optional)) if name in have]
        table = pq.read_table(file, columns=[name for name in asked if name in own], partitioning=None)  # pyright: ignore[reportArgumentType]
        for name in asked:
            if name not in own:
                table = table.append_column(name, pa.array([parts[name]] * table.num_rows, pa.string()))
        tables.append(table)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"the files of {path} differ in their columns' types: {str(error).splitlines()[0]}") from None


def id_values(column: Any, what: str) -> Any:
    """Return a column of ids as whole numbers or text; nulls stay.

    Numbers with a fraction that is 0 everywhere, which tables with gaps often hold, become whole numbers.

    Args:
        column: a pyarrow ChunkedArray.
        what: name of the column and its table, for errors.

    Returns:
        A pyarrow Array of int64, uint64 (where a value needs it) or string.

    Raises:
        ValueError: for other types, and for numbers with a fraction.
    """
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported

    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(found, pa.ChunkedArray):  # an empty table has no chunk
        found = pa.array([], found.type)
    kind = found.type
    if pa.types.is_dictionary(kind):
        found, kind = found.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return found.cast(pa.large_string())
    if pa.types.is_floating(kind):
        values = found.cast(pa.float64())
        values = pc.if_else(pc.is_nan(values), None, values)
        odd = pc.filter(values, pc.fill_null(pc.not_equal(pc.floor(values), values), False))
        if len(odd) or (pc.max(pc.abs(values)).as_py() or 0) >= 2**53:
            raise ValueError(f"{what} holds {odd[0].as_py() if len(odd) else 'numbers beyond 2**53'}: ids are whole numbers or text")
        return values.cast(pa.int64())
    if pa.types.is_uint64(kind):
        return found if (pc.max(found).as_py() or 0) >= 2**63 else found.cast(pa.int64())
    if pa.types.is_integer(kind):
        return found.cast(pa.int64())
    raise ValueError(f"{what} holds {kind}: ids are whole numbers or text")
