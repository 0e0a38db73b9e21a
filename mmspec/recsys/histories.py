"""Batches of training histories, and histories held out to measure on (leave-one-out)."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mmspec.recsys.catalogue import Catalogue, Item

BLOCK = 8  # batches that are drawn together, and sorted by length, so that rows of a batch need little padding


@dataclass(frozen=True)
class Data:
    """Training and test data of a recommender. The last item of a `held` or `test` history is the one to predict."""

    catalogue: Catalogue
    users: Callable[[int, int], Sequence[Sequence[Item]]]  # training histories from number `first` up to, without it, `end`
    past: Sequence[Sequence[Item]]  # training histories for methods that count
    held: Sequence[Sequence[Item]]
    test: Sequence[Sequence[Item]]


def beauty(folder: Path, ids: str = "rqvae", offset: int = 2, held: int = 3000, **options) -> Data:
    """Amazon 2014 Beauty, 5-core, in `folder` (inter.json and index_`ids`.json): 22,363 users, 12,101 items, 4 codes of 256.

    The last item of each user is for the test, the one before it for validation (of `held` users), all earlier ones for training.
    FileNotFoundError where the folder lacks one of them. `options` go to the catalogue.
    """
    index = {int(item): codes for item, codes in json.loads((folder / f"index_{ids}.json").read_text(encoding="utf-8")).items()}
    catalogue = Catalogue.of_codes(list(index), torch.tensor(list(index.values())), 256, offset, **options)
    full = [[int(item) for item in items] for items in json.loads((folder / "inter.json").read_text(encoding="utf-8")).values()]
    past = [items[:-2] for items in full]

    @lru_cache(2)
    def order(turn: int) -> list[int]:
        return random.Random(turn).sample(range(len(past)), len(past))

    def users(first: int, end: int) -> list[list[int]]:
        """Every pass over the users has an order of its own."""
        places = (divmod(number, len(past)) for number in range(first, end))
        return [past[order(turn)[place]] for turn, place in places]

    return Data(catalogue, users, past, [full[n][:-1] for n in random.Random(0).sample(range(len(full)), held)], full)


def batches(data: Data, rows: int, drop: float = 0.0) -> Callable[[int], dict[str, Tensor]]:
    """Turn -> `input_ids`, `attention_mask`, `labels` [rows, T] for a causal model; a turn gives the same batch whenever it is asked.

    Each row is a window of one history: the catalogue's `before`, then up to `most` + 1 items, so that every position learns from every
    prefix of the window. `drop` is the chance to leave an item out, and half the windows then begin later than they could, as other
    users' pasts might: few histories last longer so. Padding is on the right and is token 0.
    """
    if data.catalogue.after:
        raise ValueError("the catalogue writes tokens behind a history: a causal model cannot learn from every prefix of it")
    own = data.catalogue.paths.cpu().long()
    paths = torch.cat([own, own.new_full((1, data.catalogue.levels), -1)])  # the last row is padding
    before = torch.tensor([data.catalogue.before] * rows, dtype=torch.long).view(rows, -1)

    @lru_cache(2)
    def block(number: int) -> list[list[list[Item]]]:
        pick, span = random.Random(number), BLOCK * rows
        users = data.users(number * span, (number + 1) * span)
        some = sorted((_window(items, data.catalogue.most + 1, pick, drop) for items in users), key=len)
        parts = [some[start : start + rows] for start in range(0, span, rows)]
        pick.shuffle(parts)
        return parts

    def batch(turn: int) -> dict[str, Tensor]:
        some = block(turn // BLOCK)[turn % BLOCK]
        width = max(map(len, some))
        table = torch.tensor([[data.catalogue.row(item) for item in items] + [-1] * (width - len(items)) for items in some])
        ids = torch.cat([before, paths[table].flatten(1)], 1)
        shown = ids >= 0
        return {"input_ids": ids * shown, "attention_mask": shown.long(), "labels": ids.masked_fill(~shown, -100)}

    return batch


def _window(items: Sequence[Item], most: int, pick: random.Random, drop: float) -> list[Item]:
    """At most `most` items of a history, from a random start where it is longer."""
    start = pick.randint(0, max(0, len(items) - most))
    if drop and pick.random() < 0.5:
        start = pick.randint(start, max(start, len(items) - 2))
    window = list(items[start : start + most])
    kept = [item for item in window if not drop or pick.random() >= drop]
    return kept if len(kept) > 1 else window
