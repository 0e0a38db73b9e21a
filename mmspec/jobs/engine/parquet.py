"""Parquet in and out: rows of one or several files as records, and one table of outputs per shard.

Memory is bounded by a batch and a row group of the output, whatever the size of the input.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mmspec.jobs.engine.columns import ContentDigest
from mmspec.jobs.engine.records import Facts
from mmspec.utils.files import parquet_files, partition_of

_BATCH_BYTES = 8 << 20  # of values, as the file's own figures tell it, that are taken at a time
_BATCH_ROWS = 4096
_GROUP_ROWS = 32768  # of an output file: fixed, so that its bytes do not tell how outputs came


@dataclass(frozen=True)
class ParquetRows:
    """Source of Parquet rows: one file, or the files of a folder or Delta table by name, as dicts of Python values.

    Folders called NAME=VALUE inside it, as Spark, Hive and Delta write partitions, are read too; NAME is then a column of texts.

    A record's index is its row number over all files. Columns may be of any type; the job's `check` rejects unsuitable rows one by one.

    Args:
        path: the file or folder.
        columns: names of the columns to read; those of the first file by default.

    Raises:
        ValueError: for missing or unreadable files and for missing columns.
    """

    path: Path
    columns: tuple[str, ...] = ()
    unit: ClassVar[str] = "row"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        for file in self._files():
            with _readable(file), _opened(file) as table:
                there = [*table.schema_arrow.names, *partition_of(file, self.path)]
            if not self.columns:
                object.__setattr__(self, "columns", tuple(there))
            if missing := [name for name in self.columns if name not in there]:
                raise ValueError(
                    f"{file} has no column {', '.join(map(repr, missing))}; it has {', '.join(there) or 'none'}: name one of those, "
                    "or write the column into the file"
                )

    @property
    def types(self) -> dict[str, str]:
        """Return the types of the columns in the first file, by the names that `ParquetTable` takes."""
        import pyarrow as pa

        first = self._files()[0]
        with _opened(first) as table:
            own = set(table.schema_arrow.names)
            found = {name: table.schema_arrow.field(name).type if name in own else pa.string() for name in self.columns}
        return {name: str(kind.value_type if pa.types.is_dictionary(kind) else kind) for name, kind in found.items()}

    def facts(self) -> Facts:
        """Return the number of rows and a fingerprint of the columns' values in row order (`ContentDigest`), whatever the files and row
        groups.
        """
        digest = ContentDigest()
        for file in self._files():
            with _readable(file), _opened(file) as table:
                for group in range(table.num_row_groups):
                    for batch in self._batches(file, table, group):
                        digest.add(batch)
        return Facts(digest.rows, digest.hexdigest())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Yield (index, record) for every wanted index. Row groups without a wanted row are not read."""
        first = 0
        for file in self._files():
            with _readable(file), _opened(file) as table:
                for group in range(table.num_row_groups):
                    rows = table.metadata.row_group(group).num_rows
                    if any(map(wanted, range(first, first + rows))):
                        yield from self._rows((file, table), group, first, wanted)
                    first += rows

    def place(self, index: int) -> dict[str, Any]:
        """Find the place of a record in the input, for people.

        Args:
            index: index of the record, from 0.

        Returns:
            "file", the name of the file, and "row", the number of the row in it, from 1.
        """
        first = 0
        for file, rows in self._sizes:
            if index < first + rows:
                return {"file": file, self.unit: index - first + 1}
            first += rows
        return {self.unit: index + 1}

    @cached_property
    def _sizes(self) -> list[tuple[str, int]]:
        found = []
        for file in self._files():
            with _readable(file), _opened(file) as table:
                found.append((self._name(file), table.metadata.num_rows))
        return found

    def _rows(self, opened: tuple[Path, Any], group: int, first: int, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        for batch in self._batches(*opened, group):
            rows = None
            for place in range(batch.num_rows):
                if wanted(first + place):
                    rows = rows if rows is not None else batch.to_pylist()
                    yield first + place, rows[place]
            first += batch.num_rows

    def _batches(self, file: Path, table: Any, group: int) -> Iterator[Any]:
        """A row group, in pieces of a size that does not depend on the group's."""
        import pyarrow as pa

        figures = table.metadata.row_group(group)
        size = _BATCH_BYTES * figures.num_rows // max(1, figures.total_byte_size)
        size = max(1, min(size, _BATCH_ROWS))
        own, parts = set(table.schema_arrow.names), partition_of(file, self.path)
        columns = [name for name in self.columns if name in own]
        for batch in table.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False):
            for name in self.columns:
                if name not in own:
                    batch = batch.append_column(name, pa.array([parts[name]] * batch.num_rows, pa.string()))
            yield batch.select(list(self.columns))

    def _files(self) -> list[Path]:
        return parquet_files(self.path)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix() if file != self.path else file.name


