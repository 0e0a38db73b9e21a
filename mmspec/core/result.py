"""What a request returns, whatever its modality."""

from dataclasses import dataclass, field

from torch import Tensor

from mmspec.core.stats import Stats


@dataclass(frozen=True)
class Result:
    """The base of every result.

    Attributes:
        tokens: what was generated, right-padded: token ids LongTensor [B, S], frames of codes [B, S, K], codes of images
            [B, height, width], beams [B, K, L], or vectors, float [B, S, d].
        lengths: LongTensor [B], how many entries of a row of `tokens` were generated; the rest is padding.
        stats: counts and seconds, over all rows.
    """

    tokens: Tensor = field(repr=False)
    lengths: Tensor
    stats: Stats


@dataclass(frozen=True)
class Generation(Result):
    """New tokens [B, S, *value] of a text or of any other sequence."""

    @property
    def sequences(self) -> Tensor:
        """`tokens`, under the name that transformers has for them."""
        return self.tokens
