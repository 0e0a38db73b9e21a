"""The columns of pending trees, whose rows join and leave.

A beam search keeps its whole tree as roots, so searches that began at different times have different numbers of them. The pending beams are
the last roots. A row's other roots stand directly before these, and PAD before them.
"""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from mmspec.core.records import PAD, Draft


def packed_roots(pending: Draft) -> Draft:
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


def widened_roots(pending: Draft, roots: int) -> Draft:
    """Put columns of PAD before the roots.

    Args:
        pending: a draft of roots only.
        roots: how many columns there are then, more than now.

    Returns:
        A draft of `roots` roots.
    """
    by = roots - pending.roots
    return replace(
        pending,
        nodes=pad(pending.nodes, (by, 0)),
        parents=pad(torch.where(pending.parents >= 0, pending.parents + by, pending.parents), (by, 0), value=PAD),
        roots=roots,
        score=None if pending.score is None else pad(pending.score, (by, 0), value=-torch.inf),
        aux=pending.aux.behind(by),
    )
