"""Fingerprint of a table's columns: of their values, not of row groups, compression or type names."""

import hashlib
from typing import Any


class ContentDigest:
    """SHA-256 over columns that come batch by batch, equal for equal values however they are split into batches.

    A column is digested as a few streams (validity, lengths, bytes). Integers of any width count as the same type, and so do floats,
    texts, and lists; -0.0 and 0.0 differ. Other types are taken by their Python repr.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Any] = {}
        self.rows = 0

    def add(self, batch: Any) -> None:
        """Add a pyarrow record batch."""
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._column(repr(name), column)

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        parts = [f"{self.rows} rows", *(f"{name} {stream.hexdigest()}" for name, stream in sorted(self._streams.items()))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _column(self, name: str, column: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = column.type
        if pa.types.is_dictionary(kind):
            return self._column(name, column.dictionary_decode())
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._update(f"{name} list", column.is_valid().cast(pa.int8()))
            self._update(f"{name} lengths", pc.fill_null(pc.call_function("list_value_length", [column]).cast(pa.int64()), 0))
            return self._column(f"{name} items", column.flatten())  # those of null lists are left out
        if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            typed, empty = column.cast(pa.int64()), 0
        elif pa.types.is_floating(kind):
            typed, empty = column.cast(pa.float64()), 0.0
        elif pa.types.is_boolean(kind):
            typed, empty = column.cast(pa.int8()), 0
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            typed, empty = column.cast(pa.large_string()), ""
        else:
            self._stream(f"{name} {kind}").update("".join(f"{value!r}\n" for value in column.to_pylist()).encode())
            return None
        self._update(f"{name} {typed.type}", column.is_valid().cast(pa.int8()))
        filled = pc.fill_null(typed, empty)
        if isinstance(empty, str):
            self._update(f"{name} lengths", pc.call_function("binary_length", [filled]))
            self._stream(f"{name} bytes").update(_text(filled))
        else:
            self._update(f"{name} values", filled)

    def _update(self, name: str, column: Any) -> None:
        import numpy as np

        self._stream(name).update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))

    def _stream(self, name: str) -> Any:
        return self._streams.setdefault(name, hashlib.sha256())


def _text(column: Any) -> memoryview:
    """The bytes of all texts of a large_string column without nulls, one behind the other."""
    import numpy as np

    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    first, last = np.frombuffer(offsets, np.int64)[[column.offset, column.offset + len(column)]]
    return memoryview(data)[int(first) : int(last)]
