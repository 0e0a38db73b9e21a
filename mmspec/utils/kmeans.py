"""Lloyd's k-means for codebooks: seeded, and without empty clusters."""

import torch
from torch import Tensor


def kmeans(points: Tensor, size: int, seed: int = 0, rounds: int = 30) -> Tensor:
    """Centres [size, D] of `points` [N, D] by Lloyd's rounds from k-means++ seeds (Arthur & Vassilvitskii 2007).

    An empty cluster gets the farthest point.
    """
    chance = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=chance)]
    nearest = (points - centres).square().sum(1)
    for _ in range(size - 1):
        weight = nearest if bool(nearest.any()) else torch.ones_like(nearest)
        fresh = points[torch.multinomial(weight, 1, generator=chance)]
        centres = torch.cat([centres, fresh])
        nearest = torch.minimum(nearest, (points - fresh).square().sum(1))
    for _ in range(rounds):
        distances, label = torch.cdist(points, centres).min(1)
        counts = torch.bincount(label, minlength=size)
        moved = torch.zeros_like(centres).index_add_(0, label, points) / counts.clamp_min(1)[:, None]
        empty = (counts == 0).nonzero()[:, 0][: len(points)]
        moved[empty] = points[distances.topk(len(empty)).indices]
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres
