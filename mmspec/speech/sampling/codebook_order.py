"""Codebooks flattened into one stream (Bark's coarse stage, Orpheus): which book's codes may stand at which output position."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from mmspec.core.processors.history import History, Pathless, ban


@dataclass(frozen=True)
class InterleavedCodebooks(Pathless):
    """At output position i allow the ids of book (i + `first`) mod K only: K half-open `ranges` of ids, one a book.

    `ends` are also allowed where a frame begins, so that none is left half done; before the books in `ends_before`, if those are
    given. Bark's coarse stage has 2 books, Orpheus 7 places a frame. `first` is the book of the first output, where a prompt ends
    within a frame.
    """

    ranges: tuple[tuple[int, int], ...]
    ends: tuple[int, ...] = ()
    ends_before: tuple[int, ...] = (0,)
    first: int = 0

    def __post_init__(self):
        if not self.ranges or not all(0 <= start < stop for start, stop in self.ranges):
            raise ValueError(
                f"ranges is {self.ranges}: give each book's first id and the id behind its last, such as ((0, 1024), (1024, 2048))"
            )
        if not all(0 <= book < len(self.ranges) for book in (*self.ends_before, self.first)):
            raise ValueError(f"ends_before and first are {self.ends_before}, {self.first}: books are numbered 0 to {len(self.ranges) - 1}")

    @staticmethod
    def of_sizes(start: int, sizes: Sequence[int], ends: Sequence[int] = ()) -> "InterleavedCodebooks":
        """Books of `sizes` ids that stand one behind the other from id `start` on."""
        edges = [start + sum(sizes[:book]) for book in range(len(sizes) + 1)]
        return InterleavedCodebooks(tuple(pairwise(edges)), tuple(ends))

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        banned = _banned(self, scores.shape[-1], scores.device)
        return ban(scores, banned[(history.position + self.first) % len(self.ranges)])


@lru_cache(maxsize=64)
def _banned(books: InterleavedCodebooks, size: int, device: torch.device) -> Tensor:
    """[K, V] bool: the ids that may not stand at each book's positions."""
    if max(stop for _, stop in books.ranges) > size:
        raise ValueError(
            f"a book ends at id {max(stop for _, stop in books.ranges)}, but the distributions have {size} values: check the ranges"
        )
    banned = torch.ones(len(books.ranges), size, dtype=torch.bool)
    for book, (start, stop) in enumerate(books.ranges):
        banned[book, start:stop] = False
        if book in books.ends_before:
            banned[book, [end for end in books.ends if end < size]] = False
    return banned.to(device)
