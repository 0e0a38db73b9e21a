"""The loss of a small model: a divergence from its target's distributions at every token of a text, in chunks of positions.

DistillSpec (Zhou et al. 2024) compares the divergences and whose text they are taken on. Logits of a large vocabulary do not fit into
memory for a whole batch, so both heads run a chunk of positions at a time, and again in the backward pass.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmspec.drafters.guided import head_of
from mmspec.train.losses import weighted_loss

CHUNK_LOGITS = 1 << 24
"""Largest number of logits of one model that are held at once."""
_PROBE = 4  # ids on which a head is compared with the model


@dataclass(frozen=True)
class TextWindow:
    """Windows of text, padded behind.

    Attributes:
        ids: LongTensor [B, W].
        own: bool [B, W], tokens on whose distributions the loss is taken: those that a model wrote after a prompt.
        states: the target's last hidden states [B, W, H] where they are kept; None: the target runs.
    """

    ids: Tensor
    own: Tensor
    states: Tensor | None = None

    def to(self, device: torch.device | str) -> "TextWindow":
        """Return the windows on `device`."""
        return TextWindow(self.ids.to(device), self.own.to(device), None if self.states is None else self.states.to(device))


class SmallModelLoss(nn.Module):
    """A small model and its loss over windows as one module, so that several processes can share the training.

    The target is neither trained nor saved.

    Args:
        model: the small model.
        target: the target, frozen, with the same ids.
        losses: names and weights of `mmspec.train.losses`.
        chunk: positions whose logits are held at once; as many as `CHUNK_LOGITS` allows by default.

    Raises:
        ValueError: for unknown losses, and a model whose logits are not its head's product with its last hidden states.
    """

    def __init__(self, model: Any, target: Any, losses: Mapping[str, float], chunk: int | None = None):
        super().__init__()
        size = target.get_output_embeddings().weight.shape[0]
        self.model, self.chunk = model, chunk or max(1, CHUNK_LOGITS // size)
        self._target = (target,)  # in a tuple, or it would be a submodule
        self._loss, self._heads = weighted_loss(dict(losses)), (logits_map(model), logits_map(target))

    def forward(self, window: TextWindow) -> Tensor:
        """Return the mean loss of `window` over its tokens, a scalar."""
        found, goal, value = self._compared(window)
        parts = [self._summed(*part) for part in self._chunks(found, goal, value)]
        return torch.stack(parts).sum() / max(1, len(value))

    @torch.no_grad()
    def acceptance(self, window: TextWindow) -> tuple[float, float]:
        """Return the mean over the tokens of `window` of the token rule's acceptance (1 - TV), and how often the likeliest ids agree."""
        found, goal, value = self._compared(window)
        taken = agree = 0.0
        for part in self._chunks(found, goal, value):
            log_q, log_p = self._logs(*part[:2])
            taken += torch.minimum(log_p.exp(), log_q.exp()).sum().item()
            agree += (log_p.argmax(-1) == log_q.argmax(-1)).sum().item()
        return taken / max(1, len(value)), agree / max(1, len(value))

    def _compared(self, window: TextWindow) -> tuple[Tensor, Tensor, Tensor]:
        """Last hidden states of both models before every token that counts [N, H], and these tokens [N]."""
        (target,) = self._target
        counted = window.own[:, 1:]
        states = hidden_states(target, window.ids) if window.states is None else window.states
        return hidden_states(self.model, window.ids, True)[:, :-1][counted], states[:, :-1][counted], window.ids[:, 1:][counted]

    def _chunks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(tensor.split(self.chunk) for tensor in tensors), strict=True)

    def _summed(self, found: Tensor, goal: Tensor, value: Tensor) -> Tensor:
        """The summed loss of one chunk; nothing of the size of the vocabulary is kept for the backward pass."""
        if not torch.is_grad_enabled():
            return self._chunk_loss(found, goal, value)
        return checkpoint(self._chunk_loss, found, goal, value, use_reentrant=False)  # type: ignore[return-value]

    def _chunk_loss(self, found: Tensor, goal: Tensor, value: Tensor) -> Tensor:
        log_q, log_p = self._logs(found, goal)
        return self._loss(log_p, log_q, value).sum()

    def _logs(self, found: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """log q and log p [N, V]."""
        own, theirs = self._heads
        with torch.no_grad():
            log_p = theirs(goal).float().log_softmax(-1)
        return own(found).float().log_softmax(-1), log_p


def hidden_states(model: Any, ids: Tensor, gradients: bool = False) -> Tensor:
    """Run a causal model's decoder.

    Args:
        model: the model.
        ids: LongTensor [B, W], padded behind.
        gradients: keep what the backward pass needs.

    Returns:
        Its last hidden states [B, W, H].
    """
    with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
        return model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state


@torch.no_grad()
def logits_map(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the map of a model from last hidden states [..., H] to logits [..., V].

    Raises:
        ValueError: if the model's own logits are others.
    """
    config, head = model.config.get_text_config(decoder=True), head_of(model)
    factor = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)  # Cohere; Granite

    def scaled(states: Tensor) -> Tensor:
        return head(states) if factor == 1 else factor * head(states)

    ids = torch.arange(_PROBE, device=model.device)[None]
    expected, found = model(input_ids=ids, use_cache=False).logits.float(), scaled(hidden_states(model, ids)).float()
    if not torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item()):
        raise ValueError(
            f"the logits of {type(model).__name__} are not its output head's product with its last hidden states: "
            "it cannot be distilled in chunks of positions"
        )
    return scaled
