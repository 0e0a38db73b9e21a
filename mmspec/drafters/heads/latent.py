"""Heads for speech recognisers: latent expansion and independent projections (Raj et al. 2024, arXiv 2409.08148).

Head k reads the target's last hidden state alone and gives the distribution of the token k places after the next one. Training takes the
sum of their cross-entropies. Drafts are verified as any draft is (blockwise parallel decoding), or kept unchecked where a head is sure
(`mmspec.core.rules.lossy.always_accept.Threshold`).
"""

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.features.eagle3_parts import DraftVocabulary, SharedHead, over_target
from mmspec.drafters.heads.medusa import Heads


class SpeechHeads(Heads, DraftVocabulary):
    """Base of the two: heads that read the state before the pending token, over all of the target's values or a part of them."""

    blind = True
    norm = None

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`."""
        return {"hidden": config.hidden_size, "size": config.vocab_size}

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return hidden

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        return state

    def logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """See `Heads.logits`."""
        return over_target(self.own_logits(feature, level, head), self.vocabulary, self.config["size"])

    def _check_sizes(self, size: int, values: int) -> None:
        if values < 0 or (values and values > size):
            raise ValueError(f"values is {values} of the target's {size} values: give at most as many, or 0 for all")


class Latent(SpeechHeads):
    """Latent expansion (Raj et al. 2024, arXiv 2409.08148): head k gives the logits U L_k h with the target's output embedding U.

    Every L_k [H, H] is the identity at first, so a new head gives the target's own logits. K values a call take (K - 1) H^2 weights, where
    independent projections need (K - 1) H V.

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.
        size: number of values of the target; needed with `values`.
        values: number of values that are drafted, with the target's rows for them; 0 for all. `know` says which.

    Raises:
        ValueError: for sizes out of range.
    """

    kind = "latent"

    def __init__(self, hidden: int, heads: int = 4, size: int = 0, values: int = 0):
        super().__init__(hidden, heads, size=size, values=values)
        self._check_sizes(size, values)
        self.lm_head, self.shared_head = None, bool(values)
        if values:
            self.set_vocabulary(size, values, hidden, shared_head=True)
        self.maps = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(heads))
        for latent in self.maps:
            nn.init.eye_(latent.weight)  # type: ignore[arg-type]

    def attach(self, target: Any) -> None:
        """Take the rows of the target's output embedding for the drafted values; see `DraftVocabulary.attach`."""
        if isinstance(self.lm_head, SharedHead):
            self.lm_head.attach(target, self.d2t, next(self.maps.parameters()))

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return self.maps[level](state)

    def own_logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """See `Heads.own_logits`."""
        return head(feature) if self.lm_head is None else self.lm_head(feature)


class IndependentHeads(SpeechHeads):
    """Independent projections (Stern et al. 2018; Raj et al. 2024): head k is an output embedding of its own [V, H].

    Args:
        hidden: width of the target's hidden states.
        size: number of values of the target.
        heads: number of draft tokens ahead.
        values: number of values that are drafted; 0 for all. `know` says which.

    Raises:
        ValueError: for sizes out of range.
    """

    kind = "independent"

    def __init__(self, hidden: int, size: int, heads: int = 4, values: int = 0):
        super().__init__(hidden, heads, size=size, values=values)
        self._check_sizes(size, values)
        self.set_vocabulary(size, values or size, hidden, shared_head=True)
        self.lm_head, self.shared_head = None, False  # the maps of the vocabulary only
        self.outputs = nn.ModuleList(nn.Linear(hidden, values or size, bias=False) for _ in range(heads))

    @property
    def vocabulary(self) -> Tensor | None:
        """The target id of each of the drafted values; None if they are all."""
        return None if len(self.d2t) == len(self.t2d) else torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def start_from(self, target: Any) -> None:
        """Initialise every head with the rows of the target's output embedding. Call `know` first."""
        weight = target.get_output_embeddings().weight.detach()
        for output in self.outputs:
            output.weight.data.copy_(weight if self.vocabulary is None else weight[self.vocabulary])  # type: ignore[operator]

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return state

    def own_logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """See `Heads.own_logits`."""
        return self.outputs[level](feature)
