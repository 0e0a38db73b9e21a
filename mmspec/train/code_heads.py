"""Training of heads that draft a frame's codes in parallel, on backbone states and the frames written from them."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.drafters.heads.code_heads import CodeHeads
from mmspec.train.loop import Fit, fit


def train_code_heads(heads: CodeHeads, hidden: Tensor, codes: Tensor, plan: Fit, checkpoint: Path, batch: int = 256) -> list[float]:
    """Fit `heads` in place to `codes` [N, K] written from states `hidden` [N, D]; returns every step's loss in nats a code.

    The codes should be the target's own, sampled as they will be. ValueError for data that does not fit the heads.
    """
    if len(hidden) != len(codes) or len(codes) == 0:
        raise ValueError(f"there are {len(hidden)} states and {len(codes)} frames: give one frame for every state, and at least one")
    if codes.shape[1] != heads.books:
        raise ValueError(f"frames have {codes.shape[1]} codes, but the heads were made for {heads.books} books")

    def loss(model: torch.nn.Module, turn: int) -> Tensor:
        chosen = torch.randint(len(codes), (batch,), generator=torch.Generator().manual_seed(turn)).to(codes.device)
        first, rest = model(hidden[chosen], codes[chosen])
        nats = F.cross_entropy(rest.flatten(0, 1), codes[chosen, 1:].flatten())
        return nats if heads.first is None else nats + F.cross_entropy(first, codes[chosen, 0]) / (heads.books - 1)

    return fit(heads, loss, plan, checkpoint, title="code heads")
