"""Frames written by a depth transformer: each code is conditioned on the codes before it in the frame and on the backbone's state.

p(frame) = prod_k p(c_k | h, c_<k), where h depends on earlier frames only (CSM, Moshi and other pairs of a backbone and a depth
transformer; RQ-Transformer, Lee et al. 2022). For a drafted frame all predecessors of every code are known, so one run of the depth net
judges all K codes of all drafted frames; only the frame that a round commits last is written code by code.

That frame can be written in fewer than K runs. Given the noise, each code is a function of those before it, so the frame is the fixed point
of writing all codes at once from a draft: every run fixes the codes that did not change, up to and including the first that did. The
result is the frame that code-by-code writing gives (`JacobiWriter`; parallel decoding by fixed points, Song et al. 2021).
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
"""(scores [M, V] of code k, k) -> the code [M]. Its noise is fixed: the same scores always give the same code."""
DraftToken = Callable[[Tensor, Choose], Tensor]
"""(hidden [M, D], choose) -> codes [M, K], a first version of the frame. Drafts made with `choose` are right more often."""


class Depth(Protocol):
    """A depth net with its logits processors, for M frames at once."""

    @property
    def books(self) -> int:
        """Codes in a frame, K."""
        ...

    def scores(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Score every code given the codes before it, in one run of the net.

        Args:
            hidden: backbone states [M, D].
            codes: [M, K].

        Returns:
            Log-probabilities [M, K, V].
        """
        ...

    def write(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """Write codes one by one, one run of the net each.

        Args:
            hidden: backbone states [M, D].
            codes: [M, K].
            first: number of the first code to write; those before it stay.
            choose: chooses a code from its scores.

        Returns:
            Codes [M, K].
        """
        ...


class FrameWriter(Protocol):
    """A way to find a frame's codes."""

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """Write the codes of M frames.

        Args:
            depth: the depth net.
            hidden: backbone states [M, D].
            codes: [M, K].
            first: number of the first code to write; those before it stay.
            choose: chooses a code from its scores.

        Returns:
            Codes [M, K].
        """
        ...


def one_by_one(depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
    """Write a frame code by code, by K - `first` runs of the depth net.

    Args:
        depth: the depth net.
        hidden: backbone states [M, D].
        codes: [M, K].
        first: number of the first code to write; those before it stay.
        choose: chooses a code from its scores.

    Returns:
        Codes [M, K].
    """
    return depth.write(hidden, codes, first, choose)


@dataclass(frozen=True)
class JacobiWriter:
    """Write all codes at once, starting from a draft of the frame, until they are a fixed point: the same frame in at most as many runs.

    One run is enough where the draft is right up to its last code. Every run covers whole frames, so this pays where a run over K codes
    costs about as much as a run over one.

    Args:
        draft_token: makes the first codes [M, K] from (hidden, choose), such as parallel heads; None starts from the codes at hand.
    """

    draft_token: DraftToken | None = None

    def __call__(self, depth: Depth, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        if self.draft_token is not None and first < depth.books:
            codes = torch.where(torch.arange(depth.books, device=codes.device) < first, codes, self.draft_token(hidden, choose))
        for _ in range(first, depth.books):
            scores = depth.scores(hidden, codes)
            fresh = torch.stack([choose(scores[:, book], book) if book >= first else codes[:, book] for book in range(depth.books)], 1)
            stayed = (fresh == codes).long().cumprod(-1).sum(-1)
            codes = fresh
            if int(stayed.min()) >= depth.books - 1:  # the code after the unchanged ones is right, too
                break
        return codes


@dataclass(frozen=True)
class DepthFrame(FrameDistribution):
    """Distributions over frames of K codes, each conditioned on the codes before it and on the backbone's state.

    Args:
        hidden: backbone states [..., D].
        depth: the depth net.
        writer: how sampled frames are written.
    """

    hidden: Tensor
    depth: Depth
    writer: FrameWriter = one_by_one
    _cache: ValueCache = field(init=False, repr=False, compare=False, default_factory=ValueCache)
    autoregressive = True

    @property
    def books(self) -> int:
        return self.depth.books

    def codes(self, x: Tensor) -> Categorical:
        found = self._cache.get(x)
        if found is None:
            scores = self.depth.scores(self.hidden.flatten(0, -2), x.flatten(0, -2))
            found = self._cache.keep(x, Categorical(scores.reshape(*x.shape, -1)))
        return found

    def sample(self, keys: Keys) -> Tensor:
        streams = keys.branch(self.books)
        return self._written(self._blank(), 0, lambda scores, book: self._drawn(streams, scores, book))

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        streams, mine, edge = keys.branch(self.books), x.flatten(0, -2), first.flatten()

        def choose(scores: Tensor, book: int) -> Tensor:
            return torch.where(edge > book, mine[:, book], self._drawn(streams, scores, book))

        return self._written(mine, int(first.min()), choose)

    def mode(self) -> Tensor:
        """Write the most likely codes one after the other, as greedy decoding does."""
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
