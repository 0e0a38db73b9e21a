"""Assistants that read the target's keys and values in place of a cache of their own (Gemma-4).

A node's input is the embedding of its value beside a state: the target's last one before the pending token, the assistant's own output at
its parent for draft tokens. All nodes stand at the position of the pending token and attend to the values committed before it, and to no
draft token. So nothing has to be cached or rolled back, and trees cost what their nodes cost.
"""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import Fresh, check_width, pick
from mmspec.models.compat.shared_states import drafted, sharing_layers
from mmspec.models.families.base import attention_mask
from mmspec.models.target import HFSession

_SLIDING = "sliding_attention"


class SharedStates:
    """A transformers assistant that reads the target's keys and values, as a source of drafts.

    Args:
        model: a `Gemma4AssistantForCausalLM` or `Gemma4UnifiedAssistantForCausalLM`.
    """

    kind = "shared-states"

    def __init__(self, model: Any):
        self.model = model

    def guide(self, session: HFSession) -> "SharedStatesGuide":
        """Return the guide of one generation on the target session `session`."""
        return SharedStatesGuide(self.model, session)


class SharedStatesGuide(RowState):
    """Guide of such an assistant: the target's newest state in every row, and the assistant's states of the draft under way.

    Args:
        model: the assistant.
        session: the target's session.

    Raises:
        ValueError: for a target of another size, or without keys and values that the assistant can read.
    """

    by_row = ("hidden",)

    most = None

    def __init__(self, model: Any, session: HFSession):
        target = session.target.model
        self.layers = _layers(model, target)
        check_width(type(model).__name__, model.config.backbone_hidden_size, target)
        session.watch((-1,))
        self.model, self.session, self.embed = model, session, target.get_input_embeddings()
        self.window = model.config.get_text_config().sliding_window
        self.hidden: Tensor | None = None  # [B, 1, H] before each row's pending token
        self.states: Tensor | None = None  # [B, N, H] of the draft under way

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return None if self.hidden is None else pending

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        first = 0 if self.states is None else self.states.shape[1]
        assert self.hidden is not None
        before = self.hidden if self.states is None else pick(self.states, draft.parents[:, first:])
        inputs = torch.cat([self.embed(draft.nodes[:, first:]), before], -1)
        logits, states = self._run(inputs)
        self.states = states if self.states is None else torch.cat([self.states, states], 1)
        return Scored(self.session.distribution(logits, draft, first), states)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.states = None

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.hidden = Fresh.of(draft, scored, verdict).packed().features[:, -1:]

    def _run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and states of columns [B, M, 2 H], which attend to each row's committed slots: those behind them are of earlier drafts."""
        session, columns = self.session, inputs.shape[1]
        view, lengths = session.view(0), session.lengths[:, None]
        behind = lengths - 1 - torch.arange(view, device=lengths.device)  # [B, S] 0 for the newest committed value
        seen = dict.fromkeys(self.layers, behind >= 0)
        if _SLIDING in seen:
            seen[_SLIDING] = seen[_SLIDING] & (behind <= self.window)
        masks = {kind: attention_mask(each[:, None].expand(-1, columns, -1), self.model) for kind, each in seen.items()}
        held: dict[str, Any] = {kind: session.cache.layers[layer] for kind, layer in self.layers.items()}
        shared = {kind: (layer.keys[:, :, :view], layer.values[:, :, :view]) for kind, layer in held.items()}
        return drafted(self.model, inputs, lengths.expand(-1, columns), masks, shared)


def _layers(model: Any, target: Any) -> dict[str, int]:
    """The target's layers that the assistant reads, by kind. ValueError where they do not fit it."""
    name, reads = type(model).__name__, model.config.get_text_config()
    theirs = target.config.get_text_config(decoder=True)
    found = sharing_layers(target.config)
    if not set(reads.layer_types) <= set(found):
        raise ValueError(
            f"{name} reads the keys and values of a Gemma-4 target, but the target is {type(target).__name__}: use another drafter"
        )
    if reads.vocab_size != theirs.vocab_size:
        raise ValueError(f"this {name} drafts {reads.vocab_size} values, but the target has {theirs.vocab_size}: it is for another target")
    for layer, kind in enumerate(reads.layer_types):
        mine, other = reads.per_layer_config[layer], theirs.per_layer_config[found[kind]]
        if (mine.head_dim, mine.num_key_value_heads) != (other.head_dim, other.num_key_value_heads):
            raise ValueError(
                f"this {name} reads keys of {mine.num_key_value_heads} heads, {mine.head_dim} wide, but the target has "
                f"{other.num_key_value_heads} of {other.head_dim}: it is for another target"
            )
    return found
