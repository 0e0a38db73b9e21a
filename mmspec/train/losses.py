"""Losses between the target's law p and a drafter's q. Each takes log-probabilities [..., V] and the value that came next [...].

What a drafter earns is its acceptance, 1 - TV(p, q); the others are easier to descend. DistillSpec (Zhou et al. 2024) compares them.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log p [..., V], log q [..., V], next value [...], -1 where the drafter has no such value) -> loss [...]."""


def cross_entropy(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """-log q of the value that came: needs no law of the target."""
    found = log_q.gather(-1, value.clamp_min(0)[..., None])[..., 0]
    return torch.where(value >= 0, -found, 0.0)


def forward_kl(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """KL(p | q): cover all the target says."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """KL(q | p): say nothing the target does not."""
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def jensen_shannon(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """The mean of both divergences to the middle law."""
    middle = torch.logaddexp(log_p, log_q) - torch.log(torch.tensor(2.0))
    return 0.5 * (forward_kl(log_p, middle, value) + forward_kl(log_q, middle, value))


def total_variation(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
    """1 - sum min(p, q): the chance that the token rule rejects."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def top_k(log_p: Tensor, log_q: Tensor, value: Tensor, k: int = 10) -> Tensor:
    """Cross-entropy on the target's `k` likeliest values only (HASS, Zhang et al. 2025)."""
    likeliest, index = log_p.topk(min(k, log_p.shape[-1]), -1)
    return -(likeliest.exp() * log_q.gather(-1, index)).sum(-1)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tv": total_variation,
    "top-k": partial(top_k, k=10),
}


def mixture(weights: dict[str, float]) -> Loss:
    """A weighted sum of losses by name. ValueError lists the names there are."""
    for name in weights:
        if name not in LOSSES:
            raise ValueError(f"unknown loss {name!r}; valid: {', '.join(LOSSES)}")

    def total(log_p: Tensor, log_q: Tensor, value: Tensor) -> Tensor:
        return torch.stack([weight * LOSSES[name](log_p, log_q, value) for name, weight in weights.items()]).sum(0)

    return total
