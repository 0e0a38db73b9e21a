"""The loss of a small model: a divergence from its target's distributions at every token of a text, in chunks of positions.

DistillSpec (Zhou et al. 2024) compares the divergences and whose text they are taken on. Logits of a large vocabulary do not fit into
memory for a whole batch: both heads run a chunk of positions at a time, whose gradients are computed at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.guided import head_of
from mmspec.train.comparison import ComparedPositions, Comparison, Predicted, SeparateLevels, TargetSide
from mmspec.train.losses import Loss, taken_and_agreed, weighted_loss
from mmspec.train.parallel import shared_counts
from mmspec.train.small_model.masks import MaskColumns, refuse_unmasked
from mmspec.train.states.memory import LOGITS

_PROBE = 4  # ids on which a head is compared with the model


@dataclass(frozen=True)
class TextWindow:
    """Windows of text, padded behind.

    Attributes:
        ids: LongTensor [B, W].
        own: bool [B, W], tokens on whose distributions the loss is taken: those that a model wrote after a prompt.
        states: the target's last hidden states [B, W, H] where they are kept; None: the target runs.
        seeds: one for each row, from which mask columns are drawn; None: the rows' numbers.
    """

    ids: Tensor
    own: Tensor
    states: Tensor | None = None
    seeds: tuple[int, ...] | None = None

    def to(self, device: torch.device | str) -> "TextWindow":
        """Return the windows on `device`."""
        states = None if self.states is None else self.states.to(device)
        return TextWindow(self.ids.to(device), self.own.to(device), states, self.seeds)


class SmallModelLoss(nn.Module):
    """A small model and its loss over windows as one module, so that several processes can share the training.

    The target is neither trained nor saved.

    Args:
        model: the small model.
        target: the target, frozen, with the same ids.
        losses: names and weights of `mmspec.train.losses`.
        logits: about how many logits of one model are held at once.
        masks: mask columns, for a model that is to draft a block in one forward; None for an ordinary one.

    Raises:
        ValueError: for unknown losses, a model whose logits are not its head's product with its last hidden states, and, with masks, a
            model that has layers with states.
    """

    def __init__(self, model: Any, target: Any, losses: Mapping[str, float], logits: int = LOGITS // 2, masks: MaskColumns | None = None):
        super().__init__()
        if masks is not None:
            refuse_unmasked(model)
        self.model, self.most_logits, self.masks = model, logits, masks
        self._target = (target,)  # in a tuple, or it would be a submodule
        self._loss, self._heads = weighted_loss(dict(losses)), (logits_map(model), logits_map(target))

    @property
    def mask_id(self) -> int | None:
        """The mask token of a model that is to draft a block."""
        return None if self.masks is None else self.masks.mask_id

    def choose_mask(self, ids: Tensor, special: Sequence[int]) -> None:
        """Choose the mask token by the text, if there are masks and none is named; see `MaskColumns.fitted`."""
        if self.masks is not None:
            self.masks = self.masks.fitted(ids, self.model.config.get_text_config(decoder=True).vocab_size, special)

    def forward(self, window: TextWindow) -> Tensor:
        """Return the mean loss of `window` over its tokens, a scalar; of several processes, over the tokens of all their windows.

        With mask columns the tokens count once for every column that foretells them.
        """
        found, goal, value, _ = self._compared(window)
        count = shared_counts(torch.tensor([len(value)], device=value.device))
        leaves = [parameter for parameter in self.model.get_output_embeddings().parameters() if parameter.requires_grad]
        return self._comparison(self._loss, found, ComparedPositions(goal, None, value)).loss(1 / count, leaves)

    @torch.no_grad()
    def acceptance(self, window: TextWindow) -> tuple[float, float]:
        """Return the mean over the tokens of `window` of the token rule's acceptance (1 - TV), and how often the likeliest ids agree."""
        taken, agreed, count = self.acceptance_sums(window)[0].tolist()
        return taken / max(1.0, count), agreed / max(1.0, count)

    @torch.no_grad()
    def acceptance_sums(self, window: TextWindow) -> Tensor:
        """Return what `acceptance` is the mean of, for the draft tokens of a block one by one.

        Args:
            window: some windows.

        Returns:
            [K, 3]: the sums of 1 - TV and of agreements, and their number; K is 1 without masks.
        """
        found, goal, _, depths = self._compared(window)
        sums = []
        for depth in range(1 if self.masks is None else self.masks.tokens):
            here = depths == depth
            if not here.any():
                sums.append(torch.zeros(3, device=found.device))
                continue
            part = self._comparison(taken_and_agreed, found[here], ComparedPositions(goal[here], None, None)).sums()
            sums.append(torch.cat([part[0], here.sum()[None].to(part)]))
        return torch.stack(sums)

    def _compared(self, window: TextWindow) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Last hidden states of both models before every token that counts [N, H], these tokens [N], and the masks before them [N]."""
        (target,) = self._target
        states = hidden_states(target, window.ids) if window.states is None else window.states
        if self.masks is None:
            counted = window.own[:, 1:]
            found, value = hidden_states(self.model, window.ids, True)[:, :-1][counted], window.ids[:, 1:][counted]
            return found, states[:, :-1][counted], value, torch.zeros_like(value)
        seeds = tuple(range(len(window.ids))) if window.seeds is None else window.seeds
        columns = self.masks.run(self.model, window.ids, window.own, seeds)
        row, column = columns.counted.nonzero(as_tuple=True)
        place = columns.positions[row, column]
        return columns.hidden[row, column], states[row, place], window.ids[row, place + 1], columns.depths[column]

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
