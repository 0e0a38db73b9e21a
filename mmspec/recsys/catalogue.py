"""A catalogue: items, the semantic-id path of each, and how histories are written for a model.

Paths have equal lengths and consist of the model's token ids. Several items may share a path: the path is then recommended once and yields
its items in the catalogue's order.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.trie import Trie

Item = Hashable
SHOWN = "shown"
"""Under this name a prompt tells drafters that count items which ones it shows, as `Catalogue.shown` gives them."""
_KEY = b"mmspec.catalogue"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Items and their semantic-id paths.

    A history is written as `before`, the paths of its newest `most` items, oldest first, and `after`.

    Args:
        items: the items, whole numbers or texts.
        paths: [items, L] token ids of each item's path.
        before: token ids before a history.
        after: token ids after a history.
        most: largest number of items of a history.
        names: names of the items for display, or None.

    Raises:
        ValueError: for paths, items or names that do not fit.
    """

    items: tuple[Item, ...]
    paths: Tensor  # [items, L]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    most: int = 20
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.paths.dim() != 2 or not self.paths.numel():
            raise ValueError(f"paths have shape {tuple(self.paths.shape)}: give one path of at least one token for every item")
        if len(self.items) != len(self.paths):
            raise ValueError(f"{len(self.items)} items and {len(self.paths)} paths: give one path an item")
        if len(self._rows) != len(self.items):
            seen: set[Item] = set()
            twice = next(item for item in self.items if item in seen or seen.add(item))
            raise ValueError(f"item {twice!r} is in the catalogue twice: give every item one path")
        if self.paths.is_floating_point() or int(self.paths.min()) < 0:
            raise ValueError("paths hold numbers that are no token ids: give whole numbers from 0")
        if self.names is not None and len(self.names) != len(self.items):
            raise ValueError(f"{len(self.names)} names and {len(self.items)} items: give one name an item, or none at all")
        if not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"most is {self.most!r}: a history must show at least one item")
        for name, tokens in (("before", self.before), ("after", self.after)):
            if not all(isinstance(token, int) and token >= 0 for token in tokens):
                raise ValueError(f"{name} is {tokens!r}: give token ids, whole numbers from 0")

    @staticmethod
    def of(paths: Mapping[Item, Sequence[int]], **options: Any) -> "Catalogue":
        """Return a catalogue from every item's path in token ids. ValueError for different lengths. `options` are the fields after
        `paths`.
        """
        lengths = {len(path) for path in paths.values()}
        if len(lengths) > 1:
            raise ValueError(f"paths have lengths {', '.join(map(str, sorted(lengths)))}: all must be equally long")
        return Catalogue(tuple(paths), torch.tensor([list(path) for path in paths.values()]), **options)

    @staticmethod
    def of_codes(items: Sequence[Item], codes: Tensor, size: int | None = None, offset: int = 0, **options: Any) -> "Catalogue":
        """Return a catalogue from quantiser codes.

        Args:
            items: the items.
            codes: [items, L] codes; code c of level l is token `offset` + l * `size` + c.
            size: entries of a codebook; the largest code plus 1 by default.
            offset: token id of code 0 of level 0.
            options: the fields of `Catalogue` after `paths`.

        Raises:
            ValueError: for codes out of range.
        """
        size = int(codes.max()) + 1 if size is None else size
        if int(codes.min()) < 0 or int(codes.max()) >= size:
            raise ValueError(f"codes run from {int(codes.min())} to {int(codes.max())}: they must be in 0..{size - 1}")
        tokens = codes.long() + offset + size * torch.arange(codes.shape[1])
        return Catalogue(tuple(items), tokens, **options)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: object) -> bool:
        return item in self._rows

    @property
    def levels(self) -> int:
        """Tokens of a path."""
        return self.paths.shape[1]

    @cached_property
    def _rows(self) -> dict[Item, int]:
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """Distinct paths [P, L] in order, and each item's [items]."""
        return torch.unique(self.paths.cpu(), dim=0, return_inverse=True)  # pyright: ignore[reportReturnType]

    @property
    def distinct(self) -> Tensor:
        """Distinct paths in order [P, L], on the CPU; the trie is made of them."""
        return self._sorted[0]

    @cached_property
    def trie(self) -> Trie:
        """Trie of the distinct paths, on the CPU."""
        return Trie.of(self.distinct)

    @cached_property
    def leaf(self) -> Tensor:
        """Number of each item's path among the distinct ones, [items]."""
        return self._sorted[1]

    @cached_property
    def _shelves(self) -> tuple[tuple[int, ...], ...]:
        """Per distinct path, the rows of its items."""
        shelves: list[list[int]] = [[] for _ in range(len(self.distinct))]
        for row, leaf in enumerate(self.leaf.tolist()):
            shelves[leaf].append(row)
        return tuple(map(tuple, shelves))

    def row(self, item: Item) -> int:
        """Return an item's row. ValueError for an unknown item."""
        try:
            return self._rows[item]
        except (KeyError, TypeError):
            raise ValueError(f"item {item!r} is not in the catalogue of {len(self)} items") from None

    def shelf(self, leaf: int) -> tuple[int, ...]:
        """Return the rows of the items on distinct path `leaf`, in the catalogue's order."""
        return self._shelves[leaf]

    def mask(self, items: Sequence[Item]) -> Tensor:
        """Return [len(self)] bool, True for `items`: the argument `allowed` of `recommend`. ValueError for an unknown item."""
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[[self.row(item) for item in items]] = True
        return mask

    def only(self, mask: Tensor) -> Tensor:
        """Return the distinct paths with an item of `mask` ([items] or [B, items] bool), [P] or [B, P] bool."""
        counts = torch.zeros(*mask.shape[:-1], len(self.distinct), dtype=torch.long)
        return counts.index_add_(-1, self.leaf, mask.long().cpu()) > 0

    def tokens(self, history: Sequence[Item]) -> list[int]:
        """Return a history as the model reads it. ValueError for an empty one, or an unknown item."""
        if isinstance(history, str | bytes) or not hasattr(history, "__len__"):
            raise ValueError(f"history is {history!r:.60}: give a list of items, oldest first")
        if not len(history):
            raise ValueError("history is empty: a user needs at least one item")
        rows = [self.row(item) for item in history]
        return [*self.before, *self.paths[rows[-self.most :]].flatten().tolist(), *self.after]

    def inputs(self, histories: Sequence[Sequence[Item]], device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return histories as `input_ids` and `attention_mask` [B, P], padded on the left. ValueError names an invalid history."""
        if isinstance(histories, str | bytes) or not hasattr(histories, "__len__"):
            raise ValueError(f"histories is {histories!r:.60}: give a list with the items of each user")
        if not len(histories):
            raise ValueError("there are no histories: give at least one")
        lines = []
        for number, history in enumerate(histories):
            try:
                lines.append(self.tokens(history))
            except ValueError as error:
                raise ValueError(f"history {number}: {error}") from None
        width = max(map(len, lines))
        ids = torch.tensor([[0] * (width - len(line)) + line for line in lines])
        mask = torch.tensor([[0] * (width - len(line)) + [1] * len(line) for line in lines])
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    def shown(self, histories: Sequence[Sequence[Item]], device: torch.device | str = "cpu") -> Tensor:
        """Return the items that `inputs` shows, as numbers of distinct paths [B, H], newest last, -1 before the first."""
        rows = [[self.row(item) for item in history[-self.most :]] for history in histories]
        width = max(map(len, rows))
        table = torch.tensor([[-1] * (width - len(row)) + row for row in rows])
        return torch.where(table >= 0, self.leaf[table], -1).to(device)

    def name(self, item: Item) -> str:
        """Return the display name of an item."""
        return str(item) if self.names is None else self.names[self.row(item)]

    def write(self, path: str | Path) -> None:
        """Write a Parquet file with columns `item`, `path` and, where given, `name`; the other fields are in its metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from mmspec.utils.files import whole

        columns: dict[str, Any] = {"item": list(self.items), "path": pa.array(self.paths.tolist(), pa.list_(pa.int32()))}
        if self.names is not None:
            columns["name"] = list(self.names)
        told = {"before": self.before, "after": self.after, "most": self.most}
        table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(told)})
        with whole(path, binary=True) as file:
            pq.write_table(table, file)

    @staticmethod
    def read(path: str | Path) -> "Catalogue":
        """Read a Parquet file with columns `item` and `path`, such as `write` leaves.

        Args:
            path: the file. Without metadata the other fields have their defaults.

        Raises:
            ValueError: if the file cannot be read.
        """
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
            told = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
            if not isinstance(told, dict):
                raise ValueError(f"its metadata is {told!r}: write it with Catalogue.write")
            found = Catalogue.of(dict(zip(table["item"].to_pylist(), table["path"].to_pylist(), strict=True)))
            if len(found) != len(table):
                raise ValueError(f"{len(table) - len(found)} items are in it twice: give every item one path")
            return replace(
                found, before=tuple(told.get("before", ())), after=tuple(told.get("after", ())), most=told.get("most", 20), names=names
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"catalogue {path}: {error}") from None
