"""What a beam search reads of a model's distributions: some tokens and the sum of all others, or log-probabilities after processors."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ProcessedLogProbs:
    """Log-probabilities after processors. As in transformers' beam search they are added up as they are, and not normalised again.

    Args:
        scores: [..., V].
    """

    scores: Tensor

    def at(self, index: Tensor) -> "ProcessedLogProbs":
        """Select distributions; see `TokensAndRest.at`."""
        return ProcessedLogProbs(self.scores.gather(1, index[..., None].expand(*index.shape, self.scores.shape[-1])))

    def log_probs_at(self, ids: Tensor) -> Tensor:
        """Return what stands for some tokens `ids` [..., S], [..., S]."""
        return self.scores.gather(-1, ids)


@dataclass(frozen=True, slots=True)
class TokensAndRest:
    """Distributions over a vocabulary, as tables of C tokens and of the rest together.

    Args:
        scores: unnormalised log-probabilities [..., C + 1]: those of the tokens, then the log-sum-exp over all others.
        tokens: the tokens [C], ascending.
    """

    scores: Tensor
    tokens: Tensor

    def at(self, index: Tensor) -> "TokensAndRest":
        """Select distributions.

        Args:
            index: which of the second dimension, LongTensor [B, M].

        Returns:
            Distributions [B, M].
        """
        return TokensAndRest(self.scores.gather(1, index[..., None].expand(*index.shape, self.scores.shape[-1])), self.tokens)

    def log_probs_at(self, ids: Tensor) -> Tensor:
        """Compute the log-probabilities of some tokens, which must be among those kept.

        Args:
            ids: tokens [..., S].

        Returns:
            [..., S], normalised over the whole vocabulary.
        """
        place = torch.searchsorted(self.tokens, ids).clamp_max(len(self.tokens) - 1)
        return self.scores.gather(-1, place) - self.scores.logsumexp(-1, keepdim=True)
