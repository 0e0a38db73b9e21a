"""The protocol of distributions: what lossless rules ask of the distribution over the value of one step."""

from typing import Any, Protocol, Self

from torch import Tensor

from mmspec.core.noise import Keys


class Distribution(Protocol):
    """A batch of distributions over the value of one step, discrete or continuous. Lossless rules use only these methods."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Compute log-probabilities or log-densities.

        Args:
            x: one value per distribution [..., *value].

        Returns:
            [...].
        """
        ...

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        """Compute log p(x) / q(x).

        Args:
            q: the distribution `x` was drawn from; None for a point mass on `x`.
            x: one value per distribution [..., *value].

        Returns:
            [...].
        """
        ...

    def sample(self, keys: Keys) -> Tensor:
        """Draw one value from each distribution.

        Args:
            keys: one stream per distribution [...].

        Returns:
            Values [..., *value].
        """
        ...

    def mode(self) -> Tensor:
        """Find the most likely value of each distribution.

        Returns:
            Values [..., *value].
        """
        ...

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        """Compare values with the distributions' own draws.

        Args:
            keys: streams [B, N] of all columns.
            columns: columns [B, G] of a [B, N] batch.
            x: values [B, G, *value].

        Returns:
            bool [B, G], true where `x` is what the distribution at that column draws.
        """
        ...

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        """Compare values with the distributions' modes.

        Args:
            columns: columns [B, G] of a [B, N] batch.
            x: values [B, G, *value].

        Returns:
            bool [B, G], true where `x` is the mode of the distribution at that column.
        """
        ...

    def at(self, index: Tensor) -> Self:
        """Select columns.

        Args:
            index: columns [B, M] of a [B, N] batch.

        Returns:
            The distributions there, [B, M].
        """
        ...

    def residual(self, q: Any, x: Tensor, weight: Tensor | None = None) -> Self:
        """Make the distribution to draw from after `x` was rejected, norm((weight * self - q)+).

        Args:
            q: the distribution `x` was drawn from; None for a point mass on `x`.
            x: the rejected values [..., *value].
            weight: [...]; None for 1.

        Returns:
            Distributions [...].
        """
        ...

    def last(self, count: int) -> Self:
        """Select the last columns.

        Args:
            count: how many.

        Returns:
            The distributions of the last `count` columns.
        """
        ...

    def where(self, mask: Tensor, other: Self) -> Self:
        """Select between two batches.

        Args:
            mask: bool [...].
            other: the distributions used where `mask` is false.

        Returns:
            Distributions [...].
        """
        ...

    def cat(self, other: Self) -> Self:
        """Concatenate along the node axis.

        Args:
            other: the distributions appended to these.

        Returns:
            Both batches as one.
        """
        ...
