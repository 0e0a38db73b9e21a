"""Items that come after the training: semantic ids by the fitted quantiser, and catalogues that hold them too."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.preparation.items import EVENTS, ItemColumns, ItemTable, read_items
from mmspec.recsys.preparation.mapped_folder import CATALOGUE, refresh_mapped_copy
from mmspec.recsys.preparation.prepared import HISTORIES, OFFSET, QUANTISER, read_summary
from mmspec.recsys.preparation.quantiser import ItemQuantiser
from mmspec.recsys.storage.table import column_of

VERSIONS = "versions"
RETRIEVER = "drafters/retriever.safetensors"


@dataclass(frozen=True, eq=False)
class AssignedItems:
    """New items with their semantic ids.

    Args:
        items: their ids.
        codes: LongTensor [items, L].
        catalogue: the catalogue with the new items behind the others.
        shared: new items whose path another item has.
        note: what the ids lack, in a sentence, or "".
        earlier: where the earlier catalogue is kept, once the items were appended.
    """

    items: tuple[Item, ...]
    codes: Tensor
    catalogue: Catalogue
    shared: int
    note: str = ""
    earlier: Path | None = None


def assign_new(folder: Path, path: Path) -> AssignedItems:
    """Give semantic ids to the new items of a table.

    Args:
        folder: what `prepare_shop` wrote.
        path: a Parquet file with the columns of the first items.

    Returns:
        The items.

    Raises:
        ValueError: for a folder or table that cannot be used, items that the catalogue has, and codes beyond those of the model.
    """
    summary, catalogue = read_summary(folder), Catalogue.read(folder / CATALOGUE)
    table = read_items(path, ItemColumns(**summary["settings"]["columns"]), summary["source"])
    if there := [item for item in table.items if item in catalogue]:
        raise ValueError(f"{len(there)} items of {path} are in the catalogue already, such as {there[0]!r}: leave them out")
    if {type(item) for item in table.items} != catalogue.kinds:
        raise ValueError(f"items of {path} are such as {table.items[0]!r}, those of the catalogue such as {catalogue.items[0]!r}")
    size, steps = summary["size"], torch.arange(catalogue.levels)
    taken = catalogue.paths - OFFSET - size * steps
    codes = _checked(table, catalogue.levels, size, path) if table.codes is not None else _learnt(folder, table, taken)
    paths = torch.cat([catalogue.paths, codes + OFFSET + size * steps])
    names = _names(catalogue, table)
    whole = replace(catalogue, items=(*catalogue.items, *table.items), paths=paths, names=names, index=None)
    _, place, counts = paths.unique(dim=0, return_inverse=True, return_counts=True)
    shared = int((counts[place[len(catalogue) :]] > 1).sum())
    return AssignedItems(table.items, codes, whole, shared, _note(table.source))


def write_assigned(found: AssignedItems, path: Path) -> None:
    """Write items, codes and paths as Parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mmspec.utils.files import whole

    lists = pa.list_(pa.int64())
    new = found.catalogue.paths[-len(found.items) :]
    columns = {"item": column_of(found.items), "codes": pa.array(found.codes.tolist(), lists), "path": pa.array(new.tolist(), lists)}
    with whole(path, binary=True) as file:
        pq.write_table(pa.table(columns), file)


def append_new(folder: Path, path: Path) -> AssignedItems:
    """Add the new items of a table to a folder's catalogue, and count its retriever again. The earlier files go to versions/.

    Args:
        folder: what `prepare_shop` wrote.
        path: a Parquet file with the columns of the first items.

    Returns:
        The items, and where the earlier catalogue is.

    Raises:
        ValueError: as `assign_new`.
    """
    found = assign_new(folder, path)
    kept = _keep(folder)
    if (folder / RETRIEVER).exists():
        retriever = _counted(folder, found.catalogue)
        retriever.save(folder / RETRIEVER)  # before the catalogue: a kill between the two leaves one that the next append replaces
    found.catalogue.write(folder / CATALOGUE)
    refresh_mapped_copy(folder)
    return replace(found, earlier=kept / CATALOGUE)


def _keep(folder: Path) -> Path:
    """Copy catalogue and retriever to a new folder in versions/."""
    import shutil

    from mmspec.utils.files import whole_folder

    done = sorted((folder / VERSIONS).glob("[0-9]*"))
    for place in done:  # a kill before the catalogue was written: these are the same files
        if (place / CATALOGUE).read_bytes() == (folder / CATALOGUE).read_bytes():
            return place
    kept = folder / VERSIONS / f"{len(done):05d}"
    (folder / VERSIONS).mkdir(exist_ok=True)
    with whole_folder(kept) as place:
        shutil.copyfile(folder / CATALOGUE, place / CATALOGUE)
        if (folder / RETRIEVER).exists():
            shutil.copyfile(folder / RETRIEVER, place / "retriever.safetensors")
    return kept


def _counted(folder: Path, catalogue: Catalogue) -> Any:
    """A retriever over a catalogue, of the training part of the folder's histories."""
    from mmspec.recsys.preparation.history_rows import HistoryRows, training_lengths
    from mmspec.recsys.retriever import Retriever

    histories = HistoryRows.read(folder / HISTORIES, catalogue)
    return Retriever.of(catalogue, histories.shortened(training_lengths(histories.lengths)), 16)


def _note(source: str) -> str:
    """What the ids of new items lack."""
    column = source.removesuffix(EVENTS).removesuffix("+")
    if column == source:
        return ""
    if not column:
        return f"semantic ids here are from {EVENTS}, which new items lack: they get those of items beside no other until a new prepare"
    return f"semantic ids here are from {source}, and new items have no {EVENTS}: the {column} alone decides"


def _learnt(folder: Path, table: ItemTable, taken: Tensor) -> Tensor:
    return ItemQuantiser.load(folder / QUANTISER).codes(table, taken)


def _checked(table: ItemTable, levels: int, size: int, path: Path) -> Tensor:
    codes = table.codes
    assert codes is not None
    if codes.shape[1] != levels or int(codes.max()) >= size:
        raise ValueError(f"{path} holds {codes.shape[1]} codes up to {int(codes.max())}; the model has {levels} levels of {size} codes")
    return codes


def _names(catalogue: Catalogue, table: ItemTable) -> tuple[str, ...] | None:
    if catalogue.names is None:
        return None
    return (*catalogue.names, *(table.names or tuple(map(str, table.items))))
