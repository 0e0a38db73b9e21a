"""Checks of the fields of a catalogue."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from torch import Tensor

from mmspec.recsys.storage.column import Column


def check_fields(
    items: Sequence[Hashable], paths: Tensor, names: Sequence[str] | None, most: int, affixes: Mapping[str, Sequence[int]]
) -> None:
    """Raise ValueError for fields that do not fit.

    Args:
        items: the items.
        paths: LongTensor [items, L].
        names: names of the items, or None.
        most: largest number of items of a history.
        affixes: token ids before and after a history, by the name of the field.
    """
    if paths.dim() != 2 or not paths.numel():
        raise ValueError(f"paths have shape {tuple(paths.shape)}: give one path of at least one token for every item")
    if len(items) != len(paths):
        raise ValueError(f"{len(items)} items and {len(paths)} paths: give one path an item")
    if not isinstance(items, Column) and len(set(items)) != len(items):
        twice = next(item for item, times in Counter(items).items() if times > 1)
        raise ValueError(f"item {twice!r} is in the catalogue twice: give every item one path")
    if paths.is_floating_point() or int(paths.min()) < 0:
        raise ValueError("paths hold numbers that are no token ids: give whole numbers from 0")
    if names is not None and len(names) != len(items):
        raise ValueError(f"{len(names)} names and {len(items)} items: give one name an item, or none at all")
    if not isinstance(most, int) or most < 1:
        raise ValueError(f"most is {most!r}: a history must show at least one item")
    for name, tokens in affixes.items():
        if not all(isinstance(token, int) and token >= 0 for token in tokens):
            raise ValueError(f"{name} is {tokens!r}: give token ids, whole numbers from 0")
