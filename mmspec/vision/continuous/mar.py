"""A masked model of continuous tokens (MAR, Li et al. 2024, arXiv 2406.11838): any set of hidden cells given any set of seen ones.

One transformer looks both ways over all cells; a hidden cell holds a mask vector in place of its token. The published model runs two, of
which the first leaves hidden cells out. The head is a causal model's own (`DiffusionHead`): a token's chain is given its cell's state.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.continuous.ar import ContinuousARConfig, DiffusionHead
from mmspec.vision.families.llamagen_layers import ClassEmbedding, DecoderBlock, rotary


class MaskedARConfig(ContinuousARConfig):
    """As a causal model's, with a diffusion head. `iterations` are the rounds a picture is written in: by default one a cell."""

    model_type = "masked-ar"

    def __init__(self, iterations: int | None = None, **rest: Any):
        super().__init__(**rest)
        if self.head != "diffusion":
            raise ValueError(f"head is {self.head!r}: a masked model has a diffusion head")
        self.iterations = self.grid**2 if iterations is None else iterations


class MaskedAR(PreTrainedModel):
    """Masked model (MAR, Li et al. 2024): hidden states of all cells from the visible tokens; `head` gives the distribution of a hidden
    one's token.
    """

    config_class = MaskedARConfig  # pyright: ignore[reportAssignmentType]
    config: MaskedARConfig
    _supports_sdpa = True

    def __init__(self, config: MaskedARConfig):
        super().__init__(config)
        self.cls_embedding = ClassEmbedding(config)
        self.mask_embedding = nn.Embedding(1, config.hidden_size)
        self.tok_projection = nn.Linear(config.channels, config.hidden_size)
        self.places = nn.Embedding(config.grid**2 + 1, config.hidden_size)  # of the class token, and of every cell
        self.layers = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = DiffusionHead(config)
        self.post_init()

    def forward(self, classes: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
        """The states [R, N, D] of all cells of pictures of `classes` [R], number `config.classes` standing for no class.

        `tokens` [R, N, d] are in raster order; those that are `masked` [R, N] bool are not read, whatever they hold.
        """
        seen = self.tok_projection(tokens.to(self.tok_projection.weight.dtype))
        cells = torch.where(masked[..., None], self.mask_embedding.weight[0], seen)
        x = F.pad(cells, (0, 0, 1, 0)) + self.places.weight + self.cls_embedding(classes)  # the class reaches every cell
        places = torch.arange(-1, cells.shape[1], device=cells.device).expand(len(cells), -1)
        rope, everything = rotary(places, self.config), torch.ones(1, 1, 1, x.shape[1], dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, rope, everything, None)
        return self.norm(x)[:, 1:]

    def states(self, classes: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
        """What training reads: the states [R, N, D] that foretell `tokens` [R, N, d]; a loss counts the `masked` [R, N] ones."""
        return self(classes, tokens, masked)


def random_masks(rows: int, cells: int, generator: torch.Generator | None = None) -> Tensor:
    """Which cells to hide, [rows, cells] bool: 1 to all of them, every number as often, and any set of a size as likely.

    This is what decoding meets one cell at a time. On the generator's device.
    """
    device = "cpu" if generator is None else generator.device
    hidden = torch.randint(1, cells + 1, (rows, 1), generator=generator, device=device)
    return torch.rand(rows, cells, generator=generator, device=device).argsort(1) < hidden
