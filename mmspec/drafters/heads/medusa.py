"""Heads on the target's last hidden state: Medusa, Hydra, a recurrent head and Amphista.

A head reads the hidden state after the target's newest value. Level 0 is the draft token right after the pending token. A head maps a
node's state to a feature, and the target's output embedding (or a head's own, in checkpoints that have one) maps the feature to logits.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmspec.drafters.heads.medusa_guide import HeadsGuide
from mmspec.models.target import HFSession


class Heads(nn.Module, ABC):
    """Base class of heads. States are [..., S]; their width depends on the kind.

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.

    Attributes:
        kind: name of the kind, as in config.json.
        blind: True for heads that do not read the draft tokens before theirs.
        reads: hidden states of the target that are read, numbered as in `mmspec.models.stack`.

    Raises:
        ValueError: for sizes below 1.
    """

    kind: ClassVar[str]
    blind: ClassVar[bool] = False
    reads: ClassVar[tuple[int, ...]] = (-1,)

    def __init__(self, hidden: int, heads: int, **rest: Any):
        super().__init__()
        if min(hidden, heads) < 1:
            raise ValueError(f"hidden and heads are {hidden} and {heads}: each must be at least 1")
        self.config = {"hidden": hidden, "heads": heads, **rest}
        self.hidden, self.most = hidden, heads

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`."""
        return {"hidden": config.hidden_size}

    @abstractmethod
    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """Return the pending token's state from the target's hidden state before it and its embedding, both [..., H]."""
        ...

    @abstractmethod
    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """Return the state of draft tokens of `level` (1, 2, ...) from their parents' states and their own embeddings."""
        ...

    @abstractmethod
    def read(self, state: Tensor, level: int) -> Tensor:
        """Return the feature [..., H] of the head after nodes of `level`, from their state."""
        ...

    def logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """Return logits over the target's values; `head` is the target's output embedding."""
        return head(feature)

    def own_logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """Return logits over the net's own values, which are the target's unless it has a `vocabulary`; see `logits`."""
        return self.logits(feature, level, head)

    def guide(self, session: HFSession) -> HeadsGuide:
        """Return the guide of one generation on the target session `session`."""
        return HeadsGuide(self, session)


class Residual(nn.Module):
    """x + SiLU(W x + b), with W and b 0 at first, so that a new head gives the target's own logits."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to `x` [..., width]."""
        return x + nn.functional.silu(self.linear(x))


