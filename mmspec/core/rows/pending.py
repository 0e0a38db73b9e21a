"""Pending tokens of rows that join and leave: selections and joins of drafts of roots only.

A beam search keeps its whole tree as roots, so generations that began at different times have different numbers of them. Their columns are
aligned at the last one, since the pending beams are the last roots; a row has PAD in the columns before its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.records import PAD, Draft
from mmspec.core.rows.changes import rows_of

_BY_ROW = ("nodes", "parents", "start", "score")  # what pending tokens hold by row under token-exact rules


def pending_rows(pending: Draft, rows: Sequence[int]) -> Draft:
    """Select rows of the pending tokens.

    Args:
        pending: a draft of roots only. What it carries in `aux`, if anything, has `take_rows`.
        rows: numbers of the rows.

    Returns:
        A draft of these rows.
    """
    found: dict[str, Any] = {name: rows_of(part, rows) for name, part in _by_row(pending).items()}
    return _bounded(replace(pending, aux=None if pending.aux is None else pending.aux.take_rows(rows), **found))


def joined_pending(one: Draft, other: Draft) -> Draft:
    """Concatenate the pending tokens of two generations.

    Args:
        one, other: drafts of as many roots, and nothing else. What they carry in `aux`, if anything, has `join_rows`.

    Returns:
        A draft of the rows of both.
    """
    theirs = _by_row(other)
    found: dict[str, Any] = {name: torch.cat([part, theirs[name]]) for name, part in _by_row(one).items()}
    trunk = None if one.trunk is None or other.trunk is None else max(one.trunk, other.trunk)
    return _bounded(replace(one, trunk=trunk, aux=None if one.aux is None else one.aux.join_rows(other.aux), **found))


def unused_roots(pending: Draft) -> int:
    """Count the columns before the first root of any row. One host synchronisation where there are several roots.

    Args:
        pending: a draft of roots only.

    Returns:
        Columns.
    """
    return 0 if pending.roots == 1 else int(pending.valid.any(0).long().argmax())


def shifted_roots(pending: Draft, by: int) -> Draft:
    """Move roots to other columns.

    Args:
        pending: a draft of roots only.
        by: columns of PAD that are put before them; below 0, unused columns that are cut off there.

    Returns:
        A draft of `by` more roots.
    """
    parents = torch.where(pending.parents >= 0, pending.parents + by, pending.parents)
    score = None if pending.score is None else shifted(pending.score, by, -torch.inf)
    aux = None if pending.aux is None else pending.aux.shift_roots(by)
    return replace(
        pending, nodes=shifted(pending.nodes, by, 0), parents=shifted(parents, by, PAD), roots=pending.roots + by, score=score, aux=aux
    )


def shifted(columns: Tensor, by: int, fill: float) -> Tensor:
    """Return `columns` [B, N] behind `by` more, which hold `fill`; below 0, without as many of the first."""
    return pad(columns, (by, 0), value=fill)


def _by_row(pending: Draft) -> dict[str, Tensor]:
    found = {name: getattr(pending, name) for name in _BY_ROW}
    return {name: part for name, part in found.items() if part is not None}


def _bounded(pending: Draft) -> Draft:
    """`pending` with the bound on the roots along a path that its rows have: a committed value each, and the prompt's last."""
    return pending if pending.trunk is None else replace(pending, trunk=1 + int(pending.start.max()))
