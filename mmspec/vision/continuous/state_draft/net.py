"""The net of a state draft: one decoder layer over pairs of a token and the target's last hidden state before it.

From the pair it predicts the target's next last hidden state, and the target's own head, or a smaller one, gives the distribution of the
next token (EAGLE, Li et al. 2024, arXiv 2401.15077, for vectors in place of token ids).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.continuous.ar import ContinuousARConfig, DiffusionHead, MixtureHead
from mmspec.vision.families.llamagen_layers import DecoderBlock, rotary

SHARED = ("hidden_size", "channels", "head")
"""Fields of the config that the target must share."""


class StateDraftConfig(ContinuousARConfig):
    """Sizes of a `StateDraft`.

    Args:
        own_head: the draft has a head of its own, of the sizes `head_width` and `head_blocks` or `components`; else the target's is used.
        rest: options of `ContinuousARConfig`; `hidden_size`, `channels` and `head` are the target's.

    Raises:
        ValueError: as `ContinuousARConfig`.
    """

    model_type = "continuous-state-draft"

    def __init__(self, own_head: bool = False, **rest: Any):
        self.own_head = own_head
        super().__init__(**{"num_hidden_layers": 1, **rest})


class StateDraft(PreTrainedModel):
    """One decoder layer that predicts the next last hidden state of a target of continuous tokens.

    It has no embedding of its own: tokens are embedded by the target.

    Args:
        config: the sizes.
    """

    config_class = StateDraftConfig  # pyright: ignore[reportAssignmentType]
    config: StateDraftConfig
    _supports_sdpa = True

    def __init__(self, config: StateDraftConfig):
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderBlock(config, 0)])
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = (DiffusionHead if config.head == "diffusion" else MixtureHead)(config) if config.own_head else None
        self.post_init()

    @staticmethod
    def beside(target: Any, own_head: bool = False, **sizes: Any) -> "StateDraft":
        """Make an untrained draft for a target; its output norm begins as the target's.

        Args:
            target: a `ContinuousAR`, or a `NextStep`.
            own_head: give it a head of its own.
            sizes: further options of `StateDraftConfig`, such as `head_width`.

        Returns:
            The draft.
        """
        theirs = target.config
        names = (
            "hidden_size",
            "channels",
            "head",
            "num_attention_heads",
            "intermediate_size",
            "head_steps",
            "sigma_out",
            "grid",
            "rms_norm_eps",
        )
        found = {name: getattr(theirs, name) for name in names if hasattr(theirs, name)}
        draft = StateDraft(StateDraftConfig(own_head=own_head, **{**found, **sizes}))
        with torch.no_grad():
            draft.norm.weight.copy_(target.norm.weight)
        return draft

    def forward(self, states: Tensor, embeds: Tensor, cells: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Predict the target's last hidden states behind tokens.

        Args:
            states: [R, M, D] last hidden states before each token: the target's, or the draft's own.
            embeds: [R, M, D] the target's embeddings of the tokens.
            cells: LongTensor [R, M], places of the tokens in raster order.
            mask: bool or additive [R, 1, M, S]; causal by default.
            cache: a layer-wise key-value cache, or None.

        Returns:
            [R, M, D].
        """
        x = self.layers[0](self.fc(torch.cat([embeds, states], -1)), rotary(cells, self.config), mask, cache)
        return self.norm(x)

    def unrolled(self, states: Tensor, embeds: Tensor, cells: Tensor, levels: int) -> Sequence[Tensor]:
        """Predict states as in drafts of several tokens, for training.

        At level 0 every token stands beside the target's state; at level k the last k + 1 tokens of each path are drafted ones, so that
        the last k of them stand beside the draft's own states of the levels before.

        Args:
            states: [R, M, D] the target's states before each token.
            embeds: [R, M, D] embeddings of the tokens.
            cells: LongTensor [R, M], their places.
            levels: number of levels.

        Returns:
            For each level k, predictions [R, M - k, D] behind the tokens from the k-th on.
        """
        cache, found, columns = _Concatenated(), [], torch.arange(cells.shape[1], device=cells.device)
        for level in range(levels):
            at = columns[level:]
            parts = [columns[None, :] <= at[:, None] - level]
            parts += [columns[None, earlier:] == at[:, None] - level + earlier for earlier in range(1, level + 1)]
            mask = torch.cat(parts, 1)[None, None]
            found.append(self(states, embeds[:, level:], cells[:, level:], mask, cache))
            states = found[-1][:, :-1]
        return found


class _Concatenated:
    """Keys and values of all levels so far, side by side."""

    def __init__(self):
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append keys and values [R, H, M, w], and return all."""
        self.keys.append(keys)
        self.values.append(values)
        return torch.cat(self.keys, 2), torch.cat(self.values, 2)
