"""Heads on the states of a block: DSpark's bias of a draft token by the one before it, and its estimate of acceptance."""

import torch
from torch import Tensor, nn

KINDS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """A bias of rank R on the logits of a draft token, from the value before it (DSpark, arXiv 2607.05147).

    With the embedding e of the value before and the block's state h, the bias is W c: c is e ("vanilla"), e gated by h and e ("gated"), or
    the output of a recurrent cell over the path ("rnn"). W is 0 at first. So the distribution of a draft token depends on the path to it,
    and a draft is drawn from their product.

    Args:
        size: number of values of the target.
        values: number of values of the drafter.
        rank: R.
        hidden: width of the block's states.
        kind: "vanilla", "gated" or "rnn".

    Raises:
        ValueError: for another kind, or a rank below 1.
    """

    def __init__(self, size: int, values: int, rank: int, hidden: int, kind: str = "vanilla"):
        super().__init__()
        if kind not in KINDS or rank < 1:
            raise ValueError(
                f"the Markov head is of kind {kind!r} and rank {rank}: give one of {', '.join(KINDS)}, and a rank of 1 or more"
            )
        self.rank = rank
        self.markov_w1 = nn.Embedding(size, rank)
        self.markov_w2 = nn.Linear(rank, values, bias=False)
        self.gate_proj = nn.Linear(hidden + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank) if kind == "rnn" else None
        nn.init.zeros_(self.markov_w2.weight)

    def forward(self, state: Tensor, previous: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return c and e, both [..., R], and the memory [..., R] of the nodes.

        Args:
            state: [..., H] the block's states.
            previous: [...] values before the draft tokens.
            memory: [..., R] of the nodes before; None where there are none.
        """
        e = self.markov_w1(previous)
        memory = torch.zeros_like(e) if memory is None else memory
        if self.gate_proj is not None:
            return self.gate_proj(torch.cat([state, e], -1)).sigmoid() * e, e, memory
        if self.joint_proj is not None:
            gate, candidate, out = self.joint_proj(torch.cat([memory, e, state], -1)).chunk(3, -1)
            gate = gate.sigmoid()
            return out.tanh(), e, gate * memory + (1 - gate) * candidate.tanh()
        return e, e, memory


class ConfidenceHead(nn.Module):
    """Logit of the probability that the target accepts a draft token, before the token is drawn (DSpark).

    It reads the block's state and the embedding of the value before, so it depends on the path, but not on the token itself.

    Args:
        width: how wide both are together.
    """

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> Tensor:
        """Return logits [...] for `seen` [..., width]."""
        return self.proj(seen)[..., 0]
