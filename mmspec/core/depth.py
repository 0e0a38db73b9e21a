"""Frames written by a depth transformer: code k of a frame has a law given the codes before it in the frame and the backbone's state.

p(frame) = prod_k p(c_k | h, c_<k), and h depends on earlier frames only (CSM, Moshi and other pairs of a backbone and a depth
transformer; RQ-Transformer, Lee et al. 2022). A drafted frame tells every code its predecessors, so one run of the depth net judges
all K codes of all drafted frames at once; only the one frame that a round settles last is written code by code.

That frame need not be written one code a run either. Given the noise, each code is a function of those before it, so the frame is the
fixed point of writing all codes at once from a guess: every run settles the run of codes that stayed as they were, and one more. It is
the very frame that code-by-code writing gives, in as many runs as the guess is bad (`Jacobi`; parallel decoding by fixed points, Song
et al. 2021).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.frame import Left, _at, rejection
from mmspec.core.laws import Categorical
from mmspec.core.noise import Keys

Choose = Callable[[Tensor, int], Tensor]
"""(scores [M, V] of code k, k) -> the code [M]."""


class Depth(Protocol):
    """A depth net behind its processors, for M frames at once."""

    books: int

    def told(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Scores [M, K, V] of every code, given the codes before it in `codes` [M, K]. One run."""
        ...

    def written(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """`codes` [M, K] with those from `first` on written one by one, a run each."""
        ...


class Writer(Protocol):
    """How a frame's codes are found."""

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor: ...


def one_by_one(depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
    """Code by code: K runs of the depth net less `first`."""
    return depth.written(hidden, codes, first, choose)


@dataclass(frozen=True)
class Jacobi:
    """All codes at once from a guess, until they stay as they are: the same frame, in at most as many runs.

    `guess` [M, D] -> [M, K] says where to begin: a net of parallel heads, say. None begins from the codes at hand. Runs are of the
    whole frame, so this pays where a run of K codes costs about what a run of one does.
    """

    guess: Callable[[Tensor], Tensor] | None = None

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        books = torch.arange(depth.books, device=codes.device)
        if self.guess is not None:
            codes = torch.where(books < first, codes, self.guess(hidden))
        for _ in range(first, depth.books):
            scores = depth.told(hidden, codes)
            fresh = torch.stack([choose(scores[:, book], book) if book >= first else codes[:, book] for book in range(depth.books)], 1)
            same = torch.equal(fresh, codes)
            codes = fresh
            if same:
                break
        return codes


@dataclass(frozen=True)
class DepthFrame:
    """Laws over frames of K codes, each code given the ones before it and the backbone's state."""

    hidden: Tensor  # [..., D]
    depth: Depth
    writer: Writer = one_by_one
    _told: list = field(default_factory=list, repr=False, compare=False)  # the last frames asked about, and what was said of them

    @property
    def books(self) -> int:
        return self.depth.books

    def codes(self, x: Tensor) -> Categorical:
        """The law of every code, given the frame's codes before it in `x` [..., K]: [..., K]."""
        if not self._told or self._told[0] is not x:  # rules ask for chances and meters of the same frames
            scores = self.depth.told(self.hidden.flatten(0, -2), x.flatten(0, -2))
            self._told[:] = x, Categorical(scores.view(*x.shape, -1))
        return self._told[1]

    def log_prob(self, x: Tensor) -> Tensor:
        return self.codes(x).log_prob(x).sum(-1)

    def sample(self, keys: Keys) -> Tensor:
        streams = keys.branch(self.books)
        return self._write(None, 0, lambda scores, book: self._drawn(streams, scores, book))

    def mode(self) -> Tensor:
        """Greedy, code by code: what the class's own greedy decoding gives."""
        return self._write(None, 0, lambda scores, book: scores.argmax(-1))

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        own = keys[rows, columns].branch(self.books).choose(self.at(columns).codes(x).scores)
        return (own == x).all(-1)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return (self.at(columns).codes(x).mode() == x).all(-1)

    def completed(self, x: Tensor, settled: Tensor, keys: Keys) -> Tensor:
        """`x` [..., K] up to its first code that is not `settled` [..., K], that one included; the codes behind it are drawn anew."""
        run = settled.long().cumprod(-1).sum(-1).clamp(max=self.books - 1)  # the first that is not settled
        streams, first = keys.branch(self.books), int(run.min()) + 1
        mine, edge = x.flatten(0, -2), run.flatten()

        def choose(scores: Tensor, book: int) -> Tensor:
            return torch.where(edge < book, self._drawn(streams, scores, book), mine[:, book])

        return x if first >= self.books else self._write(x, first, choose)

    def at(self, index: Tensor) -> "DepthFrame":
        return self._of(_at(self.hidden, index))

    def last(self, count: int) -> "DepthFrame":
        return self._of(self.hidden[:, self.hidden.shape[1] - count :])

    def where(self, mask: Tensor, other: "DepthFrame") -> "DepthFrame":
        return self._of(torch.where(mask[..., None], self.hidden, other.hidden))

    def cat(self, other: "DepthFrame") -> "DepthFrame":
        return self._of(torch.cat([self.hidden, other.hidden], 1))

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Left:
        return Left(self, q, x, weight)

    def tv(self, q: Any, x: Tensor) -> Tensor:
        """As `Frame.tv`."""
        return rejection(self, q, x)

    def _drawn(self, streams: Keys, scores: Tensor, book: int) -> Tensor:
        """Code `book` of every frame [M], from `scores` [M, V] by `streams` [..., K]."""
        return streams[..., book].choose(scores.view(*self.hidden.shape[:-1], -1)).flatten()

    def _of(self, hidden: Tensor) -> "DepthFrame":
        return replace(self, hidden=hidden, _told=[])

    def _write(self, codes: Tensor | None, first: int, choose: Choose) -> Tensor:
        hidden = self.hidden.flatten(0, -2)
        codes = hidden.new_zeros(len(hidden), self.books, dtype=torch.long) if codes is None else codes.flatten(0, -2)
        return self.writer(self.depth, hidden, codes, first, choose).view(*self.hidden.shape[:-1], self.books)
