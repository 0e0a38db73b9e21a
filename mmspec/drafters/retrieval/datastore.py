"""REST, retrieval-based speculative decoding (He et al. 2023): a suffix array on disk, and trees of the continuations found in it."""

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, unread_by
from mmspec.utils.private_copy import private_copy

Counts = dict[tuple[int, ...], float]
"""A trie as its paths, each with how often it occurs: a path's beginnings are there too, and occur at least as often."""
_END = -1  # behind every text; no token has this id
_SORTED = 64  # suffixes are sorted by this many tokens; contexts are never longer


@dataclass(frozen=True, eq=False)
class Datastore:
    """Texts and their suffix array, memory-mapped from one file that processes can share."""

    tokens: np.ndarray  # [n] int32, _END behind every text
    suffixes: np.ndarray  # [n] int32, where each suffix starts, in order

    @staticmethod
    def build(texts: Iterable[Sequence[int]], path: str | Path) -> "Datastore":
        """Sort `texts`, sequences of token ids, write them to `path` atomically and open the file.

        Raises:
            ValueError: for no texts, ids below 0, or more than 2**31 tokens.
        """
        pieces = [np.append(np.asarray(text, dtype=np.int64), _END) for text in texts]
        if not pieces:
            raise ValueError("there are no texts: give at least one sequence of token ids")
        tokens = np.concatenate(pieces)
        for piece in pieces:
            if (piece[:-1] < 0).any():
                raise ValueError(f"a text holds the id {piece[:-1].min()}: token ids must be 0 or more")
        if max(len(tokens), tokens.max()) >= 2**31:
            raise ValueError(
                f"the texts hold {len(tokens)} tokens with ids up to {tokens.max()}: both must stay below 2**31, so build several"
            )
        path, part = Path(path), Path(f"{path}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                np.save(file, np.stack([tokens, suffix_array(tokens)]).astype(np.int32))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return Datastore.open(path)

    @staticmethod
    def open(path: str | Path) -> "Datastore":
        """Map a copy of a file that `build` wrote, which nobody else writes; see `private_copy`. ValueError for any other file."""
        copy = private_copy(path)
        table = np.load(path) if copy is None else np.load(copy, mmap_mode="r")
        if table.ndim != 2 or len(table) != 2 or table.dtype != np.int32:
            raise ValueError(f"{path} holds {table.dtype} of shape {table.shape}, which is no datastore: write it with Datastore.build")
        return Datastore(*np.asarray(table))

    def find(self, context: list[int]) -> range:
        """Return the entries of the suffix array that begin with `context`."""

        def head(start: int) -> list[int]:
            return self.tokens[start : start + len(context)].tolist()

        first = bisect_left(self.suffixes, context, key=head)
        return range(first, bisect_right(self.suffixes, context, first, key=head))

    def find_longest(self, text: list[int], longest: int, shortest: int) -> tuple[int, range]:
        """Return the length of the longest suffix of `text` that occurs and its entries, by bisection."""
        low, high, found = shortest - 1, min(longest, len(text)), range(0)
        while low < high:
            size = (low + high + 1) // 2
            entries = self.find(text[-size:])
            low, high, found = (size, high, entries) if entries else (low, size - 1, found)
        return low, found


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """Return the starts of the suffixes sorted by their first `_SORTED` tokens, by prefix doubling (Manber and Myers 1993)."""
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(rank, kind="stable")
    step = 1
    while step < _SORTED and len(tokens) > 1:
        behind = np.zeros_like(rank)  # rank of what stands `step` tokens on; 0 past the end
        behind[:-step] = rank[step:] + 1
        key = rank * (len(tokens) + 1) + behind
        order = np.argsort(key, kind="stable")
        rank[order] = np.concatenate([[0], np.cumsum(np.diff(key[order]) != 0)])
        if rank[order[-1]] == len(tokens) - 1:  # all apart
            break
        step *= 2
    return order


@dataclass(frozen=True)
class Retrieval:
    """Drafts the most frequent continuations of the text's longest suffix in a datastore, as a tree (REST, He et al. 2023).

    Args:
        datastore: the texts and their suffix array.
        nodes: draft tokens of a tree.
        longest: longest suffix looked up, in tokens.
        shortest: shortest suffix looked up.
        hits: largest number of occurrences read, spread evenly over the sorted ones.

    Raises:
        ValueError: for sizes out of range.
    """

    datastore: Datastore
    nodes: int = 16
    longest: int = 16
    shortest: int = 2
    hits: int = 256

    def __post_init__(self):
        if min(self.nodes, self.hits) < 1:
            raise ValueError(f"nodes and hits are {self.nodes} and {self.hits}: each must be at least 1")
        if not 1 <= self.shortest <= self.longest <= _SORTED:
            raise ValueError(f"shortest is {self.shortest} and longest {self.longest}: give 1 <= shortest <= longest <= {_SORTED}")

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        return HostSession(prompt, lambda row, text: RetrievalRow(self, text), lambda length: self.nodes, self.nodes, unread_by(session))


class RetrievalRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: Retrieval, text: list[int]):
        self.plan, self.recent = plan, deque(text, plan.longest)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        self.recent.extend(tokens)

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        store = self.plan.datastore
        size, found = store.find_longest([*self.recent, *behind], self.plan.longest, self.plan.shortest)
        stride = max(1, -(-len(found) // self.plan.hits))
        starts = (int(store.suffixes[entry]) + size for entry in found[::stride])
        return trie((store.tokens[start : start + limit].tolist() for start in starts), self.plan.nodes)


def trie(continuations: Iterable[list[int]], nodes: int) -> DraftTokens:
    """Return the `nodes` most frequent beginnings of `continuations` as a tree."""
    return ravel(count(continuations), nodes)


def count(continuations: Iterable[Sequence[int]]) -> Counts:
    """Return how often each beginning of `continuations` occurs among them, up to an `_END`."""
    counts: Counts = {}
    for tokens in continuations:
        for end in range(1, (tokens.index(_END) if _END in tokens else len(tokens)) + 1):
            path = tuple(tokens[:end])
            counts[path] = counts.get(path, 0) + 1
    return counts


def ravel(counts: Counts, nodes: int) -> DraftTokens:
    """Return the `nodes` most frequent paths as a tree, shorter ones first among equals, so parents come before children."""
    kept = sorted(counts, key=lambda path: (-counts[path], len(path)))[:nodes]
    place = {path: index for index, path in enumerate(kept)}
    return [path[-1] for path in kept], [place.get(path[:-1], -1) for path in kept]
