"""Frames: steps that commit K codes at once, as codecs with several codebooks have them.

`Frame` is the distribution of codes that are independent given what came before (delay patterns, as of MusicGen and Dia). Where each code
has a distribution given the codes before it in its frame (a depth transformer, as of CSM), `depth.DepthFrame` stands beside it. Both are
distributions like any other, so every rule that asks a distribution no more than `core.distributions.categorical.Distribution` offers
judges whole frames as it judges tokens. The token rule then is
the maximal coupling of two distributions of frames: accept with min(1, P/Q), else draw from norm((P - Q)+) by thinning. It accepts a frame
with 1 - TV(P, Q), where code after code would accept the product of the codes' own chances.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.thinning import ImplicitDistribution
from mmspec.core.noise import Keys


class FrameDistribution(ImplicitDistribution):
    """What distributions of whole frames share. They have no table of V^K entries: what reads one is refused in one line."""

    advice = "a distribution of frames has no table over its values: judge frames by coupled, match, greedy, token or PerCode, in chains"
    hangs: ClassVar[bool]  # does the distribution of a code hang on the codes before it in its frame?

    @property
    @abstractmethod
    def books(self) -> int: ...

    @abstractmethod
    def codes(self, x: Tensor) -> Categorical:
        """The distribution of every code, given the frame's codes before it in `x` [..., K]: [..., K]."""

    @property
    def streams(self) -> int:
        return self.books  # code k is drawn by stream k of K

    @abstractmethod
    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        """`x` [..., K] with the codes from book `first` [...] on drawn anew, each by the stream that `sample` draws it by."""

    def log_prob(self, x: Tensor) -> Tensor:
        return self.codes(x).log_prob(x).sum(-1)


@dataclass(frozen=True)
class Frame(FrameDistribution):
    """Distributions over frames of K codes, independent of one another."""

    heads: Tensor  # [..., K, V] unnormalised log-probabilities of every code; -inf where a book has fewer codes
    hangs = False

    @property
    def books(self) -> int:
        return self.heads.shape[-2]

    def codes(self, x: Tensor) -> Categorical:
        return Categorical(self.heads)

    def sample(self, keys: Keys) -> Tensor:
        return keys.branch(self.books).choose(self.heads)

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        return torch.where(torch.arange(self.books, device=x.device) < first[..., None], x, self.sample(keys))

    def mode(self) -> Tensor:
        return self.heads.argmax(-1)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.sample(keys), columns)).all(-1)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return (x == _at(self.mode(), columns)).all(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> "Frame":
        return Frame(self.heads[rows, columns])

    def last(self, count: int) -> "Frame":
        return Frame(self.heads[:, self.heads.shape[1] - count :])

    def where(self, mask: Tensor, other: "Frame") -> "Frame":
        return Frame(torch.where(mask[..., None, None], self.heads, other.heads))

    def cat(self, other: "Frame") -> "Frame":
        return Frame(torch.cat([self.heads, other.heads], 1))


def _at(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, N, K] at columns `index` [B, M]."""
    return values[torch.arange(len(index), device=index.device)[:, None], index]
