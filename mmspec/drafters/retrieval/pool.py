"""The tries of one keyed pool, and their form on disk. See `mmspec.drafters.retrieval.pools`."""

from collections.abc import Sequence

import numpy as np

from mmspec.drafters.retrieval.datastore import Counts


class Pool:
    """One group's answers: for each token a trie of its continuations, stored as paths with counts.

    Every prefix of a path is stored too, with at least the path's count.
    """

    def __init__(self, branch: int, limit: int):
        self.branch, self.limit = branch, limit
        self.tries: dict[int, Counts] = {}

    def add(self, text: Sequence[int]) -> None:
        """Count the branch of up to `branch` tokens after every token of `text`."""
        for place, token in enumerate(text[:-1], start=1):
            self._insert(token, tuple(text[place : place + self.branch]))

    def after(self, context: Sequence[int], depth: int) -> Counts:
        """Return paths of up to `depth` tokens that followed `context`, with their counts."""
        rest = tuple(context[1:])
        size = len(rest)
        trie = self.tries.get(context[0], {})
        return {path[size:]: times for path, times in trie.items() if size < len(path) <= size + depth and path[:size] == rest}

    def _insert(self, token: int, branch: tuple[int, ...]) -> None:
        paths = [branch[:end] for end in range(1, len(branch) + 1)]
        trie = self.tries.get(token, {})
        while len(trie) + sum(path not in trie for path in paths) > self.limit:  # evict first, so that the newest branch stays
            trie = {path: times // 2 for path, times in trie.items() if times > 1}
        for path in paths:
            trie[path] = trie.get(path, 0) + 1
        self.tries[token] = trie


def pool_table(pool: Pool) -> np.ndarray:
    """Return the nodes of a pool as an array [n, 3] int64 of token, depth and count, trie after trie.

    Depth 0 is the token that a trie belongs to.
    """
    rows = []
    for token, trie in pool.tries.items():
        rows.append((token, 0, 0))
        rows += [(path[-1], len(path), trie[path]) for path in sorted(trie)]
    return np.array(rows, np.int64).reshape(-1, 3)


def pool_from_table(rows: list[list[int]], branch: int, limit: int) -> Pool:
    """Return the pool that `pool_table` wrote. ValueError for a node without a parent or with an impossible count."""
    pool, path, trie = Pool(branch, limit), (), None
    for token, depth, times in rows:
        if token < 0:
            raise ValueError(f"a node holds the token {token}")
        if depth == 0:
            path, trie = (), pool.tries.setdefault(token, {})
            continue
        if trie is None or not 0 < depth <= min(len(path) + 1, branch):
            raise ValueError(f"a node at depth {depth} has no parent")
        path = (*path[: depth - 1], token)
        if path in trie or not 0 < times <= trie.get(path[:-1], times) or len(trie) == limit:
            raise ValueError(f"a node is counted {times} times, or a trie is too large")
        trie[path] = times
    return pool
