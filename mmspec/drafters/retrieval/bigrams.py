"""Bigram counts of training data: a smoothed, sparse first-order Markov model."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Bigrams:
    """A(y | x) = (count of x y + alpha) / (count of x + alpha * size) over the values `first` to `first + size - 1` (a codec's codes).

    For values outside, and after values never seen, A is 1 / size.
    """

    pairs: Tensor  # [M] x * size + y, ascending; x and y counted from `first`
    counts: Tensor  # [M]
    size: int
    first: int = 0
    alpha: float = 0.1

    def __post_init__(self):
        if self.size < 1 or not 0 < self.alpha < float("inf"):
            raise ValueError(f"size and alpha are {self.size} and {self.alpha}: at least 1 value, and an alpha above 0, are needed")
        totals = torch.zeros(self.size, dtype=torch.long, device=self.counts.device)
        object.__setattr__(self, "_totals", totals.index_add_(0, self.pairs // self.size, self.counts))

    @classmethod
    def count(cls, sequences: Iterable[Tensor], size: int, first: int = 0, alpha: float = 0.1) -> Self:
        """Count the pairs of training sequences [L] whose values are both in range. Pairs do not span sequences."""
        found = []
        for ids in sequences:
            x, y = ids[:-1].long() - first, ids[1:].long() - first
            inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
            found.append((x * size + y)[inside])
        pairs, counts = torch.cat([torch.empty(0, dtype=torch.long), *found]).unique(return_counts=True)
        return cls(pairs, counts, size, first, alpha)

    def log_prob(self, before: Tensor, after: Tensor) -> Tensor:
        """Return log A(after | before) in double, for values of any broadcastable shapes."""
        x, y = torch.broadcast_tensors(before - self.first, after - self.first)
        known = (x >= 0) & (x < self.size) & (y >= 0) & (y < self.size)
        x, y = torch.where(known, x, 0), torch.where(known, y, 0)
        met = self._count(x * self.size + y).double()
        share = (met + self.alpha) / (self._totals[x] + self.alpha * self.size)  # type: ignore[attr-defined]
        return torch.where(known, share, 1 / self.size).log()

    def _count(self, pair: Tensor) -> Tensor:
        if len(self.pairs) == 0:
            return torch.zeros_like(pair)
        place = torch.searchsorted(self.pairs, pair).clamp(max=len(self.pairs) - 1)
        return torch.where(self.pairs[place] == pair, self.counts[place], 0)

    def to(self, device: torch.device | str) -> Self:
        """Return this object with its tensors on `device`."""
        return replace(self, pairs=self.pairs.to(device), counts=self.counts.to(device))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file atomically."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        numbers = {"size": str(self.size), "first": str(self.first), "alpha": repr(self.alpha)}
        save_file({"pairs": self.pairs.cpu(), "counts": self.counts.cpu()}, temporary, metadata={"format": "pt", **numbers})
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. ValueError for a file that is missing, broken or of another kind."""
        try:
            with safe_open(path, framework="pt") as file:
                numbers, tensors = file.metadata() or {}, {name: file.get_tensor(name).clone() for name in file.keys()}
        except FileNotFoundError:
            raise ValueError(f"bigrams {path} do not exist: count them on training data and save them there") from None
        except (SafetensorError, OSError) as error:
            raise ValueError(f"bigrams {path} cannot be read as safetensors: {' '.join(str(error).split())}") from None
        if set(tensors) != {"pairs", "counts"} or not {"size", "first", "alpha"} <= set(numbers):
            raise ValueError(f"{path} holds no bigrams: it must hold pairs and counts, with size, first and alpha in its metadata")
        return cls(tensors["pairs"], tensors["counts"], int(numbers["size"]), int(numbers["first"]), float(numbers["alpha"]))
