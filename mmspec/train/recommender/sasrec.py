"""SASRec, a baseline: a causal transformer over items that scores the next one (Kang & McAuley 2018, 1808.09781).

Learned positions, item embeddings shared between input and output, blocks that normalise before attention and feed-forward. It is trained
with the softmax over sampled items (or all), which ranks better than the paper's one negative with binary cross-entropy
(Klenitskiy & Vasilev 2023, 2309.07602); `negatives=0` takes all items, and `loss="bce"` is the paper's.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.histories import Data
from mmspec.train.loop import Fit
from mmspec.train.parallel import join_processes
from mmspec.train.recommender.best_state import fit_best
from mmspec.train.recommender.quality import ranking_quality
from mmspec.train.recommender.split import last_items
from mmspec.train.states.identity import claim_folder


@dataclass(frozen=True, kw_only=True)
class SasRecSettings:
    """A SASRec's size and training.

    Args:
        hidden_size: width; 50 in the paper.
        layers: blocks.
        heads: attention heads.
        dropout: of embeddings, attention and feed-forward.
        most: newest items that it reads.
        loss: "softmax", or the paper's "bce" with one negative.
        negatives: items drawn a step that the softmax runs over; 0 for all.
        steps: optimiser steps.
        rows: histories a step.
        lr: peak learning rate.
        validations: how often the model is validated.
        seed: seed of weights, batches and negatives.
    """

    hidden_size: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.2
    most: int = 50
    loss: str = "softmax"
    negatives: int = 4096
    steps: int = 3000
    rows: int = 128
    lr: float = 1e-3
    validations: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in ("softmax", "bce"):
            raise ValueError(f"unknown loss {self.loss!r}; valid: softmax, bce")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size is {self.hidden_size} and heads is {self.heads}: the first must be a multiple of the second")


class SasRec(nn.Module):
    """The model. Item i of the catalogue has row i + 1 of the embeddings; row 0 is padding.

    Args:
        items: number of items.
        settings: width and depth.
    """

    def __init__(self, items: int, settings: SasRecSettings):
        super().__init__()
        self.settings, width = settings, settings.hidden_size
        self.item = nn.Embedding(items + 1, width, padding_idx=0)
        self.position = nn.Embedding(settings.most, width)
        layer = nn.TransformerEncoderLayer(width, settings.heads, 4 * width, settings.dropout, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, settings.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.normal_(self.item.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, shown: Tensor) -> Tensor:
        """Return states [B, T, width] after each item of `shown` [B, T], numbered from 1, padded with 0 on the right."""
        length = shown.shape[1]
        hidden = self.dropout(self.item(shown) * self.settings.hidden_size**0.5 + self.position.weight[:length])
        later = torch.ones(length, length, dtype=torch.bool, device=shown.device).triu(1)
        return self.body(hidden, mask=later)

    def loss(self, shown: Tensor, drawn: Tensor) -> Tensor:
        """Return the mean loss over the next items of windows.

        Args:
            shown: [B, T] items, numbered from 1, padded with 0 on the right.
            drawn: items that the softmax runs over beside those of the batch, or [B, T - 1] negatives of bce; empty for all items.
        """
        there = shown[:, 1:] > 0
        states, wanted = self(shown[:, :-1])[there], shown[:, 1:][there]
        if self.settings.loss == "bce":
            positive, negative = ((states * self.item(ids)).sum(-1) for ids in (wanted, drawn[there]))
            return -(F.logsigmoid(positive) + F.logsigmoid(-negative)).mean()
        if not drawn.numel():
            return F.cross_entropy(states @ self.item.weight[1:].T, wanted - 1)
        classes, place = torch.cat([wanted, drawn]).unique(return_inverse=True)
        return F.cross_entropy(states @ self.item(classes).T, place[: len(wanted)])

    @torch.no_grad()
    def ranked(
        self, catalogue: Catalogue, histories: Sequence[Sequence[Item]], k: int, unseen: bool = False, rows: int = 256
    ) -> list[list[Item]]:
        """Return each history's `k` best items; without its own where `unseen`."""
        found: list[list[Item]] = []
        for start in range(0, len(histories), rows):
            part = [[catalogue.row(item) + 1 for item in history] for history in histories[start : start + rows]]
            shown = _table([row[-self.settings.most :] for row in part]).to(self.item.weight.device)
            last = (shown > 0).sum(1) - 1
            states = self(shown)[torch.arange(len(part)), last]
            scores = states @ self.item.weight[1:].T
            if unseen:
                for row, own in enumerate(part):
                    scores[row, torch.tensor(own, device=scores.device) - 1] = -torch.inf
            best = scores.topk(min(k, scores.shape[1]), 1)
            for items, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                found.append([catalogue.items[item] for item, value in zip(items, values, strict=True) if value > -torch.inf])
        return found


def train_sasrec(data: Data, settings: SasRecSettings, work: Path, device: str = "cpu", unseen: bool = True) -> SasRec:
    """Train the baseline; a run that was stopped goes on from `work`.

    Args:
        data: histories and the catalogue.
        settings: width, depth and training.
        work: folder for checkpoints.
        device: where it is trained.
        unseen: whether validation leaves out items of the history.

    Returns:
        The model in evaluation mode with the weights that rank best on validation.

    Raises:
        ValueError: for a work folder with a run of other settings.
    """
    told = {**asdict(settings), "items": len(data.catalogue), "unseen": unseen}
    claim_folder(work / "settings.json", told, "a training with", {}, join_processes())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = SasRec(len(data.catalogue), settings).to(device)
        batch = _batches(data, settings)

        def loss(example: nn.Module, turn: int) -> Tensor:
            torch.manual_seed(settings.seed * 2**32 + turn)  # of dropout
            shown, drawn = (table.to(device) for table in batch(turn))
            return example.loss(shown, drawn)  # pyright: ignore[reportCallIssue]

        def rank(example: nn.Module) -> dict[str, float]:
            ranked: Callable = example.ranked  # pyright: ignore[reportAssignmentType]
            found = ranked(data.catalogue, [items[:-1] for items in data.held], 10, unseen)
            return ranking_quality(found, [items[-1] for items in data.held], len(data.catalogue), (10,))

        every = max(1, settings.steps // settings.validations)
        plan = Fit(steps=settings.steps, lr=settings.lr, warmup=min(100, settings.steps), weight_decay=0.01, checkpoint_every=every)
        fit_best(model, loss, plan, work, rank, last_items(data))
    return model.eval()


def _batches(data: Data, settings: SasRecSettings) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Turn -> windows [B, T] of histories, items numbered from 1; and the items drawn beside them."""

    def batch(turn: int) -> tuple[Tensor, Tensor]:
        pick = random.Random(f"{settings.seed} {turn}")
        windows = []
        for history in data.users(turn * settings.rows, (turn + 1) * settings.rows):
            start = pick.randint(0, max(0, len(history) - settings.most - 1))
            windows.append([data.catalogue.row(item) + 1 for item in history[start : start + settings.most + 1]])
        if max(map(len, windows)) < 2:
            windows[0] = windows[0] * 2  # a history of one item teaches nothing; a loss over nothing would be NaN
        shown, chance = _table(windows), torch.Generator().manual_seed(turn)
        items = len(data.catalogue)
        if settings.loss == "bce":
            return shown, torch.randint(1, items + 1, (len(shown), shown.shape[1] - 1), generator=chance)
        few = 0 if not settings.negatives or settings.negatives >= items else settings.negatives
        return shown, torch.randint(1, items + 1, (few,), generator=chance)

    return batch


def _table(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
