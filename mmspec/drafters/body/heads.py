"""Heads that a body reads draft tokens by, beside those of `mmspec.drafters.heads.medusa`."""

import torch
from torch import Tensor, nn

from mmspec.drafters.heads.medusa import Amphista, Heads, Hydra, Medusa, Recurrent


class RegressiveAttention(Heads):
    """Clover's regressive connection and attention decoder (Xiao et al. 2024, arXiv 2405.00263), one for all draft tokens.

    A node's state is its parent's, which attends to the embeddings of the pending token and the draft tokens on the path, and an MLP. At
    first it is the hidden state that the path begins with.

    Args:
        hidden: width of the hidden states.
        heads: number of draft tokens ahead.
        attention_heads: attention heads.

    Raises:
        ValueError: if the attention heads do not divide the width.
    """

    kind = "regressive-attention"

    def __init__(self, hidden: int, heads: int = 4, attention_heads: int = 4):
        super().__init__(hidden, heads, attention_heads=attention_heads)
        if attention_heads < 1 or hidden % attention_heads:
            raise ValueError(f"{attention_heads} attention heads cannot share a width of {hidden}: take a number that divides it")
        self.attention_heads = attention_heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(3))
        self.places = nn.Parameter(0.02 * torch.randn(heads, hidden))  # of values by their distance from the newest
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, hidden))
        for linear in (self.o_proj, self.mlp[2]):
            nn.init.zeros_(linear.weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.mlp[2].bias)  # type: ignore[arg-type]

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`."""
        return self._step(hidden, value[..., None, :])

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """See `Heads.advance`."""
        path = state[..., self.hidden : (level + 1) * self.hidden].unflatten(-1, (level, self.hidden))
        return self._step(state[..., : self.hidden], torch.cat([path, value[..., None, :]], -2))

    def read(self, state: Tensor, level: int) -> Tensor:
        """See `Heads.read`."""
        return state[..., : self.hidden]

    def _step(self, x: Tensor, path: Tensor) -> Tensor:
        """The state [..., (1 + heads) H] of nodes with their parents' `x` [..., H] and the values `path` [..., L, H] up to theirs."""
        before, values, after = self.norms
        many, split = path.shape[-2], (self.attention_heads, -1)
        seen = values(path) + self.places[:many].flip(0)
        query = self.q_proj(before(x)).unflatten(-1, split)[..., None, :]
        key, value = (proj(seen).unflatten(-1, split).transpose(-3, -2) for proj in (self.k_proj, self.v_proj))
        found = ((query * key).sum(-1) * query.shape[-1] ** -0.5).softmax(-1)[..., None] * value
        x = x + self.o_proj(found.sum(-2).flatten(-2))
        x = x + self.mlp(after(x))
        return nn.functional.pad(torch.cat([x, path.flatten(-2)], -1), (0, (self.most - many) * self.hidden))


class StagedAmphista(Amphista):
    """Amphista's heads behind two adaptation layers: the first half read the output of one, the others that of the next one.

    Args:
        hidden: width of the hidden states.
        heads: number of draft tokens ahead.
        attention_heads: attention heads between the drafting heads.
    """

    kind = "staged-amphista"
    stages = 2

    def start(self, hidden: Tensor, value: Tensor) -> Tensor:
        """See `Heads.start`; `hidden` is both outputs side by side."""
        first, second = hidden.chunk(2, -1)
        read = [first if k < (self.most + 1) // 2 else second for k in range(self.most)]
        return self.mixed(torch.stack(read, -2), value)


HEADS: dict[str, type[Heads]] = {head.kind: head for head in (Medusa, Hydra, Recurrent, Amphista, StagedAmphista, RegressiveAttention)}
"""How draft tokens are read that do not go through a body's layers."""
