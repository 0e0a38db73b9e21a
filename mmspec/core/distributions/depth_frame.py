"""Frames written by a depth transformer: code k of a frame has a distribution given the codes before it in the frame and the backbone's
state.

p(frame) = prod_k p(c_k | h, c_<k), and h depends on earlier frames only (CSM, Moshi and other pairs of a backbone and a depth
transformer; RQ-Transformer, Lee et al. 2022). A drafted frame tells every code its predecessors, so one run of the depth net judges
all K codes of all drafted frames at once; only the one frame that a round commits last is written code by code.

That frame need not be written one code a run either. Given the noise, each code is a function of those before it, so the frame is the
fixed point of writing all codes at once from a draft token: every run commits the codes that stayed as they were, up to the first that did
not, and that one, too. It is the very frame that code-by-code writing gives, in as many runs as the draft token is bad (`JacobiWriter`;
parallel decoding by fixed points, Song et al. 2021).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.frame import FrameDistribution
from mmspec.core.distributions.value_cache import ValueCache
from mmspec.core.noise import Keys

Choose = Callable[[Tensor, int], Tensor]
"""(scores [M, V] of code k, k) -> the code [M]. The noise is in it: the same scores give the same code whenever it is asked."""
DraftToken = Callable[[Tensor, Choose], Tensor]
"""(hidden [M, D], choose) -> codes [M, K]: where to begin. A draft token that chooses as the depth net does is right more often."""


class Depth(Protocol):
    """A depth net behind its processors, for M frames at once."""

    @property
    def books(self) -> int: ...

    def told(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Scores [M, K, V] of every code, given the codes before it in `codes` [M, K]. One run."""
        ...

    def written(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """`codes` [M, K] with those from `first` on written one by one, a run each."""
        ...


class FrameWriter(Protocol):
    """How a frame's codes are found."""

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor: ...


def one_by_one(depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
    """Code by code: K runs of the depth net less `first`."""
    return depth.written(hidden, codes, first, choose)


@dataclass(frozen=True)
class JacobiWriter:
    """All codes at once from a draft token, until they are known to be right: the same frame, in at most as many runs.

    `draft_token` says where to begin: parallel heads, say. None begins from the codes at hand. One run is enough where the draft token is
    right up to its last code. Runs are of whole frames, so this pays where a run of K codes costs about what a run of one does.
    """

    draft_token: DraftToken | None = None

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        if self.draft_token is not None and first < depth.books:
            codes = torch.where(torch.arange(depth.books, device=codes.device) < first, codes, self.draft_token(hidden, choose))
        for _ in range(first, depth.books):
            scores = depth.told(hidden, codes)
            fresh = torch.stack([choose(scores[:, book], book) if book >= first else codes[:, book] for book in range(depth.books)], 1)
            stayed = (fresh == codes).long().cumprod(-1).sum(-1)
            codes = fresh
            if int(stayed.min()) >= depth.books - 1:  # the code behind those that stayed was told right, too
                break
        return codes


@dataclass(frozen=True)
class DepthFrame(FrameDistribution):
    """Distributions over frames of K codes, each code given the ones before it and the backbone's state."""

    hidden: Tensor  # [..., D]
    depth: Depth
    writer: FrameWriter = one_by_one
    _memo: ValueCache = field(init=False, repr=False, compare=False, default_factory=ValueCache)
    hangs = True

    @property
    def books(self) -> int:
        return self.depth.books

    def codes(self, x: Tensor) -> Categorical:
        said = self._memo.get(x)
        if said is None:
            scores = self.depth.told(self.hidden.flatten(0, -2), x.flatten(0, -2))
            said = self._memo.keep(x, Categorical(scores.reshape(*x.shape, -1)))
        return said

    def sample(self, keys: Keys) -> Tensor:
        streams = keys.branch(self.books)
        return self._written(self._blank(), 0, lambda scores, book: self._drawn(streams, scores, book))

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        streams, mine, edge = keys.branch(self.books), x.flatten(0, -2), first.flatten()

        def choose(scores: Tensor, book: int) -> Tensor:
            return torch.where(edge > book, mine[:, book], self._drawn(streams, scores, book))

        return self._written(mine, int(first.min()), choose)

    def mode(self) -> Tensor:
        """Greedy, code by code: what the class's own greedy decoding gives."""
        return self._written(self._blank(), 0, lambda scores, book: scores.argmax(-1))

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        own = keys[rows, columns].branch(self.books).choose(self.at(columns).codes(x).scores)
        return (own == x).all(-1)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return (self.at(columns).codes(x).mode() == x).all(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> "DepthFrame":
        return replace(self, hidden=self.hidden[rows, columns])

    def last(self, count: int) -> "DepthFrame":
        return replace(self, hidden=self.hidden[:, self.hidden.shape[1] - count :])

    def where(self, mask: Tensor, other: "DepthFrame") -> "DepthFrame":
        return replace(self, hidden=torch.where(mask[..., None], self.hidden, other.hidden))

    def cat(self, other: "DepthFrame") -> "DepthFrame":
        return replace(self, hidden=torch.cat([self.hidden, other.hidden], 1))

    def _drawn(self, streams: Keys, scores: Tensor, book: int) -> Tensor:
        """Code `book` of every frame [M], from `scores` [M, V] by `streams` [..., K]."""
        return streams[..., book].choose(scores.reshape(*self.hidden.shape[:-1], -1)).flatten()

    def _blank(self) -> Tensor:
        return torch.zeros(self.hidden[..., 0].numel(), self.books, dtype=torch.long, device=self.hidden.device)

    def _written(self, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """`codes` [M, K] from book `first` on, as frames [..., K]."""
        hidden = self.hidden.flatten(0, -2)
        return self.writer(self.depth, hidden, codes, first, choose).view(*self.hidden.shape[:-1], self.books)
