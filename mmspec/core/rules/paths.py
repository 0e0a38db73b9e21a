"""Paths of a draft whose tokens pass or fail."""

import torch
from torch import Tensor

from mmspec.core.records import Draft


def longest(draft: Draft, passes: Tensor) -> tuple[Tensor, Tensor]:
    """Find the longest path whose draft tokens all pass.

    Args:
        draft: any draft.
        passes: bool [B, N].

    Returns:
        The path's last column [B], and whether a draft token after it failed, bool [B].
    """
    good = passes & draft.valid
    if draft.linear:
        run = good[:, draft.roots :].long().cumprod(-1).sum(-1)
        leaf = draft.roots - 1 + run
        failed = draft.valid[:, draft.roots :].sum(-1) > run
    else:
        good[:, : draft.roots] = True
        ancestors = draft.ancestors()
        whole = (~ancestors | good[:, None, :]).all(-1) & draft.valid
        whole[:, draft.roots - 1] = True
        leaf = torch.where(whole, draft.depth(), -1).argmax(-1)
        leaf = torch.where(leaf < draft.roots, draft.roots - 1, leaf)
        failed = (draft.parents == leaf[:, None]).any(-1)
    return leaf, failed


def after_parent(draft: Draft, value: Tensor) -> Tensor:
    """Select values at each draft token's parent.

    Args:
        draft: any draft.
        value: [B, N].

    Returns:
        [B, G].
    """
    if draft.linear:
        return value[:, draft.roots - 1 : -1]
    return value.gather(1, draft.parents[:, draft.roots :].clamp_min(0))


def equals_parent(draft: Draft, value: Tensor) -> Tensor:
    """Compare draft tokens with the values after their parents. Roots pass.

    Args:
        draft: any draft.
        value: ids [B, N] after every node.

    Returns:
        bool [B, N].

    Raises:
        ValueError: for values that are not single ids.
    """
    if value.dim() > 2:
        raise ValueError("this rule judges single ids, but steps here are frames of codes: take coupled, match, greedy, token or PerCode")
    return with_roots(draft, draft.draft_tokens == after_parent(draft, value))


def with_roots(draft: Draft, passes: Tensor) -> Tensor:
    """Extend judgements of draft tokens to all columns. Roots pass.

    Args:
        draft: any draft.
        passes: bool [B, G].

    Returns:
        bool [B, N].
    """
    return torch.cat([passes.new_ones(len(passes), draft.roots), passes], 1)
