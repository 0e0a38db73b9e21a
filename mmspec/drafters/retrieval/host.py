"""Base of drafters that run on the host: rows that read tokens and return draft tokens, and the session that makes a draft of them.

A round costs one host-to-device copy and no copy back: the prompt is read once, and committed values arrive as lists. Only provisional
values, as inside a cascade, are fetched from the device, with one synchronisation each time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.utils.devices import to_device

DraftTokens = tuple[list[int], list[int]]
"""Tokens, and the draft token each hangs on: an earlier index, or -1 for the last committed token."""


class HostRow(Protocol):
    """One row's text. Receives every token in order and returns draft tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text."""
        ...

    def draft_token(self, limit: int, behind: Sequence[int] = ()) -> DraftTokens:
        """Return draft tokens on paths of at most `limit` tokens, parents before their children, as if the text continued with `behind`.

        `behind` is provisional: the row must not store it.
        """
        ...


@runtime_checkable
class MatchingRow(HostRow, Protocol):
    """A row that knows how long the match is that its draft tokens continue."""

    def match(self) -> int:
        """Return how many of the text's last tokens the source of the next draft tokens shares; 0 where there are no draft tokens."""
        ...


def token_chain(tokens: list[int]) -> DraftTokens:
    """Return `tokens` as a chain."""
    return tokens, list(range(-1, len(tokens) - 1))


def as_many(length: int) -> int:
    """Return `length`: a chain has one column per draft token."""
    return length


class HostSession:
    """Drafting session of one generation on the host.

    Args:
        prompt: the target's prompt.
        open_row: makes each row from its index and the ids of its prompt.
        columns: number of columns for a round of a given draft length.
        width: largest number of siblings of any row; 1 if every row drafts a chain.
        unread: ids that are left out of the text.
    """

    def __init__(
        self,
        prompt: Any,
        open_row: Callable[[int, list[int]], HostRow],
        columns: Callable[[int], int] = as_many,
        width: int = 1,
        unread: Sequence[int] = (),
    ) -> None:
        self.texts, self.open_row, self.columns, self.width = prompt_ids(prompt, unread), open_row, columns, width
        self.rows: list[HostRow] = []
        self.ended: list[bool] = []

    def matches(self, pending: Draft) -> list[int | None] | None:
        """Return the length of each row's match; see `core.protocols.Matches`."""
        if not self.rows:
            self._open(pending)
        if not all(isinstance(row, MatchingRow) for row in self.rows):
            return None
        return [None if ended else row.match() for row, ended in zip(self.rows, self.ended, strict=True)]  # type: ignore[attr-defined]

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if not self.rows:
            self._open(pending)
        if budget.length == 0:
            return pending
        behind = _behind(pending)
        rows = zip(self.rows, self.ended, behind, strict=True)
        draft_tokens = [([], []) if ended else row.draft_token(budget.length, *more) for row, ended, more in rows]
        if not any(tokens for tokens, _ in draft_tokens):
            return pending  # no draft tokens: a plain step is cheaper than columns of PAD
        table = [_columns(tokens, parents, self.columns(budget.length)) for tokens, parents in draft_tokens]
        nodes, parents, depth = to_device(table, pending.nodes.device).unbind(1)  # [B, G]
        fits = (depth <= budget.draft_tokens[:, None]) & (parents != PAD) & pending.valid[:, -1:]
        parents = torch.where(fits, parents + pending.roots, PAD)
        return pending.extend(nodes, parents, linear=self.width == 1, width=self.width, levels=budget.length)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        for row, values in zip(self.rows, committed.values, strict=True):
            if values:
                row.extend(values)
        self.ended = committed.ended

    @property
    def joinable(self) -> bool:
        """True once the rows are open; see `core.rows.changes.ChangesRows`."""
        return bool(self.rows)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.rows, self.ended = [self.rows[row] for row in rows], [self.ended[row] for row in rows]

    def join_rows(self, other: "HostSession") -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.rows, self.ended = [*self.rows, *other.rows], [*self.ended, *other.ended]

    def _open(self, pending: Draft) -> None:
        rows = len(pending.start)
        if pending.nodes.dim() > 2:
            raise ValueError("this drafter copies single ids, but steps here are frames of codes or vectors: take a model, or none")
        texts = self.texts if self.texts is not None else [[] for _ in range(rows)]
        if len(texts) != rows:
            raise ValueError(
                f"the prompt holds {len(texts)} texts, but the target opened {rows} rows: give the drafter the target's own prompt"
            )
        self.rows = [self.open_row(row, text) for row, text in enumerate(texts)]
        self.ended = [False] * rows


def unread_by(session: Any) -> tuple[int, ...]:
    """Return the ids that stand for pictures or sound in the prompts of `session`, or enclose them."""
    family = getattr(getattr(session, "target", None), "family", None)
    return (*getattr(family, "placeholders", ()), *getattr(family, "never_generated_ids", ()))


def prompt_ids(prompt: Any, unread: Sequence[int] = ()) -> list[list[int]] | None:
    """Return every row's ids without padding and those `unread`: an encoder's source first, then the decoder's input. None for prompts
    without ids.
    """
    texts, left_out = None, frozenset(unread)
    for name, mask_name in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        ids = prompt.get(name) if isinstance(prompt, Mapping) else None
        if ids is None:
            continue
        mask = prompt.get(mask_name)
        real = torch.ones_like(ids) if mask is None else mask
        lines = zip(ids.tolist(), real.tolist(), strict=True)
        rows = [[i for i, is_real in zip(*line, strict=True) if is_real and i not in left_out] for line in lines]
        texts = rows if texts is None else [source + begun for source, begun in zip(texts, rows, strict=True)]
    return texts


def _behind(pending: Draft) -> list[list[list[int]]]:
    """Per row, the argument `behind` where the pending token holds values that are committed for now, else no argument."""
    if pending.roots == 1:
        return [[] for _ in range(len(pending.start))]
    values, real = pending.nodes[:, 1:].tolist(), pending.valid[:, 1:].tolist()
    return [[[v for v, is_real in zip(*row, strict=True) if is_real]] for row in zip(values, real, strict=True)]


def _columns(tokens: list[int], parents: list[int], size: int) -> list[list[int]]:
    """A row's tokens, parents and depths, each padded to `size` columns."""
    depth: list[int] = []
    for parent in parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    padding = size - len(tokens)
    return [tokens + [0] * padding, parents + [PAD] * padding, depth + [0] * padding]
