"""Pending tokens of rows that join and leave: selections and joins of drafts of roots only.

A beam search keeps its whole tree as roots, so generations that began at different times have different numbers of them. The pending beams
are the last roots. A row's other roots stand directly before these, and PAD before them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.rows.changes import rows_of
from mmspec.core.rows.columns import PAD

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


def packed_roots(pending: "Draft") -> "Draft":
    """Move the roots of every row behind its PAD columns, and drop the columns that no row uses. One host synchronisation.

    The pending beams stay the last columns, in their order, and a row's roots keep theirs.

    Args:
        pending: a draft of roots only, of a beam search.

    Returns:
        A draft of as many roots or fewer, with the bounds on paths and levels that its rows have.
    """
    fixed, rows, device = pending.roots - pending.aux.beams, len(pending.start), pending.nodes.device
    used = pending.valid[:, :fixed]
    most, longest, least = torch.stack([used.sum(1).max(), pending.start.max(), pending.start.min()]).tolist()
    beams = torch.arange(fixed, pending.roots, device=device).expand(rows, -1)
    order = torch.cat([used.long().argsort(dim=1, stable=True), beams], 1)  # by new column, the old one
    place = order.argsort(dim=1)
    cut = fixed - most
    parents = torch.where(pending.parents >= 0, place.gather(1, pending.parents.clamp_min(0)) - cut, pending.parents)
    order = order[:, cut:]
    return replace(
        pending,
        nodes=pending.nodes.gather(1, order),
        parents=parents.gather(1, order),
        roots=pending.roots - cut,
        trunk=longest + 1,  # a committed value each, and the prompt's last
        score=None if pending.score is None else pending.score.gather(1, order),
        aux=pending.aux.moved(order, least),
    )


def widened_roots(pending: "Draft", roots: int) -> "Draft":
    """Put columns of PAD before the roots.

    Args:
        pending: a draft of roots only.
        roots: how many columns there are then, at least as many as now.

    Returns:
        A draft of `roots` roots.
    """
    by = roots - pending.roots
    if by == 0:
        return pending
    return replace(
        pending,
        nodes=pad(pending.nodes, (by, 0)),
        parents=pad(torch.where(pending.parents >= 0, pending.parents + by, pending.parents), (by, 0), value=PAD),
        roots=roots,
        score=None if pending.score is None else pad(pending.score, (by, 0), value=-torch.inf),
        aux=pending.aux.widened(by),
    )


def _by_row(pending: "Draft") -> dict[str, Tensor]:
    found = {name: getattr(pending, name) for name in _BY_ROW}
    return {name: part for name, part in found.items() if part is not None}
