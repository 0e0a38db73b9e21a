"""The folder of a recommender's data: a catalogue, histories, and the quantiser that gave the semantic ids.

`prepare_shop` writes it from two tables; training, evaluation and jobs read it, and the models are written into it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.histories import Data
from mmspec.recsys.preparation.event_embeddings import event_embeddings
from mmspec.recsys.preparation.history_rows import HistoryRows, training_lengths
from mmspec.recsys.preparation.interactions import Interactions, read_interactions
from mmspec.recsys.preparation.items import EVENTS, ItemColumns, ItemTable, read_items
from mmspec.recsys.preparation.mapped_folder import CATALOGUE, read_catalogue
from mmspec.recsys.preparation.quantiser import ItemQuantiser, QuantiserSettings
from mmspec.recsys.semantic_ids import collisions
from mmspec.utils.files import parquet_files, write_json

HISTORIES, QUANTISER, SUMMARY = "histories.parquet", "quantiser.safetensors", "prepared.json"
OFFSET = 2  # tokens 0 (padding) and 1 (start) are no codes


@dataclass(frozen=True, kw_only=True)
class PreparationSettings:
    """What to prepare, and how.

    Args:
        interactions: a Parquet file of events, or a folder of them.
        items: a Parquet file of items, or a folder of them.
        core: fewest events of a user and of an item.
        user: column of events: the user.
        item: column of events: the item.
        time: column of events: the time.
        columns: columns of the items.
        source: one of `mmspec.recsys.preparation.items.SOURCES`; by default "codes", "embedding" or "text", the first whose column is
            there.
        ids: how semantic ids are learnt. Of ready codes only `size` is read.
        most: items of a history that a model is shown.
    """

    interactions: Path
    items: Path
    core: int = 5
    user: str = "user"
    item: str = "item"
    time: str = "time"
    columns: ItemColumns = field(default_factory=ItemColumns)
    source: str | None = None
    ids: QuantiserSettings = field(default_factory=QuantiserSettings)
    most: int = 20


@dataclass(frozen=True, eq=False)
class PreparedShop:
    """A folder that `prepare_shop` wrote.

    Args:
        folder: the folder.
        catalogue: items and their paths.
        histories: all events of each user, oldest first.
        summary: counts and settings.
    """

    folder: Path
    catalogue: Catalogue
    histories: HistoryRows
    summary: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> "PreparedShop":
        """Read a folder.

        Args:
            folder: what `prepare_shop` wrote.

        Returns:
            Its content.

        Raises:
            ValueError: for a folder that is missing or unfinished.
        """
        summary = read_summary(folder)
        if not summary.get("counts"):
            raise ValueError(f"{folder} is not finished: start the same mmspec recommend prepare again")
        catalogue = read_catalogue(folder)
        return PreparedShop(folder, catalogue, HistoryRows.read(folder / HISTORIES, catalogue), summary)

    @property
    def size(self) -> int:
        """Codes a level."""
        return self.summary["size"]

    def data(self, held: int = 3000, test: int | None = None, seed: int = 0) -> Data:
        """Split by leave-one-out: the last item of each user is for the test, the one before it for validation, all earlier for training.

        Users with fewer than three events are for training alone.

        Args:
            held: users to validate on, drawn with `seed`.
            test: users to test on, drawn with `seed`; all by default.
            seed: seed of the draws and of the order of training.

        Returns:
            The split.

        Raises:
            ValueError: where no user has three events.
        """
        lengths = self.histories.lengths
        long = np.flatnonzero(lengths >= 3)
        if not len(long):
            raise ValueError(f"no user of {self.folder} has three events: one is for the test, one for validation, the rest for training")
        past = self.histories.shortened(training_lengths(lengths))
        before = self.histories.shortened(lengths - 1)
        draw = np.random.default_rng(seed)
        held_users = long[draw.permutation(len(long))[:held]]
        test_users = long if test is None else np.sort(long[draw.permutation(len(long))[:test]])

        @lru_cache(2)
        def order(turn: int) -> np.ndarray:
            return np.random.default_rng((seed, turn)).permutation(len(past))

        def users(first: int, end: int) -> list[list[Any]]:
            """Every pass over the users has an order of its own."""
            places = (divmod(number, len(past)) for number in range(first, end))
            return [past[int(order(turn)[place])] for turn, place in places]

        return Data(self.catalogue, users, past, before.of_users(held_users), self.histories.of_users(test_users))


def read_summary(folder: Path) -> dict[str, Any]:
    """Read `prepared.json` of a folder. ValueError where there is none."""
    try:
        return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {SUMMARY}: make it with mmspec recommend prepare") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / SUMMARY} cannot be read: {str(error).splitlines()[0]}") from None


def prepare_shop(settings: PreparationSettings, folder: Path, done: Any = lambda stage: None) -> PreparedShop:
    """Write a folder from two tables. Of a run that was killed the finished parts are kept.

    Args:
        settings: what and how.
        folder: a new folder, or that of the same settings and tables.
        done: called with the name of each stage that begins.

    Returns:
        The folder's content.

    Raises:
        ValueError: for tables and settings that cannot be used, and for a folder of another preparation.
    """
    done("reading")
    asked = _told(settings)
    _check_folder(folder, asked)
    events = read_interactions(settings.interactions, settings.user, settings.item, settings.time)
    items = read_items(settings.items, settings.columns, settings.source)
    known = _known(events, items, settings)
    events = known.core(settings.core)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SUMMARY).exists():
        write_json(folder / SUMMARY, {"settings": asked})
    elif read_summary(folder).get("counts"):
        return PreparedShop.read(folder)
    done(f"semantic ids of {len(items):,} items")
    if items.source.endswith(EVENTS):
        items = replace(items, near=_near(events, items, settings.ids))
    codes = _codes(items, settings, folder)
    size = settings.ids.size if items.codes is None else max(int(codes.max()) + 1, settings.ids.size)
    catalogue = Catalogue.of_codes(items.items, codes, size, OFFSET, before=(1,), most=settings.most, names=items.names)
    catalogue.write(folder / CATALOGUE)
    done(f"histories of {len(events.users):,} users")
    histories = HistoryRows.of(events, catalogue)
    histories.write(folder / HISTORIES)
    counts = {"users": len(events.users), "events": len(events), "items": len(items), "items with events": len(events.items)}
    if items.near is not None:
        counts["items beside no other"] = int((~items.near.any(1)).sum())
    told = {"settings": asked, "size": size, "source": items.source, "counts": counts}
    told |= {"left out": {reason: count.events for reason, count in events.left_out.items()}}
    told |= {"left out in full": {reason: asdict(count) for reason, count in events.left_out.items()}}
    write_json(folder / SUMMARY, told | {"ids": asdict(collisions(codes))})
    return PreparedShop.read(folder)


def _known(events: Interactions, items: ItemTable, settings: PreparationSettings) -> Interactions:
    """Events with items of the table."""
    there = set(items.items)
    listed = np.array([item in there for item in events.items.to_pylist()])
    if not listed.any():
        shown = f"{events.items[0].as_py()!r} and {items.items[0]!r}"
        raise ValueError(f"no item of {settings.interactions} is in {settings.items}, such as {shown}: their ids must have the same type")
    return events.only(listed[events.item], "with an item that the items lack", f"add it to {settings.items}")


def _near(events: Interactions, items: ItemTable, settings: QuantiserSettings) -> Tensor:
    """Embeddings of the items from training events alone."""
    place = {item: row for row, item in enumerate(items.items)}
    row = np.array([place[item] for item in events.items.to_pylist()])
    starts = events.starts()
    lengths = training_lengths(np.diff(starts))
    order = np.arange(len(events)) - np.repeat(starts[:-1], np.diff(starts))
    past = order < np.repeat(lengths, np.diff(starts))
    return event_embeddings(row[events.item[past]], lengths, len(items), width=settings.event_width, seed=settings.seed)


def _codes(items: ItemTable, settings: PreparationSettings, folder: Path) -> Tensor:
    """Semantic ids; a quantiser that was fitted before a kill is used again."""
    if items.codes is not None:
        return items.codes
    path = folder / QUANTISER
    if not path.exists():
        ItemQuantiser.fit(items, settings.ids).save(path)
    return ItemQuantiser.load(path).codes(items)  # always the one on disk, so that a kill changes nothing


def _told(settings: PreparationSettings) -> dict[str, Any]:
    """Settings for the summary: tables by name and content."""
    told = json.loads(json.dumps(asdict(settings), default=lambda path: Path(path).name))
    return told | {"content": [_content(settings.interactions), _content(settings.items)]}


def _content(path: Path) -> str:
    """SHA-256 of a file, or of the files of a folder."""
    found = hashlib.sha256()
    for file in parquet_files(path):
        try:
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
        except FileNotFoundError:
            raise ValueError(f"{file} does not exist: give a Parquet file, or a folder of them") from None
    return found.hexdigest()


def _check_folder(folder: Path, asked: dict[str, Any]) -> None:
    """ValueError for a folder with something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / SUMMARY).exists():
        raise ValueError(f"{folder} exists and was not made by prepare: give a new folder")
    there = read_summary(folder).get("settings", {})
    for name, value in asked.items():
        if there.get(name) != value:
            what = "other tables" if name == "content" else f"{name} {there.get(name)}, not {value}"
            raise ValueError(f"{folder} was prepared with {what}: give a new folder")
