"""A catalogue: items, the semantic-id path of each, and the prompt that a history becomes.

Paths have equal lengths and consist of the model's token ids. Several items may share a path: the path is then recommended once and yields
its items in the catalogue's order.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.recsys.storage.checks import check_fields
from mmspec.recsys.storage.column import Column, typed
from mmspec.recsys.storage.index import CatalogueIndex
from mmspec.recsys.storage.lookups import CatalogueLookups
from mmspec.recsys.storage.mapped import SUFFIX, read_mapped, write_mapped
from mmspec.recsys.storage.table import column_of, read_table, write_table
from mmspec.run.arguments import public_call
from mmspec.utils.names import wrong
from mmspec.utils.strict import fits, strict

Item = Hashable
SHOWN = "shown"
"""Under this name a prompt tells drafters that count items which ones it shows, as `Catalogue.shown` gives them."""


@strict
@dataclass(frozen=True, eq=False)
class Catalogue(CatalogueLookups):
    """Items and their semantic-id paths.

    A history is written as `before`, the paths of its newest `most` items, oldest first, and `after`.

    Args:
        items: the items, whole numbers or texts.
        paths: [items, L] token ids of each item's path.
        before: token ids before a history.
        after: token ids after a history.
        most: largest number of items of a history.
        names: names of the items for display, or None.
        index: tables over the paths, as a mapped file has them; made when they are needed by default. Then nothing is checked.

    Raises:
        ValueError: for paths, items or names that do not fit.
    """

    items: Sequence[Item]
    paths: Tensor  # [items, L]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    most: int = 20
    names: Sequence[str] | None = None
    index: CatalogueIndex | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.index is None:
            check_fields(self.items, self.paths, self.names, self.most, {"before": self.before, "after": self.after})

    @staticmethod
    @public_call
    def of(paths: Mapping[Item, Sequence[int]], **options: Any) -> "Catalogue":
        """Make a catalogue from the path of every item.

        Args:
            paths: token ids by item.
            options: the fields of `Catalogue` after `paths`.

        Returns:
            The catalogue.

        Raises:
            ValueError: if the paths differ in length.
        """
        if wrongs := [path for path in paths.values() if not fits(path, Sequence[int])]:
            raise wrong("paths", wrongs[0], "give a list of token ids for each item")
        lengths = {len(path) for path in paths.values()}
        if len(lengths) > 1:
            raise ValueError(f"paths have lengths {', '.join(map(str, sorted(lengths)))}: all must be equally long")
        return Catalogue(tuple(paths), torch.tensor([list(path) for path in paths.values()]), **options)

    @staticmethod
    @public_call
    def of_codes(items: Sequence[Item], codes: Tensor, size: int | None = None, offset: int = 0, **options: Any) -> "Catalogue":
        """Make a catalogue from quantiser codes.

        Args:
            items: the items.
            codes: LongTensor [items, L]; code c of level l is token `offset` + l * `size` + c.
            size: entries of a codebook; the largest code plus 1 by default.
            offset: token id of code 0 of level 0.
            options: the fields of `Catalogue` after `paths`.

        Returns:
            The catalogue.

        Raises:
            ValueError: for codes out of range.
        """
        for name, value, least in (("size", size, 1), ("offset", offset, 0)):
            if value is not None and not least <= value < 2**31:
                raise wrong(name, value, f"give {least} to {2**31 - 1}")
        if codes.dim() != 2 or not codes.numel() or codes.is_floating_point():
            raise ValueError(f"codes have shape {list(codes.shape)} of {codes.dtype}: give whole numbers [items, levels]")
        size = int(codes.max()) + 1 if size is None else size
        if int(codes.min()) < 0 or int(codes.max()) >= size:
            raise ValueError(f"codes run from {int(codes.min())} to {int(codes.max())}: they must be in 0..{size - 1}")
        tokens = codes.long() + offset + size * torch.arange(codes.shape[1])
        return Catalogue(tuple(items), tokens, **options)

    @public_call
    def mask(self, items: Sequence[Item]) -> Tensor:
        """Mark items. `ValueError` names an unknown item.

        Args:
            items: the items to mark.

        Returns:
            Bool [len(self)], True for `items`: the argument `allowed` of `recommend`.
        """
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[[self.row(item) for item in items]] = True
        return mask

    @public_call
    def only(self, mask: Tensor) -> Tensor:
        """Find the paths of marked items.

        Args:
            mask: bool [items] or [B, items].

        Returns:
            Bool [P] or [B, P], True for distinct paths with a marked item.
        """
        counts = torch.zeros(*mask.shape[:-1], self.trie.size, dtype=torch.long)
        return counts.index_add_(-1, self.leaf, mask.long().cpu()) > 0

    @public_call
    def tokens(self, history: Sequence[Item]) -> list[int]:
        """Encode one history as a prompt.

        Args:
            history: the user's items, oldest first.

        Returns:
            Token ids: `before`, the paths of the newest `most` items, `after`.

        Raises:
            ValueError: for an empty history or an unknown item.
        """
        if isinstance(history, str | bytes) or not hasattr(history, "__len__"):
            raise ValueError(f"history is {history!r:.60}: give a list of items, oldest first")
        if not len(history):
            raise ValueError("history is empty: a user needs at least one item")
        rows = [self.row(item) for item in history]
        return [*self.before, *self.paths[rows[-self.most :]].flatten().tolist(), *self.after]

    @public_call
    def inputs(self, histories: Sequence[Sequence[Item]], device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Encode histories as prompts.

        Args:
            histories: the items of each user, oldest first.
            device: device of the result.

        Returns:
            `input_ids` and `attention_mask`, LongTensor [B, P], padded on the left.

        Raises:
            ValueError: naming the first invalid history.
        """
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

    @public_call
    def shown(self, histories: Sequence[Sequence[Item]], device: torch.device | str = "cpu") -> Tensor:
        """Return the items that `inputs` encodes, as numbers of distinct paths.

        Args:
            histories: the items of each user, oldest first.
            device: device of the result.

        Returns:
            LongTensor [B, H], newest last, -1 before the first.
        """
        rows = [[self.row(item) for item in history[-self.most :]] for history in histories]
        width = max(map(len, rows))
        table = torch.tensor([[-1] * (width - len(row)) + row for row in rows])
        return torch.where(table >= 0, self.leaf[table].long(), -1).to(device)

    def name(self, item: Item) -> str:
        """Look up the display name of an item.

        Args:
            item: the item.

        Returns:
            Its name; the item as text if the catalogue has no names.
        """
        return str(item) if self.names is None else self.names[self.row(item)]

    @public_call
    def write(self, path: str | Path, source: str | None = None) -> None:
        """Write a file, atomically.

        A Parquet file has columns `item`, `path` and, where given, `name`; the other fields are in its metadata. A file called
        *.safetensors holds the trie too, and `read` maps it: processes share its memory. Its items are all whole numbers or all texts.

        Args:
            path: the file.
            source: SHA-256 of the Parquet file that this catalogue was read from, kept in a mapped file.

        Raises:
            ValueError: if the file cannot be written.
        """
        settings = {"before": self.before, "after": self.after, "most": self.most}
        if Path(path).suffix != SUFFIX:
            return write_table(path, self.items, self.paths, self.names, settings)
        items = self.items if isinstance(self.items, Column) else Column.of(column_of(self.items))
        names = None if self.names is None else self.names if isinstance(self.names, Column) else Column(typed(column_of(self.names)))
        return write_mapped(path, items, self.paths, names, self.tables, settings | {"digest": self.digest, "source": source})

    @staticmethod
    @public_call
    def read(path: str | Path) -> "Catalogue":
        """Read a file that `write` left, or a Parquet file with columns `item` and `path`.

        Args:
            path: the file. A table without metadata has the other fields' defaults. *.safetensors is mapped, not read.

        Returns:
            The catalogue.

        Raises:
            ValueError: if the file cannot be read.
        """
        if Path(path).suffix == SUFFIX:
            found = read_mapped(path)
            told = found.settings
            fields = (found.items, found.paths, tuple(told["before"]), tuple(told["after"]), told["most"], found.names, found.index)
            catalogue = Catalogue(*fields)
            vars(catalogue)["digest"] = told["digest"]  # of the same fields, computed when the file was written
            return catalogue
        table = read_table(path)
        try:
            before, after = (tuple(table.settings.get(name, ())) for name in ("before", "after"))
            return Catalogue(table.items, table.paths, before, after, table.settings.get("most", 20), table.names)
        except (TypeError, ValueError) as error:
            raise ValueError(f"catalogue {path}: {error}") from None
