"""Which examples are held out of a training, chosen by what they are: an example that occurs twice is never on both sides."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class HeldOut:
    """A set of examples in two parts. Made by `hold_out` and `apart`; `mmspec.train.fit` asks for it where it validates.

    Args:
        train: numbers of the examples to train on.
        held: numbers of those that are kept from training; of another list where they came in one of their own.
        keys: what the held ones are told by.
    """

    train: tuple[int, ...]
    held: tuple[int, ...]
    keys: frozenset[Hashable] = field(repr=False)

    @property
    def order(self) -> list[int]:
        """All numbers, those held out first: examples from number `len(held)` on are trained on then."""
        return [*self.held, *self.train]

    def outside(self, keys: Sequence[Hashable]) -> list[int]:
        """Return which of further examples, by number, are not held out, and so may be trained on."""
        return [number for number, key in enumerate(keys) if key not in self.keys]


def hold_out(keys: Sequence[Hashable], count: int, what: str) -> HeldOut:
    """Hold the first examples out, and with each of them all others that are the same.

    Args:
        keys: what each example is told by, such as its prompt.
        count: how many to hold out; at most half of them all. More where the same ones come often.
        what: what they are in a message, such as "prompts".

    Raises:
        ValueError: if all examples are the same one.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    if len(groups) < 2:
        raise ValueError(f"{len(keys)} {what}, {len(groups)} of them different: some are held out, so give two different ones at least")
    held: list[int] = []
    for group in list(groups.values())[:-1]:
        if len(held) >= max(1, min(count, len(keys) // 2)):
            break
        held += group
    names = frozenset(keys[number] for number in held)
    return HeldOut(tuple(number for number, key in enumerate(keys) if key not in names), tuple(held), names)


def apart(train: Sequence[Hashable], held: Sequence[Hashable], what: str) -> HeldOut:
    """Leave those examples out of a held-out set that are in the training set, too.

    Args:
        train: what each training example is told by; empty where training examples are made without end, see `HeldOut.outside`.
        held: the same of the held-out ones.
        what: what they are in a message, such as "pictures".

    Raises:
        ValueError: if nothing is left of the held-out set.
    """
    known = frozenset(train)
    kept = tuple(number for number, key in enumerate(held) if key not in known)
    if not kept:
        raise ValueError(f"{len(train)} {what} to train on and {len(held)} held out, all of them also trained on: give more different ones")
    return HeldOut(tuple(range(len(train))), kept, frozenset(held[number] for number in kept))


def array_keys(rows: Any) -> list[bytes]:
    """Return a key for each of some arrays, or tensors on the CPU: equal ones have equal keys."""
    return [sha256(f"{tuple(row.shape)}".encode() + np.ascontiguousarray(row).tobytes()).digest() for row in rows]


def file_keys(paths: Sequence[Path]) -> list[Hashable]:
    """Return a key for each file: files with the same bytes have equal keys. Only files of one size are read."""
    sizes = [path.stat().st_size for path in paths]
    often = {size for size, times in Counter(sizes).items() if times > 1}
    return [sha256(path.read_bytes()).digest() if size in often else size for path, size in zip(paths, sizes, strict=True)]
