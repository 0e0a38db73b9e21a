"""A table of items: their ids and names, and what semantic ids are made of: embeddings, texts, ready codes, or events."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.recsys.catalogue import Item
from mmspec.recsys.storage.parquet_columns import id_values, read_columns

COLUMNS = ("codes", "embedding", "text")
"""Columns that semantic ids may be made of; of several the first here is taken."""
EVENTS = "events"
SOURCES = (*COLUMNS, EVENTS, *(f"{column}+{EVENTS}" for column in COLUMNS))
"""What semantic ids may be made of."""


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Items and what their semantic ids are made of.

    Args:
        items: ids, whole numbers or texts.
        source: one of `SOURCES`: which of the next four are set.
        codes: LongTensor [items, L], ready semantic ids, or None.
        embedding: float Tensor [items, D], or None.
        text: a text an item, or the beginnings of its ready code as words for "codes+events"; or None.
        near: float Tensor [items, D], embeddings from events (`event_embeddings`), 0 for items without events; or None.
        names: names for display, or None.
    """

    items: tuple[Item, ...]
    source: str
    codes: Tensor | None = None
    embedding: Tensor | None = None
    text: tuple[str, ...] | None = None
    near: Tensor | None = None
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, kw_only=True)
class ItemColumns:
    """Names of the columns of a table of items.

    Args:
        item: the item's id.
        embedding: a list of numbers an item.
        text: a text an item.
        codes: a list of whole numbers an item.
        name: the item's name.
    """

    item: str = "item"
    embedding: str = "embedding"
    text: str = "text"
    codes: str = "codes"
    name: str = "name"


def read_items(path: Path, columns: ItemColumns | None = None, source: str | None = None) -> ItemTable:
    """Read a table of items from Parquet.

    Args:
        path: a Parquet file, or a folder of them.
        columns: their names.
        source: one of `SOURCES`; by default the first whose column is there.

    Returns:
        The items. Embeddings from events are not in the table: `near` is None.

    Raises:
        ValueError: for files and columns that cannot be used, repeated items, and items without an embedding, text or codes.
    """
    columns = columns or ItemColumns()
    if source is not None and source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; valid: {', '.join(SOURCES)}")
    places = {name: getattr(columns, name) for name in COLUMNS}
    table = read_columns(path, (columns.item,), (*places.values(), columns.name))
    have = [name for name in COLUMNS if places[name] in table.column_names]
    if source is None and not have:
        lacking, told = ", ".join(places.values()), ", ".join(table.column_names)
        raise ValueError(f"{path} has no column {lacking}; it has {told}: name yours by the options, or give --from events")
    source = source or have[0]
    column = source.removesuffix(EVENTS).removesuffix("+")
    if column and column not in have:
        raise ValueError(f"{path} has no column {places[column]}; it has {', '.join(table.column_names)}: name yours by the options")
    items = _ids(table[columns.item], f"column {columns.item} of {path}")
    names = None
    if columns.name in table.column_names:
        names = tuple("" if name is None else str(name) for name in table[columns.name].to_pylist())
    if not column:
        return ItemTable(items, source, names=names)
    where = f"column {places[column]} of {path}"
    if column == "text":
        return ItemTable(items, source, text=_texts(table[places[column]], items, where), names=names)
    values = _rows(table[places[column]], items, where)
    if column == "codes":
        codes = _codes(values, where)
        if source != column:
            return ItemTable(items, source, text=_beginnings(codes), names=names)
        return ItemTable(items, source, codes=codes, names=names)
    return ItemTable(items, source, embedding=torch.from_numpy(values.astype(np.float32)), names=names)


def _ids(column: Any, what: str) -> tuple[Item, ...]:
    found = id_values(column, what)
    if not len(found):
        raise ValueError(f"{what} is empty: give at least one item")
    items = tuple(found.to_pylist())
    if None in items:
        raise ValueError(f"{what} is null in row {items.index(None) + 1}: give every item an id")
    if len(set(items)) != len(items):
        counts = found.value_counts().to_pylist()
        twice = next(each["values"] for each in counts if each["counts"] > 1)
        raise ValueError(f"{what} holds {twice!r} twice: give every item one row")
    return items


def _texts(column: Any, items: tuple[Item, ...], what: str) -> tuple[str, ...]:
    texts = column.to_pylist()
    for item, text in zip(items, texts, strict=True):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{what}: item {item!r} has no text: give it one, or leave the item out")
    return tuple(texts)


def _beginnings(codes: Tensor) -> tuple[str, ...]:
    """Every item's code as a text, one word for each beginning of it: items are as similar as their codes agree from the front."""
    return tuple(" ".join("c" + "_".join(map(str, code[:end])) for end in range(1, len(code) + 1)) for code in codes.tolist())


def _rows(column: Any, items: tuple[Item, ...], what: str) -> np.ndarray:
    """A column of lists of equal length as [items, D]."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ValueError(f"{what} holds {kind}: give a list of numbers an item")
    values = column.combine_chunks()
    flat = values.flatten()
    if flat.null_count or values.null_count or len(flat) % len(items) or not len(flat):
        raise ValueError(f"{what} holds nulls or lists of several lengths: give every item a list of the same length")
    lengths = set(np.diff(_offsets(values, len(flat))).tolist())
    if len(lengths) != 1:
        raise ValueError(f"{what} holds lists of lengths {', '.join(map(str, sorted(lengths)[:5]))}: all must be equally long")
    try:
        found = flat.to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{what}: {error}") from None
    if found.dtype.kind not in "iuf":
        raise ValueError(f"{what} holds lists of {kind.value_type}: give lists of numbers")
    return found.reshape(len(items), -1)


def _offsets(values: Any, count: int) -> np.ndarray:
    """Where each list of an array begins, and the end; lists of a fixed size have no offsets."""
    return values.offsets.to_numpy() if hasattr(values, "offsets") else np.linspace(0, count, len(values) + 1).astype(np.int64)


def _codes(values: np.ndarray, what: str) -> Tensor:
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        raise ValueError(f"{what} holds numbers with a fraction: codes are whole numbers from 0")
    if int(values.min()) < 0 or int(values.max()) >= 2**31:
        raise ValueError(f"{what} runs from {values.min()} to {values.max()}: codes are whole numbers from 0")
    return torch.from_numpy(values.astype(np.int64))