def _opened(file: Path) -> Any:
    """Open a file for reads in small pieces, with checksums verified where it has them."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turns errors of unreadable files into a ValueError that names the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"input file {file} does not exist: give a Parquet file, or a folder of them") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"input file {file} cannot be read as Parquet: {reason}; restore it or leave it out") from None


@dataclass(frozen=True)
class ParquetTable:
    """Sink of Parquet tables, one file a shard.

    The output of one record is any number of rows: {name: [values]} of equal lengths, or a list of {name: value}. The bytes depend on
    outputs, columns and pyarrow's version only. Memory is bounded by a row group.

    Args:
        columns: {name: type} with pyarrow's type names ("int64", "string", "float", "list<int64>").

    Raises:
        ValueError: for no columns or an unknown type.
    """

    columns: Mapping[str, str]
    extension: ClassVar[str] = ".parquet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", dict(self.columns))
        self._schema()  # unknown types are told at once

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        """Write the shard's table; see `Sink.write`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self._schema()
        waiting: dict[str, list[Any]] = {name: [] for name in self.columns}

        def group(rows: int) -> Any:
            taken = [_column(name, waiting[name][:rows], schema.field(name).type) for name in self.columns]
            for values in waiting.values():
                del values[:rows]
            return pa.Table.from_arrays(taken, schema=schema)

        # a file of our own: its errors keep their number, by which a full disk is known
        with (place / f"{part}{self.extension}").open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            count = 0
            for index, output in outputs:
                count += self._take(waiting, index, output)
                while count >= _GROUP_ROWS:
                    writer.write_table(group(_GROUP_ROWS), row_group_size=_GROUP_ROWS)
                    count -= _GROUP_ROWS
            if count:
                writer.write_table(group(count), row_group_size=_GROUP_ROWS)

    def _take(self, waiting: dict[str, list[Any]], index: int, output: Any) -> int:
        """Append one output's rows to `waiting` and return their number."""
        names = self.columns.keys()
        if not isinstance(output, Mapping):
            rows: Sequence[Mapping[str, Any]] = list(output)
            if any(row.keys() != names for row in rows):
                output = next(row for row in rows if row.keys() != names)
            else:
                output = {name: [row[name] for row in rows] for name in names}
        lengths = {len(values) for values in output.values()} if output.keys() == names else set()
        if len(lengths) != 1:
            raise ValueError(
                f"record {index} came out with columns {', '.join(output) or 'none'}; the table has {', '.join(names)}: give each "
                "of these, and all of one length"
            )
        for name in names:
            waiting[name].extend(output[name])
        return lengths.pop()

    def _schema(self) -> Any:
        import pyarrow as pa

        if not self.columns:
            raise ValueError("a table has no columns: name at least one, such as {'item': 'int64'}")
        return pa.schema([(name, _type(name, kind)) for name, kind in self.columns.items()])


def _type(column: str, name: str) -> Any:
    import pyarrow as pa

    inner = name.removeprefix("list<").removesuffix(">")
    if inner != name:
        return pa.list_(_type(column, inner.split(": ")[-1]))  # pyarrow itself writes "list<element: int64>"
    try:
        return pa.type_for_alias(name)
    except ValueError:
        raise ValueError(f"column {column} has the unknown type {name!r}: give one such as int64, string, float or list<int64>") from None


def _column(name: str, values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa

    try:
        if not pa.types.is_integer(kind):
            return pa.array(values, kind)
        if kind == pa.uint64() and all(type(value) is int for value in values):
            return pa.array(values, kind)
        found = pa.array(values)  # asked for integers, pyarrow would cut 1.5 to 1
        if pa.types.is_integer(found.type) or pa.types.is_null(found.type):
            return found.cast(kind)
        raise TypeError(f"{found.type} found")
    except (pa.ArrowException, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"an output does not fit column {name} of type {kind}: {reason}") from None
