"""Keyed pools (LASER, first named DARE, Xi et al. 2025): earlier answers for a group of users or items draft for the next ones.

A pool holds the continuations of every token in the group's answers, as tries of short branches with counts. Pools change only when
`learn` is called, never while text is generated. The row's own prompt and output are counted separately and dropped with the row.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.core.protocols import TargetSession
from mmspec.drafters.retrieval.datastore import Counts, count, ravel
from mmspec.drafters.retrieval.host import DraftTokens, HostSession, unread_by
from mmspec.drafters.retrieval.pool import Pool, pool_from_table, pool_table

Key = str | int
"""Name of a group, such as a genre or the number of a cluster of users."""
_KIND, _VERSION = "mmspec pools", 1
_HITS = 64  # occurrences of a context read in the row's own text, the latest ones


@dataclass(frozen=True, eq=False)
class Pools:
    """One pool of answers for each group, and a shared pool under the key None for groups without one.

    Only `learn` changes pools; it must not run while another thread generates with them. A pool of V different tokens holds at most
    V * `limit` nodes: where a trie would grow larger, its counts are halved and nodes with count 0 are dropped.

        pools = Pools()
        pools.learn("books", answers)                                  # token ids of finished answers about books
        out = mmspec.text.generate(model, inputs, pools.drafter(["books", "films"]))   # one key per row

    Args:
        branch: largest number of tokens of a branch.
        limit: largest number of nodes of a token's trie.

    Raises:
        ValueError: unless 1 <= `branch` <= `limit`.
    """

    branch: int = 12
    limit: int = 512
    groups: dict[Key | None, Pool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        if not 1 <= self.branch <= self.limit:
            raise ValueError(f"branch is {self.branch} and limit {self.limit}: give 1 <= branch <= limit, so that one branch always fits")

    def learn(self, key: Key | None, sequences: Iterable[Sequence[int]]) -> None:
        """Count finished answers in the pool of `key`.

        Args:
            key: name of the group; None for the shared pool.
            sequences: token ids of the answers.

        Raises:
            ValueError: for an invalid key or answer; then nothing is learnt.
        """
        texts = [_tokens(text) for text in sequences]
        if _key(key) not in self.groups and any(texts):  # without answers, the group keeps using the shared pool
            self.groups[_key(key)] = Pool(self.branch, self.limit)
        for text in filter(None, texts):
            self.groups[_key(key)].add(text)

    def drafter(self, keys: Any = None, *, nodes: int = 64, longest: int = 2, own: float = 4.0) -> "PoolDrafter":
        """Make the drafter of one request.

        Args:
            keys: the group of all rows, or a sequence or LongTensor [B] with one group per row.
            nodes: draft tokens of a tree.
            longest: tokens of context that are matched.
            own: weight of an occurrence in the row's own text, relative to one in the pool.

        Returns:
            The drafter.
        """
        keys = keys.tolist() if hasattr(keys, "tolist") else keys
        one = not isinstance(keys, Sequence) or isinstance(keys, str)
        return PoolDrafter(self, _key(keys) if one else tuple(_key(key) for key in keys), nodes, longest, own)

    def of(self, key: Key | None) -> Pool | None:
        """Look up a pool.

        Args:
            key: name of the group.

        Returns:
            The group's pool, else the shared one, else None.
        """
        return self.groups.get(key, self.groups.get(None))

    def save(self, path: str | Path) -> None:
        """Write every pool to one file, atomically.

        Args:
            path: the file (.npz).
        """
        tables = [pool_table(pool) for pool in self.groups.values()]
        sizes = {"keys": list(self.groups), "sizes": [len(table) for table in tables]}
        header = {"kind": _KIND, "version": _VERSION, "branch": self.branch, "limit": self.limit, **sizes}
        nodes = np.concatenate([np.zeros((0, 3), np.int64), *tables])
        part = Path(f"{path}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                np.savez_compressed(file, header=np.array(json.dumps(header)), nodes=nodes)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | Path) -> "Pools":
        """Read the pools that `save` wrote.

        Args:
            path: the file.

        Returns:
            The pools.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is damaged or of another kind.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"pools {path} do not exist: write them with Pools.save")
        try:
            with np.load(path, allow_pickle=False) as file:
                header, nodes = json.loads(str(file["header"])), file["nodes"]
            kind, version = header["kind"], header["version"]
        except (
            OSError,
            ValueError,
            RecursionError,
            LookupError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise ValueError(f"{path} holds no pools or is damaged ({_first_line(error)}): write it again with Pools.save") from None
        if (kind, version) != (_KIND, _VERSION):
            raise ValueError(f"{path} holds {kind!r} version {version!r}, this reads {_KIND!r} version {_VERSION}: learn them anew")
        try:
            pools = Pools(header["branch"], header["limit"])
            if nodes.dtype != np.int64 or nodes.shape != (sum(header["sizes"]), 3):
                raise ValueError(f"its nodes are {nodes.dtype} of shape {nodes.shape}")
            tables = np.split(nodes, np.cumsum(header["sizes"], dtype=np.int64))[:-1]
            for key, table in zip(header["keys"], tables, strict=True):
                pools.groups[_key(key)] = pool_from_table(table.tolist(), pools.branch, pools.limit)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({_first_line(error)}): write it again with Pools.save") from None
        return pools


def from_file(path: str | Path, keys: Any = None, nodes: int = 64, longest: int = 2, own: float = 4.0) -> "PoolDrafter":
    """Return `Pools.load(path).drafter(keys, ...)`; for configs."""
    return Pools.load(path).drafter(keys, nodes=nodes, longest=longest, own=own)


@dataclass(frozen=True, eq=False)
class PoolDrafter:
    """Drafts the most frequent continuations of the text's last tokens, from the row's own text and its group's pool, as a tree (LASER).

    Branches end after the pools' `branch` tokens, matched ones included. Under exact rules the output is the target's.

    Args:
        pools: the pools.
        keys: the group of all rows, or one per row; None for the shared pool.
        nodes: draft tokens of a tree.
        longest: tokens of context that are matched, fewer where the context is unknown.
        own: weight of an occurrence in the row's own text, relative to one in the pool.

    Raises:
        ValueError: for values out of range.
    """

    pools: Pools
    keys: Key | tuple[Key | None, ...] | None = None
    nodes: int = 64
    longest: int = 2
    own: float = 4.0

    def __post_init__(self):
        if self.nodes < 1:
            raise ValueError(f"nodes is {self.nodes}: a tree needs at least 1")
        if not 1 <= self.longest <= self.pools.branch:
            raise ValueError(f"longest is {self.longest}: match at least 1 token and at most a branch's {self.pools.branch}")
        if not 0 <= self.own < float("inf"):
            raise ValueError(f"own is {self.own}: what an occurrence in the row's own text counts is 0 or more")

    def begin(self, prompt: Any, session: TargetSession) -> HostSession:
        """Open the drafting session of one generation."""
        host = HostSession(prompt, self._open, lambda length: self.nodes, self.nodes, unread_by(session))
        if isinstance(self.keys, tuple) and host.texts is not None and len(host.texts) != len(self.keys):
            raise ValueError(f"{len(self.keys)} keys for {len(host.texts)} rows: give one key per row, or one for all")
        return host

    def _open(self, row: int, text: list[int]) -> "PoolRow":
        if not isinstance(self.keys, tuple):
            return PoolRow(self, self.pools.of(self.keys), text)
        if row >= len(self.keys):
            raise ValueError(f"{len(self.keys)} keys, but there is a row {row}: give one key per row, or one for all")
        return PoolRow(self, self.pools.of(self.keys[row]), text)


class PoolRow:
    """The text of one row and the index it is looked up in."""

    def __init__(self, plan: PoolDrafter, pool: Pool | None, text: list[int]):
        self.plan, self.pool = plan, pool
        self.text: list[int] = []
        self.places: dict[tuple[int, ...], list[int]] = {}  # n-gram -> where it was followed, by position of what followed
        self.extend(text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; see `HostRow.extend`."""
        for token in tokens:
            end = len(self.text)
            for size in range(1, min(self.plan.longest, end) + 1):
                self.places.setdefault(tuple(self.text[end - size :]), []).append(end)
            self.text.append(token)

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens for one round; see `HostRow.draft_token`."""
        recent = [*self.text[-self.plan.longest :], *behind][-self.plan.longest :]
        for start in range(len(recent)):
            counts = self._after(tuple(recent[start:]), limit)
            if counts:
                return ravel(counts, self.plan.nodes)
        return [], []

    def _after(self, context: tuple[int, ...], limit: int) -> Counts:
        """Continuations of `context` in the row's own text and in the pool."""
        depth = min(limit, self.plan.pools.branch + 1 - len(context))
        places = self.places.get(context, [])[-_HITS:] if self.plan.own else []
        counts = count(self.text[place : place + depth] for place in places)
        if self.plan.own != 1:
            counts = {path: self.plan.own * times for path, times in counts.items()}
        for path, times in (self.pool.after(context, depth) if self.pool else {}).items():
            counts[path] = counts.get(path, 0) + times
        return counts


# --- checks and files -------------------------------------------------------------------------------------------------


def _key(key: Any) -> Key | None:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, Integral):
        return int(key)
    raise ValueError(f"key is {key!r}: name a group by a string or an integer, or None for the shared pool")


def _tokens(text: Any) -> list[int]:
    """Return the ids of a text as a list. ValueError for anything else."""
    tokens = text.tolist() if hasattr(text, "tolist") else text
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise ValueError(f"an answer is {tokens!r:.60}: give sequences of token ids, one for each answer")
    for token in tokens:
        if not isinstance(token, Integral) or token < 0:
            raise ValueError(f"an answer holds {token!r}: token ids are integers, 0 or more")
    return [int(token) for token in tokens]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
