"""DFlash 2 as far as its authors publish it: DFlash with convolutions inside a block, and a selector among each position's candidates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from mmspec.drafters.block.dflash import DFlash
from mmspec.drafters.block.layers import Attend, BlockLayer

_BARRED = 1e4
"""What a value that is no candidate loses: it is drawn only where every candidate is barred, by a processor say."""


class BlockConvolution(nn.Module):
    """A causal convolution before and after a part of a layer, inside blocks, whose kernels depend on what enters (DFlash 2).

    Every channel has a kernel of its own, to which its group's part of a projection is added. At first it changes nothing.

    Args:
        hidden: number of channels.
        taps: length of the kernels.
        group: channels that share the projected part.

    Raises:
        ValueError: if the groups do not divide the channels.
    """

    def __init__(self, hidden: int, taps: int, group: int):
        super().__init__()
        if min(taps, group) < 1 or hidden % group:
            raise ValueError(f"taps is {taps} and group {group}: give at least 1 of each, and a group that divides {hidden} channels")
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden).index_fill_(1, torch.tensor([0]), 1.0))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * (hidden // group), bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def forward(self, x: Tensor, inside: Callable[[Tensor], Tensor], block: int) -> Tensor:
        """Return what `inside` makes of the convolved `x` [B, Q, H], convolved; Q columns are blocks of `block`."""
        before, after = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).unbind(-3)
        return self._convolved(inside(self._convolved(x, 0, before, block)), 1, after, block)

    def _convolved(self, x: Tensor, part: int, change: Tensor, block: int) -> Tensor:
        kernel = self.base_kernel[part] + change.repeat_interleave(self.group, -1)  # [B, Q, taps, H]
        blocks = x.unflatten(1, (-1, block))
        late = [nn.functional.pad(blocks, (0, 0, tap, 0))[:, :, :block].flatten(1, 2) for tap in range(self.taps)]
        return (torch.stack(late, 2) * kernel).sum(2)


class ConvolvedLayer(BlockLayer):
    """A layer of DFlash with a convolution around its attention and one around its MLP.

    Args:
        config: of the layer.
        index: number of the layer.
        block: columns of a block.
        taps: see `BlockConvolution`.
        group: see `BlockConvolution`.
    """

    def __init__(self, config: Qwen3Config, index: int, block: int, taps: int, group: int):
        super().__init__(config, index)
        self.block = block
        self.attention_conv, self.mlp_conv = (BlockConvolution(config.hidden_size, taps, group) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Return the layer's output [B, Q, H]; see `BlockAttention.forward`."""
        x = x + self.attention_conv(self.input_layernorm(x), lambda h: self.self_attn(h, context, rope, attend), self.block)
        return x + self.mlp_conv(self.post_attention_layernorm(x), self.mlp, self.block)


class CandidateSelector(nn.Module):
    """Scores each of a position's likeliest values b after the value a before it by <A(a) * W h, B(b)>, of rank R (DFlash 2).

    Args:
        size: number of values of the target.
        values: number of values of the drafter.
        rank: R.
        hidden: width of the block's states h.
    """

    def __init__(self, size: int, values: int, rank: int, hidden: int):
        super().__init__()
        self.predecessor_codebook, self.successor_codebook = nn.Embedding(size, rank), nn.Embedding(values, rank)
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)
        nn.init.zeros_(self.successor_codebook.weight)

    def forward(self, state: Tensor, previous: Tensor) -> Tensor:
        """Return A(a) * W h [..., R] of states [..., H] and values before [...]."""
        return self.predecessor_codebook(previous) * self.hidden_projection(state)


class DFlash2(DFlash):
    """DFlash 2: q is a Markov chain along the path. Of each position's `candidates` likeliest values one is drawn, by its own logit and its
    fit to the value before.

    Its authors publish no training objective; here the selector and the rest learn by one loss, on the distribution over all values.

    Args:
        reads, sizes, size: as of `DFlash`.
        layers: number of layers.
        block: columns of a block.
        taps: length of the convolutions' kernels.
        group: channels that share a kernel's variable part.
        rank: rank of the selector.
        candidates: number of candidates.
        rest: further options of `DFlash`.

    Raises:
        ValueError: for options that contradict one another, and as `DFlash`.
    """

    kind = "dflash2"

    def __init__(
        self,
        reads: Sequence[int],
        sizes: Mapping[str, Any],
        size: int,
        layers: int = 1,
        block: int = 8,
        taps: int = 2,
        group: int = 16,
        rank: int = 64,
        candidates: int = 16,
        **rest: Any,
    ):
        super().__init__(reads, sizes, size, layers, block, **rest)
        values = self.config["values"] or size
        if min(rank, candidates) < 1 or candidates > values or self.markov_head is not None:
            raise ValueError(
                f"rank is {rank}, candidates {candidates} of {values} and markov {self.config['markov']}: a dflash2 drafter needs at least "
                "one of the first two, and no Markov head beside its selector"
            )
        self.config |= {"taps": taps, "group": group, "rank": rank, "candidates": candidates}
        self.layers = nn.ModuleList(ConvolvedLayer(self.layer_config, k, block, taps, group) for k in range(layers))
        self.candidate_selector = CandidateSelector(size, values, rank, self.hidden)
        self.candidates, self.blind = candidates, False

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`; see `DFlash.fit`."""
        hidden = config.hidden_size
        group = next(each for each in (16, 8, 4, 2, 1) if hidden % each == 0)
        return super().fit(config) | {"group": group, "rank": max(1, min(256, hidden // 4)), "candidates": min(16, config.vocab_size)}

    def feature(self, state: Tensor, previous: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what `own_logits` and `confidence` read; see `BlockNet.feature`."""
        return torch.cat([state, self.candidate_selector(state, previous)], -1), None

    def own_logits(self, feature: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's values. While training all values have some probability, afterwards the candidates alone."""
        own = super().own_logits(feature, head)
        found, ids = own.topk(self.candidates, -1)
        fit = (self.candidate_selector.successor_codebook(ids) * feature[..., None, self.hidden :]).sum(-1)
        return (own if self.training else own - _BARRED).scatter(-1, ids, (found + fit).to(own.dtype))
