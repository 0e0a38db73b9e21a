"""Weights of an ensemble's views: fixed (IbED), adapted to verified tokens (TABED), or by confidence.

V views, B rows, M or K columns, X values, C candidate weightings. All state is per row and stays on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from mmspec.utils.names import shown

_TINY = 1e-30  # a view's probability may be 0 where the target's is not
_CELLS = 1 << 23  # probabilities held at once while weightings are compared


class Weighing(Protocol):
    """The weights of one generation."""

    learns: bool

    def of(self, said: Tensor) -> Tensor:
        """Return weights [V, B, M] or [V, B, 1], summing to 1 over views, for distributions `said` [V, B, M, X]."""
        ...

    def learn(self, p: Tensor, said: Tensor, real: Tensor) -> None:
        """Update the weights.

        Args:
            p: [B, K, X] the target's distributions at verified positions.
            said: [V, B, K, X] the views' distributions there.
            real: [B, K] bool, the positions that count.
        """
        ...


class Weights(Protocol):
    """How an ensemble is mixed. Holds no state between generations."""

    def begin(self, rows: int, views: int, device: torch.device) -> Weighing:
        """Return the weights of one generation of `rows` rows and `views` views."""
        ...


@dataclass(frozen=True)
class Static:
    """Constant weights; None for equal ones (IbED, Lee et al. 2025)."""

    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        given = self.weights
        if given is not None and (min(given, default=-1.0) < 0 or sum(given) <= 0):
            raise ValueError(f"weights are {given}: give one number for every view, none below 0 and not all 0")

    def begin(self, rows: int, views: int, device: torch.device) -> "_Fixed":
        """Return the weights of one generation of `rows` rows and `views` views."""
        given = (1.0,) * views if self.weights is None else self.weights
        if len(given) != views:
            raise ValueError(f"{len(given)} weights for {views} views: give one number for every view")
        weights = torch.tensor(given, device=device)
        return _Fixed(weights / weights.sum())


class _Fixed:
    learns = False

    def __init__(self, weights: Tensor):
        self.weights = weights  # [V]

    def of(self, said: Tensor) -> Tensor:
        return self.weights[:, None, None]

    def learn(self, p: Tensor, said: Tensor, real: Tensor) -> None:
        pass


@dataclass(frozen=True)
class ConfidenceWeights:
    """Takes each draft token from the view whose largest probability is highest."""

    def begin(self, rows: int, views: int, device: torch.device) -> "_Surest":
        """Return the weights of one generation of `rows` rows and `views` views."""
        return _Surest()


class _Surest(_Fixed):
    def __init__(self):
        pass

    def of(self, said: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(said.amax(-1).argmax(0), len(said)).movedim(-1, 0).to(said.dtype)


@dataclass(frozen=True)
class Adaptive:
    """Weights that would have served best on the verified positions so far (TABED, Lee et al. 2026).

    Of a grid of weightings, takes those whose mixture's most likely value was the target's most often, and of these the one with the least
    summed KL(p || q). The weights are equal until the first round has been verified.

    Args:
        step: spacing of the grid; 1 / `step` must be a whole number.
        window: number of newest verified positions that count; None for all. The first rejected position of a round counts too.

    Raises:
        ValueError: for a step or window out of range.
    """

    step: float = 0.1
    window: int | None = None

    def __post_init__(self):
        if not 0 < self.step <= 1 or abs(1 / self.step - round(1 / self.step)) > 1e-6:
            raise ValueError(f"step is {self.step}: it must divide 1 into whole parts, as 0.1 does")
        _check_window(self.window)

    def begin(self, rows: int, views: int, device: torch.device) -> "_Searching":
        """Return the weights of one generation of `rows` rows and `views` views."""
        return _Searching(simplex(views, round(1 / self.step), device), rows, self.window)


@dataclass(frozen=True)
class InverseKL:
    """Weights in proportion to 1 / the summed KL(p || q) of each view: cheaper than `Adaptive` (an option of TABED).

    Args:
        window: number of newest verified positions that count; None for all.
    """

    window: int | None = None

    def __post_init__(self):
        _check_window(self.window)

    def begin(self, rows: int, views: int, device: torch.device) -> "_Inverse":
        """Return the weights of one generation of `rows` rows and `views` views."""
        return _Inverse(torch.eye(views, device=device), rows, self.window)


def _check_window(window: int | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window is {window}: look back 1 position or more, or give None for all of them")


def simplex(views: int, parts: int, device: torch.device | None = None) -> Tensor:
    """Return [C, V] all weights that are multiples of 1 / `parts` and sum to 1: for tenths 11 for two views, 66 for three, 286 for four."""
    bars = combinations(range(parts + views - 1), views - 1)
    found = [[b - a - 1 for a, b in zip((-1, *bar), (*bar, parts + views - 1), strict=True)] for bar in bars]
    return torch.tensor(found, dtype=torch.float32, device=device) / parts


class _Searching:
    """How candidate weightings have done: per row and candidate, how often they were right and their summed KL."""

    learns = True

    def __init__(self, candidates: Tensor, rows: int, window: int | None):
        self.candidates, self.window = candidates, window
        count, device = len(candidates), candidates.device
        width = 1 if window is None else window
        self.scores = torch.zeros(rows, width, 2, count, device=device)  # of the last positions, or the sum of all of them
        self.real = torch.zeros(rows, width, dtype=torch.bool, device=device)

    def of(self, said: Tensor) -> Tensor:
        alike = torch.full_like(self.candidates[0], 1 / len(said))
        weights = torch.where(self.real.any(1)[:, None], self.chosen(), alike)
        return weights.T[..., None]

    def chosen(self) -> Tensor:
        """[B, V]"""
        hits, kl = self._sums()
        best = hits == hits.amax(1, keepdim=True)
        return self.candidates[torch.where(best, kl, torch.inf).argmin(1)]

    def learn(self, p: Tensor, said: Tensor, real: Tensor) -> None:
        scores = compare_mixtures(p, said, self.candidates)
        if self.window is None:
            self.scores = self.scores + (scores * real[..., None, None]).sum(1, keepdim=True)
            self.real = self.real | real.any(1, keepdim=True)
            return
        scores, real = torch.cat([self.scores, scores], 1), torch.cat([self.real, real], 1)
        last = torch.argsort(real.long(), dim=1, stable=True)[:, -self.window :]
        self.scores = scores.gather(1, last[..., None, None].expand(-1, -1, *scores.shape[2:]))
        self.real = real.gather(1, last)

    def _sums(self) -> tuple[Tensor, Tensor]:
        hits, kl = (self.scores * self.real[..., None, None]).sum(1).unbind(1)
        return hits, kl


class _Inverse(_Searching):
    def chosen(self) -> Tensor:
        _, kl = self._sums()
        inverse = 1 / kl.clamp_min(1e-6)
        return inverse / inverse.sum(1, keepdim=True)


def compare_mixtures(p: Tensor, said: Tensor, candidates: Tensor) -> Tensor:
    """[B, K, 2, C] for distributions `p` [B, K, X] and mixtures of `said` [V, B, K, X]: is the best value the same, and KL(p || q)."""
    p, (rows, positions, values) = p.to(said.dtype), p.shape
    own = torch.xlogy(p, p).sum(-1)
    best, found = p.argmax(-1), []
    for part in candidates.split(max(1, _CELLS // max(1, rows * positions * values))):
        mixed = torch.einsum("cv,vbkx->cbkx", part, said)
        kl = own - torch.einsum("bkx,cbkx->cbk", p, mixed.clamp_min(_TINY).log())
        found.append(torch.stack([(mixed.argmax(-1) == best).to(p.dtype), kl]))
    return torch.cat(found, 1).permute(2, 3, 0, 1)


NAMED: dict[str, Weights] = {"uniform": Static(), "adaptive": Adaptive(), "inverse-kl": InverseKL(), "confidence": ConfidenceWeights()}


def weights_of(weights: "str | Sequence[float] | Weights") -> Weights:
    """What `weights` stands for: a name, a number for every view, or a Weights object. ValueError lists the names."""
    if isinstance(weights, str):
        if weights not in NAMED:
            raise ValueError(f"unknown weights {weights!r}; valid: {', '.join(NAMED)}, or one number for every view")
        return NAMED[weights]
    if not hasattr(weights, "begin") and not isinstance(weights, Sequence):
        raise ValueError(f"weights is {shown(weights)}: give {', '.join(NAMED)}, or one number for every view")
    return weights if hasattr(weights, "begin") else Static(tuple(weights))  # type: ignore[return-value,arg-type]
