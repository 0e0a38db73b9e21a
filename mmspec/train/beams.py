"""Training data of beam-search drafters: users' histories followed by the target's best items as one tree.

A search needs the distribution at the prompt's end and at the inner nodes of the paths it visits. A training row is the prompt with those
nodes attached, each seeing its ancestors, so that one forward of either model gives every distribution (AtSpeed, Lin et al. 2025, trains
on such beams one by one). The distributions inside the history are used too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mmspec.core.beams.trie import NOWHERE, Children, Trie
from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.generation import recommend
from mmspec.train.item_head import item_example
from mmspec.train.losses import weighted_loss

_NONE = -1e4  # a log-probability so low that it counts for nothing, and has gradients that are no NaN


def best_items(model: Any, catalogue: Catalogue, histories: Sequence[Sequence[Item]], k: int = 20, rows: int = 64) -> list[list[Item]]:
    """Return the `k` best items of each history by the model's own beam search, `rows` histories at a time."""
    parts = [histories[start : start + rows] for start in range(0, len(histories), rows)]
    return [items for part in parts for items in recommend(model, part, k=k, catalogue=catalogue, method="plain").items]


def draft_coverage(
    target: Any, drafter: Any, catalogue: Catalogue, histories: Sequence[Sequence[Item]], k: int, width: int, rows: int = 100
) -> dict[str, Any]:
    """Measure a drafter in strict search.

    Returns:
        Target `calls` per history and, as `levels`, the share of judged levels whose drafts held all of the target's beams.
    """
    calls, passed, reached = 0, [0] * catalogue.levels, [0] * catalogue.levels
    for start in range(0, len(histories), rows):
        stats = recommend(target, histories[start : start + rows], k=k, catalogue=catalogue, drafter=drafter, width=width).stats
        calls += stats.row_calls
        for depth, count in enumerate(stats.reached):
            passed[depth] += sum(stats.histogram[depth + 1 :])
            reached[depth] += count
    levels = [round(ours / all_, 4) for ours, all_ in zip(passed, reached, strict=True) if all_]
    return {"calls": calls / len(histories), "levels": levels}


@dataclass(frozen=True, slots=True)
class BeamRows:
    """Histories with trees behind them: T columns a row, padded on the left before the history and on the right behind the tree."""

    ids: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    visible: Tensor  # [B, 1, T, T] bool: what each column sees
    state: Tensor  # [B, T] the trie node whose children may come next; NOWHERE where a column's distribution is no lesson
    value: Tensor  # [B, T] the token that came next; -1 at the end of the history and in trees, where many may
    past: Tensor  # [B, T] bool: the distribution is one inside the history, else one that the search behind it asks for

    def to(self, device: torch.device | str) -> "BeamRows":
        """Return this object with its tensors on `device`."""
        return BeamRows(*(getattr(self, name).to(device) for name in self.__slots__))


def beam_rows(catalogue: Catalogue, histories: Sequence[Sequence[Item]], best: Sequence[Sequence[Item]]) -> BeamRows:
    """Each history with the paths of its `best` items behind it. Distributions inside histories are lessons where items follow each other
    there, that is, for catalogues that write nothing behind a history."""
    trie, prompt = catalogue.trie, catalogue.inputs(histories)
    shown, width = prompt["attention_mask"].bool(), prompt["input_ids"].shape[1]
    node = _padded([_inner(catalogue, items).unique() for items in best], NOWHERE, left=False)
    there = node != NOWHERE
    past = _padded([_inside(catalogue, items) for items in histories], NOWHERE, left=True, width=width)
    past[:, -1] = 0  # the search begins here
    columns = torch.arange(width)
    before = (columns <= columns[:, None]) & shown[:, None, :]  # [B, P, P]
    behind = shown[:, None, :].expand(-1, node.shape[1], -1)
    apart = torch.zeros(len(node), width, node.shape[1], dtype=torch.bool)
    visible = torch.cat([torch.cat([before, apart], 2), torch.cat([behind, _above(trie, node)], 2)], 1)
    visible |= torch.eye(visible.shape[1], dtype=torch.bool)  # padding sees itself, or it would be NaN
    level = torch.bucketize(node, torch.tensor(trie.starts), right=True) - 1
    ids = torch.cat([prompt["input_ids"], torch.where(there, trie.token[node.clamp_min(0)], 0)], 1)
    value = torch.cat([torch.where(past[:, :-1] >= 0, ids[:, 1:width], -1), torch.full_like(node[:, :1], -1), torch.full_like(node, -1)], 1)
    inside = torch.cat([columns[None] < width - 1, torch.zeros(1, node.shape[1], dtype=torch.bool)], 1).expand(len(ids), -1)
    place = shown.long().cumsum(1) - 1
    positions = torch.cat([place, place[:, -1:] + level], 1).clamp_min(0)
    return BeamRows(ids, positions, visible[:, None], torch.cat([past, node], 1), value, inside)


