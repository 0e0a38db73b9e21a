"""Pending tokens of rows that join and leave: selections and joins of drafts of roots only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.rows.changes import rows_of

if TYPE_CHECKING:
    from mmspec.core.records import Draft

_BY_ROW = ("nodes", "parents", "start", "score")  # what pending tokens hold by row under token-exact rules


def pending_rows(pending: "Draft", rows: Sequence[int]) -> "Draft":
    """Select rows of the pending tokens.

    Args:
        pending: a draft of roots only. What it carries in `aux`, if anything, has `take_rows`.
        rows: numbers of the rows.

    Returns:
        A draft of these rows.
    """
    found: dict[str, Any] = {name: rows_of(part, rows) for name, part in _by_row(pending).items()}
    return replace(pending, aux=None if pending.aux is None else pending.aux.take_rows(rows), **found)


def joined_pending(one: "Draft", other: "Draft") -> "Draft":
    """Concatenate the pending tokens of two generations.

    Args:
        one, other: drafts of as many roots, and nothing else. What they carry in `aux`, if anything, has `join_rows`.

    Returns:
        A draft of the rows of both.
    """
    theirs = _by_row(other)
    found: dict[str, Any] = {name: torch.cat([part, theirs[name]]) for name, part in _by_row(one).items()}
    trunk = None if one.trunk is None or other.trunk is None else max(one.trunk, other.trunk)
    return replace(one, trunk=trunk, aux=None if one.aux is None else one.aux.join_rows(other.aux), **found)


def _by_row(pending: "Draft") -> dict[str, Tensor]:
    found = {name: getattr(pending, name) for name in _BY_ROW}
    return {name: part for name, part in found.items() if part is not None}
