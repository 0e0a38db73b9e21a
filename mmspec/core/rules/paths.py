"""Paths of a draft whose draft tokens pass or fail: which draft tokens their parents call for, and how far a path goes."""

import torch
from torch import Tensor

from mmspec.core.records import Draft


def longest(draft: Draft, passes: Tensor) -> tuple[Tensor, Tensor]:
    """The column [B] that ends the longest path whose draft tokens all pass [B, N], and whether a draft token behind it failed [B]."""
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
    """`value` [B, N] at each draft token's parent, [B, G]."""
    if draft.linear:
        return value[:, draft.roots - 1 : -1]
    return value.gather(1, draft.parents[:, draft.roots :].clamp_min(0))


def equals_parent(draft: Draft, value: Tensor) -> Tensor:
    """[B, N] bool: is each draft token the very `value` [B, N] its parent calls for? Roots pass. ValueError for values that are no single
    ids."""
    if value.dim() > 2:
        raise ValueError("this rule judges single ids, but steps here are frames of codes: take coupled, match, greedy, token or PerCode")
    return with_roots(draft, draft.draft_tokens == after_parent(draft, value))


def with_roots(draft: Draft, passes: Tensor) -> Tensor:
    """`passes` [B, G] of the draft tokens for all columns [B, N]: roots pass."""
    return torch.cat([passes.new_ones(len(passes), draft.roots), passes], 1)
