"""Losses between the target's distribution p and a drafter's q. Each takes log-probabilities [..., V] and the value that came next [...].

What a drafter earns is its acceptance, 1 - TV(p, q); the others are easier to descend. DistillSpec (Zhou et al. 2024) compares them.
What may not come has log-probability -inf under both distributions, and counts for nothing: neither in a loss nor in its gradients.

Over a part of the target's vocabulary, log p is the target's own: p sums to less than 1. What a loss would add for the values outside is
then left out. It does not depend on q, but for `soft-kl`, which makes a distribution of the part.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log p [..., V], log q [..., V], next value [...], -1 where the drafter has no such value) -> loss [...]."""


def cross_entropy(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """-log q of the next value; needs no distribution of the target."""
    found = log_q.gather(-1, value.clamp_min(0)[..., None])[..., 0]
    return torch.where(value >= 0, -found, 0.0)


def forward_kl(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """KL(p | q), which is mode-covering."""
    return _mean(log_p, log_p, log_q)


def soft_kl(log_p: Tensor, log_q: Tensor, value: Tensor, temperature: float = 2.0) -> Tensor:
    """KL(p | q) of both distributions at a `temperature` (Hinton et al. 2015), times its square: right also about what is unlikely, as a
    search for many beams needs."""
    return temperature**2 * forward_kl((log_p / temperature).log_softmax(-1), (log_q / temperature).log_softmax(-1), value)


def reverse_kl(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """KL(q | p), which is mode-seeking."""
    return _mean(log_q, log_q, log_p)


def jensen_shannon(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """Mean of both divergences to the average distribution."""
    never = torch.isneginf(log_p) & torch.isneginf(log_q)
    middle = torch.logaddexp(log_p.masked_fill(never, 0.0), log_q.masked_fill(never, 0.0)) - math.log(2)
    return 0.5 * (forward_kl(log_p, middle, value) + forward_kl(log_q, middle, value))


def total_variation(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """1 - sum min(p, q): the rejection probability of the token rule. Over the levels of beams it is AtSpeed-R's loss (Lin et al. 2025)."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def top_k(log_p: Tensor, log_q: Tensor, value: Tensor, k: int = 10) -> Tensor:
    """Cross-entropy on the target's `k` likeliest values only (HASS, Zhang et al. 2025)."""
    likeliest, index = log_p.topk(min(k, log_p.shape[-1]), -1)
    return -_mean(likeliest, log_q.gather(-1, index))


def strict_alignment(log_p: Tensor, log_q: Tensor, value: Tensor, k: int = 20, renormalised: bool = False) -> Tensor:
    """AtSpeed-S (Lin et al. 2025): reverse KL on the drafter's own `k` likeliest values, plus p of the last one times q's entropy there.

    A drafter that searches wide needs the target's best among its own, and nothing else. The second term draws q's mass together while
    the target still likes the value where q's list ends; it is 0 where fewer than `k` values may come. As published neither distribution is
    made to sum to 1 over the list: then mass outside it is free, so mix in a loss that sees all values. `renormalised` makes both
    distributions of the list.
    """
    log_q, index = log_q.topk(min(k, log_q.shape[-1]), -1)
    log_p = log_p.gather(-1, index)
    if renormalised:
        log_p, log_q = log_p.log_softmax(-1), log_q.log_softmax(-1)
    return _mean(log_q, log_q, log_p) - log_p[..., -1].exp() * _mean(log_q, log_q)


def taken_and_agreed(log_p: Tensor, log_q: Tensor, likeliest: Tensor) -> Tensor:
    """What the token rule accepts [M], and whether the target's likeliest value is the drafter's, side by side [M, 2]."""
    return torch.stack([torch.minimum(log_p.exp(), log_q.exp()).sum(-1), (log_q.argmax(-1) == likeliest).float()], -1)


def _mean(distribution: Tensor, plus: Tensor, minus: Tensor | None = None) -> Tensor:
    """The mean of `plus - minus` under log-probabilities `distribution`; where a distribution is 0 it is 0, also where the others are
    infinite."""
    comes = ~torch.isneginf(distribution)
    found = torch.where(comes, plus, 0.0)
    if minus is not None:
        found = found - torch.where(comes, minus, 0.0)
    return (distribution.exp() * found).sum(-1)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "soft-kl": soft_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tv": total_variation,
    "top-k": partial(top_k, k=10),
    "atspeed-s": strict_alignment,
    "atspeed-s-renormalised": partial(strict_alignment, renormalised=True),
    "atspeed-r": total_variation,
}


def weighted_loss(weights: dict[str, float]) -> Loss:
    """Return a weighted sum of losses by name. ValueError lists the names."""
    for name in weights:
        if name not in LOSSES:
            raise ValueError(f"unknown loss {name!r}; valid: {', '.join(LOSSES)}")

    def total(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
        return torch.stack([weight * LOSSES[name](log_p, log_q, value) for name, weight in weights.items()]).sum(0)

    return total