class Medusa(Heads):
    """Medusa heads: one residual head per draft token ahead, which does not read earlier draft tokens (Stern et al. 2018; Cai et al. 2024).

    On a codec language model these are VADUSA's heads (Li et al. 2024).

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.
        layers: residual blocks per head.
        own_heads: number of values of each head's own output embedding, as in published checkpoints; 0 to use the target's.
        size: number of values of the target. Where `own_heads` is smaller, `token_map` [own_heads] holds the ids.

    Raises:
        ValueError: for sizes out of range.
    """

    kind = "medusa"
    blind = True
    token_map: Tensor

    def __init__(self, hidden: int, heads: int = 4, layers: int = 1, own_heads: int = 0, size: int = 0):
        super().__init__(hidden, heads, layers=layers, own_heads=own_heads, size=size)
        if size and not 0 < own_heads <= size:
            raise ValueError(f"own_heads is {own_heads} of the target's {size} values: it must be at least 1 and at most {size}")
        self.size = size
        if size:
            self.register_buffer("token_map", torch.arange(own_heads))
        self.blocks = nn.ModuleList(nn.Sequential(*(Residual(hidden) for _ in range(layers))) for _ in range(heads))
        self.outputs = nn.ModuleList(nn.Linear(hidden, own_heads, bias=False) for _ in range(heads if own_heads else 0))

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return hidden

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        return state

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return self.blocks[level](state)

    def logits(self, feature: Tensor, level: int, head: Any) -> Tensor:
        """See `Heads.logits`."""
        own = self.outputs[level](feature) if len(self.outputs) else head(feature)
        return own.new_full((*own.shape[:-1], self.size), -torch.inf).index_copy_(-1, self.token_map, own) if self.size else own

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Check the weights of a checkpoint before they are loaded.

        Args:
            weights: tensors by name.

        Raises:
            ValueError: unless `token_map` LongTensor [own_heads] holds distinct ids of the target.
        """
        ids = weights.get("token_map")
        if ids is not None and (len(ids.unique()) != len(ids) or ids.min() < 0 or ids.max() >= self.size):
            raise ValueError(
                f"tensor token_map holds ids {int(ids.min())} to {int(ids.max())}: {len(ids)} different ones of {self.size} are needed"
            )


class Hydra(Heads):
    """Hydra heads (Ankner et al. 2024): head i reads the hidden state and the i values after it.

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.
        layers: residual blocks per head.
    """

    kind = "hydra"

    def __init__(self, hidden: int, heads: int = 4, layers: int = 1):
        super().__init__(hidden, heads, layers=layers)
        enter = [nn.Linear((i + 2) * hidden, hidden) for i in range(heads)]
        self.enter = nn.ModuleList(enter)
        self.blocks = nn.ModuleList(nn.Sequential(*(Residual(hidden) for _ in range(layers - 1))) for _ in range(heads))
        for linear in enter:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return nn.functional.pad(torch.cat([hidden, value], -1), (0, (self.most - 1) * self.hidden))

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        seen = torch.cat([state[..., : (level + 1) * self.hidden], value], -1)
        return nn.functional.pad(seen, (0, state.shape[-1] - seen.shape[-1]))

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        inside = nn.functional.silu(self.enter[level](state[..., : (level + 2) * self.hidden]))
        return self.blocks[level](state[..., : self.hidden] + inside)


class Recurrent(Heads):
    """One recurrent head for all draft tokens (ReDrafter, Cheng et al. 2024), here a GRU cell.

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.
        width: width of the recurrent state; that of the target by default.
    """

    kind = "recurrent"

    def __init__(self, hidden: int, heads: int = 8, width: int = 0):
        width = width or hidden
        super().__init__(hidden, heads, width=width)
        self.cell = nn.GRUCell(hidden, width)
        self.enter = nn.Linear(hidden + width, hidden)
        nn.init.zeros_(self.enter.weight)
        nn.init.zeros_(self.enter.bias)

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return self._step(hidden, value.new_zeros(*value.shape[:-1], self.cell.hidden_size), value)

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        return self._step(state[..., : self.hidden], state[..., self.hidden :], value)

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return state[..., : self.hidden] + nn.functional.silu(self.enter(state))

    def _step(self, hidden: Tensor, memory: Tensor, value: Tensor) -> Tensor:
        new = self.cell(value.flatten(0, -2), memory.flatten(0, -2))
        return torch.cat([hidden, new.view(*value.shape[:-1], -1)], -1)


class Amphista(Heads):
    """Heads that attend to one another in both directions (Amphista, Li et al. 2024; with its adaptation layers: `amphista-staged`).

    Args:
        hidden: width of the target's hidden states.
        heads: number of draft tokens ahead.
        attention_heads: attention heads between the drafting heads.
    """

    kind = "amphista"
    blind = True

    def __init__(self, hidden: int, heads: int = 4, attention_heads: int = 4):
        super().__init__(hidden, heads, attention_heads=attention_heads)
        self.enter = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(heads))
        self.mix = nn.TransformerEncoderLayer(
            hidden, attention_heads, dim_feedforward=2 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.leave = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return self.mixed(hidden[..., None, :].expand(*hidden.shape[:-1], self.most, -1), value)

    def mixed(self, hidden: Tensor, value: Tensor) -> Tensor:
        """Return the pending token's state from the hidden states [..., K, H] that the heads read, and its embedding [..., H]."""
        x = torch.stack([enter(torch.cat([own, value], -1)) for enter, own in zip(self.enter, hidden.unbind(-2), strict=True)], -2)
        return (hidden + self.leave(self.mix(x.flatten(0, -3)).view_as(x))).flatten(-2)

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        return state

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return state[..., level * self.hidden : (level + 1) * self.hidden]
