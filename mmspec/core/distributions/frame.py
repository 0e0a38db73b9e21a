"""Frames: steps that commit K codes at once, as codecs with several codebooks have them.

`Frame` has codes that are independent given earlier frames (delay patterns, as of MusicGen and Dia). `DepthFrame` of
`core.distributions.depth_frame` conditions each code on the codes before it in its frame (a depth transformer, as of CSM). Every rule that
uses only the methods of `Distribution` judges whole frames as it judges tokens. The token rule is then the maximal coupling of two
distributions of frames: accept with min(1, P/Q), else draw from norm((P - Q)+) by thinning. It accepts a frame with probability
1 - TV(P, Q), where judging code by code accepts with the product over the codes.
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
    """Base of distributions over whole frames. They have no table of V^K entries; rules that read one are refused."""

    advice = "a distribution of frames has no table of values: judge frames by coupled, match, greedy, token or PerCode, in chains"
    autoregressive: ClassVar[bool]  # the distribution of a code depends on the codes before it in its frame

    @property
    @abstractmethod
    def books(self) -> int:
        """Codes in a frame, K."""
        ...

    @abstractmethod
    def codes(self, x: Tensor) -> Categorical:
        """Compute the distribution of every code given the codes before it in the frame.

        Args:
            x: frames [..., K].

        Returns:
            Distributions [..., K].
        """

    @property
    def streams(self) -> int:
        return self.books  # code k is drawn by stream k of K

    @abstractmethod
    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        """Draw the later codes of frames anew, each by the stream that `sample` uses for it.

        Args:
            x: frames [..., K].
            first: number [...] of the first code drawn anew.
            keys: streams [...].

        Returns:
            Frames [..., K].
        """

    def log_prob(self, x: Tensor) -> Tensor:
        return self.codes(x).log_prob(x).sum(-1)


@dataclass(frozen=True)
class Frame(FrameDistribution):
    """Distributions over frames of K codes, independent of one another."""

    heads: Tensor  # [..., K, V] unnormalised log-probabilities of every code; -inf where a book has fewer codes
    autoregressive = False

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
