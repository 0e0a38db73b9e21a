"""Losses between the target's distribution p and a drafter's q. Each takes log-probabilities [..., V] and the value that came next [...].

What a drafter earns is its acceptance, 1 - TV(p, q); the others are easier to descend. DistillSpec (Zhou et al. 2024) compares them.
What may not come has log-probability -inf under both distributions, and counts for nothing: neither in a loss nor in its gradients.

Over a part of the target's vocabulary, log p is the target's own: p sums to less than 1. What a loss would add for the values outside is
then left out. It does not depend on q, but for `soft-kl`, which makes a distribution of the part.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.guided import head_of, head_rows
from mmspec.train.states.memory import LOGITS, chunk_of_positions

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


@dataclass(frozen=True)
class TargetSide:
    """The target's distributions over a drafter's values.

    Args:
        target: the transformers model.
        known: [R] ids of the drafter's values; None for all.
    """

    target: Any
    known: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of values of the target."""
        return self.target.config.get_text_config(decoder=True).vocab_size

    def head(self, rows: bool) -> Callable[[Tensor], Tensor]:
        """Return the map from last hidden states [T, H] to float32 logits, of the known values only with `rows`."""
        found = head_rows(self.target, self.known) if rows and self.known is not None else head_of(self.target)
        weight = getattr(self.target.get_output_embeddings(), "weight", None)
        return lambda last: found(last if weight is None else last.to(weight.dtype)).float()

    def places(self) -> Tensor | None:
        """Return [size] the place of each of the target's values among the known ones, -1 for others; None where all are known."""
        if self.known is None:
            return None
        found = self.known.new_full((max(self.size, int(self.known.max()) + 1),), -1)
        return found.index_copy_(0, self.known, torch.arange(len(self.known), device=found.device))


@dataclass(frozen=True)
class ComparedPositions:
    """T positions of text where a target and a drafter are compared."""

    last: Tensor  # [T, H] the target's last hidden states there
    total: Tensor | None  # [T] logsumexp of its logits; None: computed from `last` where it is needed
    value: Tensor | None  # [T] the third argument of the loss, an id of the target's; None: its likeliest value


@dataclass(frozen=True)
class Predicted:
    """What a drafter predicts at one level, for M of the positions."""

    hidden: Tensor  # [M, H] what `head` reads
    head: Callable[[Tensor], Tensor]  # gives logits over the drafter's values
    at: Tensor  # [T] bool, which positions


@dataclass(frozen=True)
class Comparison:
    """A target's and a drafter's distributions at positions of text, made chunk by chunk: never all at once.

    Args:
        of: the loss, or what else is compared.
        theirs: the target's side.
        positions: the T positions.
        levels: what the drafter predicts there, L levels.
        logits: about how many logits of the drafter, all levels together, are made at once.
    """

    of: Loss
    theirs: TargetSide
    positions: ComparedPositions
    levels: Sequence[Predicted]
    logits: int = LOGITS

    def sums(self) -> Tensor:
        """Return [L, ...] what `of` gives, summed over each level's positions. Gradients need all logits: see `loss`."""
        chunk = self._chunk()
        return torch.stack([chunk(*part) for part in self._parts()]).sum(0)

    def loss(self, weights: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Return the sums [L], weighted by `weights` [L] and added: a scalar.

        Gradients are computed with the sums of a chunk, so that its logits are made once and need not be kept.

        Args:
            weights: [L] weight of each level's sum.
            leaves: the parameters that heads depend on; they are given gradients, as the levels' hidden states are.
        """
        chunk, parts = self._chunk(), self._parts()
        if len(parts) == 1 or not torch.is_grad_enabled():
            return (torch.stack([chunk(*part) for part in parts]).sum(0) * weights).sum()
        most = weights.max()  # gradients are computed of larger numbers, which half precision holds
        hidden = [level.hidden for level in self.levels]
        weighted = lambda *part: (chunk(*part) * (weights / most)).sum()  # noqa: E731
        return most * _Accumulated.apply(weighted, parts, leaves, *hidden, *leaves)  # type: ignore[operator]

    @property
    def _short(self) -> bool:
        """True if the target's logits of the drafter's values are enough."""
        return not (self.theirs.known is None or self.positions.total is None or self.positions.value is None)

    def _chunk(self) -> Callable[..., Tensor]:
        """Return the function that gives the sums [L, ...] of one of the `_parts`."""
        short, known, heads = self._short, self.theirs.known, [level.head for level in self.levels]
        with torch.no_grad():
            head, places = self.theirs.head(short), self.theirs.places()

        def chunk(last: Tensor, total: Tensor | None, value: Tensor | None, at: Sequence[Tensor], *hidden: Tensor) -> Tensor:
            with torch.no_grad(), torch.autocast(last.device.type, enabled=False):
                log_p = head(last)
                log_p = log_p - total[:, None] if short and total is not None else log_p.log_softmax(-1)
                value = log_p.argmax(-1) if value is None else value
                if known is not None and places is not None:
                    log_p, value = log_p if short else log_p[:, known], places[value]
            log_q = (own(each).float().log_softmax(-1) for own, each in zip(heads, hidden, strict=True))
            return torch.stack([self.of(log_p[here], each, value[here]).sum(0) for here, each in zip(at, log_q, strict=True)])

        return chunk

    def _parts(self) -> list[tuple[Any, ...]]:
        """The arguments of each chunk: last, total, value, which of its positions every level has, and the levels' states there."""
        known, where = self.theirs.known, self.positions
        values = len(known) if self._short and known is not None else self.theirs.size
        step = chunk_of_positions(values * len(self.levels), self.logits)
        last = where.last.split(step)
        total, value = ([None] * len(last) if x is None else x.split(step) for x in (where.total, where.value))
        at = [level.at.split(step) for level in self.levels]
        hidden = [level.hidden.split([int(part.sum()) for part in here]) for level, here in zip(self.levels, at, strict=True)]
        return [
            (*each, list(here), *states)
            for *each, here, states in zip(last, total, value, zip(*at, strict=True), zip(*hidden, strict=True), strict=True)
        ]


class _Accumulated(torch.autograd.Function):
    """The sum of a function over chunks, whose gradients are accumulated chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx: Any, chunk: Callable[..., Tensor], parts: list[tuple[Any, ...]], leaves: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        levels = len(inputs) - len(leaves)
        total, states, others = torch.zeros((), device=inputs[0].device), [], [None] * len(leaves)
        for part in parts:
            hidden = [each.detach().requires_grad_() for each in part[4:]]
            with torch.enable_grad():
                value = chunk(*part[:4], *hidden)
            found = torch.autograd.grad(value, [*hidden, *leaves], allow_unused=True)
            total += value.detach()
            states.append(found[:levels])
            others = [_added(both) for both in zip(others, found[levels:], strict=True)]
        ctx.gradients = [*(torch.cat(each) for each in zip(*states, strict=True)), *others]
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, None, None, *(None if gradient is None else gradient * upstream[0] for gradient in ctx.gradients)


def _added(both: tuple[Tensor | None, Tensor | None]) -> Tensor | None:
    first, second = both
    return second if first is None else first if second is None else first + second
