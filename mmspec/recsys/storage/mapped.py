"""A whole catalogue in one file that processes map into memory and share: items, paths, trie, names (safetensors)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.core.beams.trie import Trie
from mmspec.recsys.storage.column import Column
from mmspec.recsys.storage.index import CatalogueIndex
from mmspec.utils.private_copy import private_copy

SUFFIX = ".safetensors"
_KEY = "mmspec.catalogue"


@dataclass(frozen=True, eq=False)
class MappedCatalogue:
    """Content of a mapped file.

    Attributes:
        items: the items.
        paths: IntTensor [items, L].
        names: names of the items, or None.
        index: the tables that searches read.
        settings: "before", "after" and "most" of the catalogue, its "digest", and the "source" it was made from.
    """

    items: Column
    paths: Tensor
    names: Column | None
    index: CatalogueIndex
    settings: dict[str, Any]


def write_mapped(
    path: str | Path, items: Column, paths: Tensor, names: Column | None, index: CatalogueIndex, settings: Mapping[str, Any]
) -> None:
    """Write the file, atomically.

    Args:
        path: the file.
        items: the items.
        paths: whole numbers [items, L].
        names: names of the items, or None.
        index: the tables that searches read.
        settings: plain data, kept in the header.
    """
    from safetensors.torch import save_file

    from mmspec.utils.files import whole

    trie = index.trie
    tensors = {"path": paths.cpu().int(), "token": trie.token, "child": trie.child, "span": trie.span}
    tensors |= {"leaf": index.leaf, "order": index.order, "begin": index.begin}
    tensors |= _stored("item", items) | ({} if names is None else _stored("name", names))
    told = {**settings, "starts": trie.starts, "widths": trie.widths}
    with whole(path, binary=True) as file:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file.name, {_KEY: json.dumps(told)})


def read_mapped(path: str | Path) -> MappedCatalogue:
    """Map a copy of a file, which nobody else writes (see `private_copy`) and all processes of a machine share.

    Args:
        path: what `write_mapped` wrote.

    Returns:
        Its content.

    Raises:
        ValueError: for a file that is missing or something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        copy = private_copy(path)
        with safe_open(copy or path, framework="pt") as file:
            told = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if copy is None:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        trie = Trie(tensors["token"], tensors["child"], tensors["span"], tuple(told.pop("starts")), tuple(told.pop("widths")))
        index = CatalogueIndex(trie, tensors["leaf"], tensors["order"], tensors["begin"])
        names = _column("name", tensors) if "name.offset" in tensors else None
        return MappedCatalogue(_column("item", tensors), tensors["path"], names, index, told)
    except FileNotFoundError:
        raise ValueError(f"catalogue {path} does not exist: give a file that Catalogue.write or mmspec recommend index wrote") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"catalogue {path} is no mapped catalogue ({str(error).splitlines()[0]}): write it again") from None


def mapped_source(path: str | Path) -> str | None:
    """Tell what a mapped catalogue was made from.

    Args:
        path: what `write_mapped` wrote.

    Returns:
        The SHA-256 of the Parquet file; None where it was made from none.

    Raises:
        ValueError: as `read_mapped`.
    """
    return read_mapped(path).settings.get("source")


def _stored(name: str, column: Column) -> dict[str, Tensor]:
    """A column as tensors."""
    found: dict[str, Tensor] = {}
    if column.order is not None:
        found[f"{name}.order"] = torch.from_numpy(column.order)
    if column.kind is int:
        return found | {f"{name}.number": torch.from_numpy(column.values.to_numpy(zero_copy_only=False).copy())}
    _, offsets, data = column.values.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.values.offset : column.values.offset + len(column) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.zeros(0, np.uint8)
    return found | {f"{name}.text": torch.from_numpy(text.copy()), f"{name}.offset": torch.from_numpy(ends - ends[0])}


def _column(name: str, tensors: Mapping[str, Tensor]) -> Column:
    """A column over mapped tensors, without a copy."""
    import pyarrow as pa

    order = tensors[f"{name}.order"].numpy() if f"{name}.order" in tensors else None
    if f"{name}.number" in tensors:
        return Column(pa.array(tensors[f"{name}.number"].numpy()), order)
    offset, text = tensors[f"{name}.offset"].numpy(), tensors[f"{name}.text"].numpy()
    buffers = [None, pa.py_buffer(offset), pa.py_buffer(text)]
    return Column(pa.Array.from_buffers(pa.large_string(), len(offset) - 1, buffers), order)