def restricted(logits: Tensor, children: Children) -> Tensor:
    """Return log-probabilities [N, V + 1] of `logits` [N, V] with -inf outside of `children` [1, N, C]; the last entry is the probability
    of all other values.
    """
    size = logits.shape[-1]
    token = torch.where(children.valid, children.token, size)[0]
    allowed = torch.zeros(len(logits), size + 1, dtype=torch.bool, device=logits.device).scatter(1, token, True)[:, :size]
    distribution = logits.float().log_softmax(-1)
    rest = distribution.masked_fill(allowed, _NONE).logsumexp(-1, keepdim=True)
    return torch.cat([distribution.masked_fill(~allowed, -torch.inf), rest], 1)


class BeamExample(nn.Module):
    """A drafter model and its loss against the target, as one module, so that several processes may share its training.

    `search` weighs the losses, by name, between distributions that searches ask for; `past` those inside histories: by default the same,
    and {} leaves them out. Cross-entropy needs the value that came, which only the past has. Both models are decoder-only; the target is
    neither trained nor saved.
    """

    def __init__(self, drafter: nn.Module, target: nn.Module, trie: Trie, search: dict[str, float], past: dict[str, float] | None = None):
        super().__init__()
        self.drafter, self.search = drafter, weighted_loss(search)
        self.past = None if past == {} else weighted_loss(past or search)
        self._fixed = (target, trie)  # in a tuple, or the target would be a submodule

    def forward(self, rows: BeamRows) -> Tensor:
        """Return the loss of `rows`."""
        log_p, log_q, value, past = self.distributions(rows)
        loss = self.search(log_p[~past], log_q[~past], value[~past]).mean()
        if self.past is None or not past.any():
            return loss
        return loss + self.past(log_p[past], log_q[past], value[past]).mean()

    def distributions(self, rows: BeamRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log p and log q [N, V + 1] at the N training columns, the next values, and which of them are inside histories."""
        target, trie = self._fixed
        counted = rows.state != NOWHERE
        if self.past is None:
            counted &= ~rows.past
        children = trie.to(rows.ids.device).children(rows.state[counted][None], 0)
        with torch.no_grad():
            log_p = restricted(_logits(target, rows)[counted], children)
        return (
            log_p,
            restricted(_logits(self.drafter, rows)[counted], children),
            rows.value[counted],
            rows.past[counted],
        )


class HeadExample(nn.Module):
    """A recurrent head and its loss, KL to the target's distributions, over all items of histories as `mmspec.recsys.histories.batches`
    gives them; of the loss, `mix` is the cross-entropy of what came instead."""

    def __init__(self, head: Any, target: Any, before: int, levels: int, mix: float = 0.0):
        super().__init__()
        self.head, self.mix, self._fixed = head, mix, (target, before, levels)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch of histories."""
        target, before, levels = self._fixed
        told = item_example(target, batch, before, levels)
        return self.head.loss(told.hidden, told.tokens, target.get_input_embeddings(), told.log_p, self.mix)


def _logits(model: Any, rows: BeamRows) -> Tensor:
    """[B, T, V] in one forward."""
    return model(input_ids=rows.ids, attention_mask=rows.visible, position_ids=rows.positions, use_cache=False).logits


def _nodes(trie: Trie, leaf: Tensor) -> Tensor:
    """The nodes on the way to paths `leaf` [...], root and leaf left out, [..., L - 1]."""
    leaf = leaf.to(trie.span.dtype)
    found = [
        begin + torch.searchsorted(trie.span[begin:end, 1].contiguous(), leaf, right=True)
        for begin, end in zip(trie.starts[1:-1], trie.starts[2:], strict=True)
    ]
    return torch.stack(found, -1) if found else leaf.new_zeros(*leaf.shape, 0, dtype=torch.long)


def _inner(catalogue: Catalogue, items: Sequence[Item]) -> Tensor:
    """[items, L - 1] the nodes a search for `items` passes."""
    return _nodes(catalogue.trie, catalogue.leaf[[catalogue.row(item) for item in items]])


def _inside(catalogue: Catalogue, history: Sequence[Item]) -> Tensor:
    """The node after each token of a history as it is written: the root before and after every item."""
    if catalogue.after:
        return torch.tensor([NOWHERE])
    inner = _inner(catalogue, history[-catalogue.most :])
    return torch.cat([torch.zeros(min(1, len(catalogue.before)), dtype=torch.long), pad(inner, (0, 1)).flatten()])


def _above(trie: Trie, node: Tensor) -> Tensor:
    """[B, N, N] bool: is the second of two `node` [B, N] the first, or on the way to it? All paths below the one are below the other."""
    begin, end = trie.span[node.clamp_min(0)].unbind(-1)
    holds = (begin[:, None, :] <= begin[:, :, None]) & (end[:, None, :] >= end[:, :, None])
    return holds & (node[:, None, :] <= node[:, :, None]) & (node != NOWHERE)[:, None, :]  # parents have lower numbers


def _padded(rows: Sequence[Tensor], fill: int, left: bool, width: int = 0) -> Tensor:
    width = max(width, *(len(row) for row in rows))
    return torch.stack([pad(row, (width - len(row), 0) if left else (0, width - len(row)), value=fill) for row in rows])
