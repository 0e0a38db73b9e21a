"""`mmspec.recsys.rank_candidates`: scores of given items for every history, in one forward over the tree of their paths."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.beams.search import Forest, of_children
from mmspec.core.beams.trie import NOWHERE, Children, Trie
from mmspec.core.records import PAD, Draft
from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.models.beam_target import BeamTarget
from mmspec.models.families.registry import family_of
from mmspec.models.proof.require import require
from mmspec.models.target import HFTarget
from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.filters.item_filter import ItemFilter, Lists
from mmspec.recsys.generation import Recommendations, check_paths_fit
from mmspec.recsys.search import path_processors
from mmspec.run.arguments import public_call


@public_call
@torch.no_grad()
def rank_candidates(
    model: Any,
    histories: Sequence[Sequence[Item]] | Mapping[str, Tensor],
    candidates: Lists,
    *,
    catalogue: Catalogue,
    k: int | None = None,
    deny: Lists | None = None,
    unseen: bool = False,
) -> Recommendations:
    """Rank given items for every history by their exact scores.

    One forward scores all paths, whose shared prefixes are run once. Unlike a search within `allow`, no path is given up on the way, so
    the order is that of the scores.

    Example:
        >>> out = rank_candidates(model, [["tent", "lamp"]], [["rope", "stove"]], catalogue=catalogue)
        >>> out.items
        [['stove', 'rope']]

    Args:
        model: a transformers decoder-only or T5 model that writes items as the catalogue's paths, in eval mode.
        histories: the items of each user, oldest first; or what a tokenizer returned.
        candidates: the items to rank, a list for each user.
        catalogue: the items and their paths.
        k: the most items a user gets; all by default.
        deny: items to leave out, a list or None for each user.
        unseen: leave out the items of each user's own history.

    Returns:
        The items with their scores, best first, their paths as `tokens` [B, K, L], and `stats` with one target call.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when the target's logits hold NaN or infinity.
    """
    begun = time.perf_counter()
    family = family_of(model)
    inputs = histories if isinstance(histories, Mapping) else catalogue.inputs(histories, model.device)
    rows = len(inputs["input_ids"])
    if candidates is None or any(line is None for line in candidates):
        raise ValueError("candidates must be a list of items for each history: use recommend to search the whole catalogue")
    if len(candidates) != rows:
        raise ValueError(f"candidates has {len(candidates)} lists for {rows} histories: give one for each")
    filters = ItemFilter.of(catalogue, rows, None, candidates, deny, histories if unseen else None)
    require(model, family, trees=True)
    check_paths_fit(model, inputs, catalogue)
    trie = filters.trie(catalogue).to(model.device)
    assert trie.listed is not None
    levels = [_level(trie, level) for level in range(1, trie.levels + 1)]
    columns = sum(level.shape[1] for level in levels[:-1]) + 1
    target = HFTarget(model, family, path_processors(model, family, inputs, catalogue.levels), reserve=columns + 1)
    session, root = BeamTarget(target, trie, catalogue.tokens_used).begin(inputs)
    draft = _tree(trie, root, levels[:-1])
    scored = session.score(draft)
    if scored.healthy is not None and not bool(scored.healthy.all()):
        raise FloatingPointError("the target's logits hold NaN or infinity: load it in float32, or check its weights")
    score, states = _scores(trie, draft, levels, scored.p)
    stats = Stats(tokens=rows * trie.levels, target_calls=1, row_calls=rows, exactness=TOKEN_EXACT)
    stats.seconds["total"] = time.perf_counter() - begun
    return _ranked(catalogue, trie, filters, states, score / trie.levels, k, stats)


def _level(trie: Trie, level: int) -> Tensor:
    """[B, X] the listed nodes of a level, ascending, then NOWHERE."""
    assert trie.listed is not None
    node, ends = trie.listed.node, (*trie.starts, len(trie.token))
    inside = (node >= ends[level]) & (node < ends[level + 1])
    width = max(1, int(inside.sum(1).max()))
    found = torch.where(inside, node, len(trie.token)).sort(1).values
    found = pad(found, (0, max(0, width - found.shape[1])), value=len(trie.token))[:, :width]
    return torch.where(found < len(trie.token), found, NOWHERE)


def _parents(trie: Trie, states: Tensor, above: Tensor) -> Tensor:
    """[B, X] where the parents of `states` are among the nodes `above` [B, Y]; 0 for NOWHERE."""
    parent = torch.searchsorted(trie.child, states.clamp_min(1).to(trie.child.dtype), right=True) - 1
    ordered = torch.where(above == NOWHERE, len(trie.token), above).contiguous()
    return torch.where(states == NOWHERE, 0, torch.searchsorted(ordered, parent).clamp_max(above.shape[1] - 1))


def _tree(trie: Trie, root: Draft, levels: Sequence[Tensor]) -> Draft:
    """The pending token and every inner node of the paths."""
    draft, states, above, first = root, root.aux.state, root.aux.state, 0
    for depth, level in enumerate(levels):
        there = level != NOWHERE
        nodes = torch.where(there, trie.token[level.clamp_min(0)].to(root.nodes.dtype), 0)
        parents = torch.where(there, first + _parents(trie, level, above), PAD)
        first = draft.size
        draft = draft.extend(nodes, parents, width=level.shape[1], levels=depth + 1)
        states, above = torch.cat([states, level], 1), level
    return replace(draft, score=torch.zeros_like(states, dtype=torch.float), aux=Forest(states, 1, 0, tuple(x.shape[1] for x in levels)))


def _scores(trie: Trie, draft: Draft, levels: Sequence[Tensor], p: Any) -> tuple[Tensor, Tensor]:
    """Log-probability [B, X] and node [B, X] of every path."""
    above, first = draft.aux.state[:, :1], 0
    score = torch.zeros_like(above, dtype=torch.float)
    for level in levels:
        place = _parents(trie, level, above)
        token = torch.where(level == NOWHERE, 0, trie.token[level.clamp_min(0)].long())
        log_p = of_children(p, first + place, Children(level[..., None], token[..., None]))[..., 0]
        score = torch.where(level == NOWHERE, -torch.inf, score.gather(1, place) + log_p)
        first, above = first + above.shape[1], level
    return score, above


def _ranked(
    catalogue: Catalogue, trie: Trie, filters: ItemFilter, states: Tensor, score: Tensor, k: int | None, stats: Stats
) -> Recommendations:
    """Items in the order of their scores; items of the same path in the catalogue's order."""
    score, order = torch.sort(score, dim=-1, descending=True, stable=True)
    ordered = torch.where(score > -torch.inf, states.gather(1, order) - trie.starts[-1], 0).cpu()
    items: list[list[Item]] = []
    scores: list[list[float]] = []
    for row, (leaves, values) in enumerate(zip(ordered.tolist(), score.tolist(), strict=True)):
        found = [
            (shelf, value) for one, value in zip(leaves, values, strict=True) if value > -float("inf") for shelf in catalogue.shelf(one)
        ]
        found = [(catalogue.items[shelf], value) for shelf, value in found if filters.may(row, shelf)][:k]
        items.append([item for item, _ in found])
        scores.append([value for _, value in found])
    there = (score > -torch.inf).cpu()
    return Recommendations(torch.where(there[..., None], catalogue.path(ordered), 0), there.sum(1), stats, items, scores)
