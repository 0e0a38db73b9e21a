"""Pending tokens of rows that join and leave: selections and joins of drafts of one root."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mmspec.core.rows.changes import rows_of

if TYPE_CHECKING:
    from mmspec.core.records import Draft

_BY_ROW = ("nodes", "parents", "start")  # what pending tokens hold by row under token-exact rules


def pending_rows(pending: "Draft", rows: Sequence[int]) -> "Draft":
    """Select rows of the pending tokens.

    Args:
        pending: a draft of one root.
        rows: numbers of the rows.

    Returns:
        A draft of these rows.
    """
    return replace(pending, **{name: rows_of(getattr(pending, name), rows) for name in _BY_ROW})


def joined_pending(one: "Draft", other: "Draft") -> "Draft":
    """Concatenate the pending tokens of two generations.

    Args:
        one, other: drafts of one root.

    Returns:
        A draft of the rows of both.
    """
    return replace(one, **{name: torch.cat([getattr(one, name), getattr(other, name)]) for name in _BY_ROW})
