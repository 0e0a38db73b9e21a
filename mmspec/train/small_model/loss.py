"""The loss of a small model: a divergence from its target's distributions at every token of a text, in chunks of positions.

DistillSpec (Zhou et al. 2024) compares the divergences and whose text they are taken on. Logits of a large vocabulary do not fit into
memory for a whole batch: both heads run a chunk of positions at a time, whose gradients are computed at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.guided import head_of
from mmspec.train.comparison import ComparedPositions, Comparison, Predicted, SeparateLevels, TargetSide
from mmspec.train.losses import Loss, taken_and_agreed, weighted_loss
from mmspec.train.parallel import shared_counts
from mmspec.train.states.memory import LOGITS

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
        logits: about how many logits of one model are held at once.

    Raises:
        ValueError: for unknown losses, and a model whose logits are not its head's product with its last hidden states.
    """

    def __init__(self, model: Any, target: Any, losses: Mapping[str, float], logits: int = LOGITS // 2):
        super().__init__()
        self.model, self.most_logits = model, logits
        self._target = (target,)  # in a tuple, or it would be a submodule
        self._loss, self._heads = weighted_loss(dict(losses)), (logits_map(model), logits_map(target))

    def forward(self, window: TextWindow) -> Tensor:
        """Return the mean loss of `window` over its tokens, a scalar; of several processes, over the tokens of all their windows."""
        found, goal, value = self._compared(window)
        count = shared_counts(torch.tensor([len(value)], device=value.device))
        leaves = [parameter for parameter in self.model.get_output_embeddings().parameters() if parameter.requires_grad]
        return self._comparison(self._loss, found, ComparedPositions(goal, None, value)).loss(1 / count, leaves)

    @torch.no_grad()
    def acceptance(self, window: TextWindow) -> tuple[float, float]:
        """Return the mean over the tokens of `window` of the token rule's acceptance (1 - TV), and how often the likeliest ids agree."""
        found, goal, value = self._compared(window)
        sums = self._comparison(taken_and_agreed, found, ComparedPositions(goal, None, None)).sums()
        taken, agreed = (sums[0] / max(1, len(value))).tolist()
        return taken, agreed

    def _compared(self, window: TextWindow) -> tuple[Tensor, Tensor, Tensor]:
        """Last hidden states of both models before every token that counts [N, H], and these tokens [N]."""
        (target,) = self._target
        counted = window.own[:, 1:]
        states = hidden_states(target, window.ids) if window.states is None else window.states
        return hidden_states(self.model, window.ids, True)[:, :-1][counted], states[:, :-1][counted], window.ids[:, 1:][counted]

    def _comparison(self, of: Loss, found: Tensor, positions: ComparedPositions) -> Comparison:
        """Both models' distributions where the small model's last hidden states are `found` [N, H]."""
        every = torch.ones(len(found), dtype=torch.bool, device=found.device)
        levels = SeparateLevels([Predicted(found, self._heads[0], every)])
        return Comparison(of, TargetSide(self._target[0]), positions, levels, self.most_logits)


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
    head, ids = head_of(model), torch.arange(_PROBE, device=model.device)[None]
    expected, found = model(input_ids=ids, use_cache=False).logits.float(), head(hidden_states(model, ids)).float()
    if not torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item()):
        raise ValueError(
            f"the logits of {type(model).__name__} are not its output head's product with its last hidden states: "
            "it cannot be distilled in chunks of positions"
        )
    return head
