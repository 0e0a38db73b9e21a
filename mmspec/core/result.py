"""Base class of the results of all modalities."""

from dataclasses import dataclass, field

from torch import Tensor

from mmspec.core.stats import Stats


@dataclass(frozen=True)
class Result:
    """Base class of results.

    Attributes:
        tokens: what was generated, right-padded: token ids LongTensor [B, S], frames of codes [B, S, K], codes of images
            [B, height, width], beams [B, K, L], or vectors, float [B, S, d].
        lengths: LongTensor [B], number of generated entries of each row of `tokens`; the rest is padding.
        stats: counts and seconds, over all rows.
    """

    tokens: Tensor = field(repr=False)
    lengths: Tensor
    stats: Stats


@dataclass(frozen=True)
class Generation(Result):
    """Result with new tokens [B, S, *value] of a text or of any other sequence."""

    @property
    def sequences(self) -> Tensor:
        """Same as `tokens`; the name in transformers."""
        return self.tokens
