"""Categorical distributions over a vocabulary, as tables."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.gumbel import LARGE
from mmspec.core.noise import Keys


@dataclass(frozen=True, slots=True)
class Categorical:
    """Distributions over V values, held as unnormalised log-probabilities so that greedy and Gumbel draws need no softmax."""

    scores: Tensor  # [..., V]

    @staticmethod
    def point(x: Tensor, size: int, dtype: torch.dtype = torch.float32) -> "Categorical":
        """Make point masses.

        Args:
            x: values [...].
            size: number of values V.
            dtype: dtype of the scores.

        Returns:
            Distributions [...].
        """
        scores = torch.full((*x.shape, size), -torch.inf, dtype=dtype, device=x.device)
        return Categorical(scores.scatter_(-1, x[..., None], 0.0))

    @staticmethod
    def of(probabilities: Tensor) -> "Categorical":
        """Make distributions from probabilities.

        Args:
            probabilities: non-negative weights [..., V]; they need not sum to 1.

        Returns:
            Distributions [...].
        """
        return Categorical(probabilities.log())

    @property
    def size(self) -> int:
        """Number of values V."""
        return self.scores.shape[-1]

    @property
    def searched(self) -> bool:
        """True where a draw searches a large table: then it is cheaper to draw one distribution after another, while draft tokens pass."""
        return self.scores.device.type == "cpu" and self.size >= LARGE

    def log_probs(self) -> Tensor:
        """Compute all log-probabilities.

        Returns:
            Normalised [..., V].
        """
        return self.scores.log_softmax(-1)

    def probs(self) -> Tensor:
        """Compute all probabilities.

        Returns:
            Normalised [..., V].
        """
        return self.scores.softmax(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.scores.gather(-1, x[..., None])[..., 0] - self.scores.logsumexp(-1)

    def log_probs_at(self, ids: Tensor) -> Tensor:
        """Compute the log-probabilities of some values.

        Args:
            ids: values [..., S].

        Returns:
            [..., S].
        """
        return self.scores.gather(-1, ids) - self.scores.logsumexp(-1, keepdim=True)

    def probs_at(self, ids: Tensor) -> Tensor:
        """Compute the probabilities of some values.

        Args:
            ids: values [..., S].

        Returns:
            [..., S].
        """
        return self.probs().gather(-1, ids)

    def prob(self, x: Tensor) -> Tensor:
        """Compute the probability of one value per distribution.

        Args:
            x: values [...].

        Returns:
            Probabilities [...].
        """
        return self.log_prob(x).exp()

    def log_ratio(self, q: "Categorical | None", x: Tensor) -> Tensor:
        own = self.log_prob(x)
        return own if q is None else own - q.log_prob(x)

    def mode(self) -> Tensor:
        return self.scores.argmax(-1)

    def sample(self, keys: Keys) -> Tensor:
        return keys.choose(self.scores)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """Find the most likely values.

        Args:
            count: how many, at most V.

        Returns:
            Their scores and the values [..., count], best first; -inf, with arbitrary values, where fewer are possible.
        """
        found = self.scores.topk(count, -1)
        return found.values, found.indices

    def distinct(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """Draw values without replacement; see `Keys.choose_distinct`.

        Args:
            keys: one stream per distribution [...].
            count: how many, at most V.

        Returns:
            The values [..., count] in the order drawn, and their scores; -inf, with arbitrary values, where fewer are possible.
        """
        values = keys.choose_distinct(self.scores, count)
        return values, self.scores.gather(-1, values)

    def draws(self, keys: Keys, columns: Tensor, x: Tensor) -> Tensor:
        return x == self.sample(keys).gather(1, columns)

    def tops(self, columns: Tensor, x: Tensor) -> Tensor:
        return x == self.mode().gather(1, columns)

    def at(self, index: Tensor) -> "Categorical":
        return Categorical(self.scores.gather(1, index[..., None].expand(*index.shape, self.scores.shape[-1])))

    def picked(self, rows: Tensor, columns: Tensor) -> "Categorical":
        """Select single distributions of a batch.

        Args:
            rows: row of each one [...].
            columns: its column [...].

        Returns:
            Distributions [...].
        """
        return Categorical(self.scores[rows, columns])

    def last(self, count: int) -> "Categorical":
        return Categorical(self.scores[:, self.scores.shape[1] - count :])

    def where(self, mask: Tensor, other: "Categorical") -> "Categorical":
        return Categorical(torch.where(mask[..., None], self.scores, other.scores))

    def cat(self, other: "Categorical") -> "Categorical":
        return Categorical(torch.cat([self.scores, other.scores], 1))

    def without(self, x: Tensor) -> "Categorical":
        """Remove one value from each distribution. A point mass on that value is left as it is.

        Args:
            x: values [...].

        Returns:
            Distributions [...].
        """
        rest = self.scores.scatter(-1, x[..., None], -torch.inf)
        return Categorical(torch.where(rest.amax(-1, keepdim=True) > -torch.inf, rest, self.scores))

    def residual(self, q: "Categorical | None", x: Tensor, weight: Tensor | None = None) -> "Categorical":
        """Make norm((weight * p - q)+). Where rounding leaves nothing positive the result is p itself: there the two are equal up to
        rounding.
        """
        if q is None and weight is None:
            return self.without(x)
        p = self.probs()
        weighted = p if weight is None else weight[..., None] * p
        rest = (weighted - (Categorical.point(x, p.shape[-1], p.dtype) if q is None else q).probs()).clamp_(min=0)
        return Categorical(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p).log())

    def mass(self, q: "Categorical", x: Tensor, weight: Tensor) -> Tensor:
        """Compute the mass of the residual before it is normalised, the sum of (weight * p - q)+. It is the same for every `x`.

        Args:
            q: the distribution draft tokens were drawn from.
            x: values [...]; not read.
            weight: [...].

        Returns:
            [...].
        """
        return (weight[..., None] * self.probs() - q.probs()).clamp_(min=0).sum(-1)

    def tv(self, q: "Categorical | None", x: Tensor) -> Tensor:
        """Compute the total variation distance to `q`.

        Args:
            q: other distributions [...]; None for a point mass on `x`.
            x: values [...].

        Returns:
            Distances [...].
        """
        if q is None:
            return 1 - self.prob(x)
        return 0.5 * (self.probs() - q.probs()).abs().sum(-1)
