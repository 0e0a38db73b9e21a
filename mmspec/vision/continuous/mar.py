"""A masked model of continuous tokens (MAR, Li et al. 2024, arXiv 2406.11838): any set of hidden cells given any set of visible ones.

One transformer with bidirectional attention reads all cells; hidden cells hold a mask vector. The published model has two transformers, the
first of which leaves hidden cells out. The head is that of causal models (`DiffusionHead`), conditioned on the cell's state.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.continuous.ar import ContinuousARConfig, DiffusionHead
from mmspec.vision.families.llamagen_layers import ClassEmbedding, DecoderBlock, rotary


class MaskedARConfig(ContinuousARConfig):
    """Sizes of a `MaskedAR`: those of a causal model with a diffusion head.

    Args:
        iterations: iterations in which a picture is generated; by default one a cell.
        rest: options of `ContinuousARConfig`.

    Raises:
        ValueError: for another head.
    """

    model_type = "masked-ar"

    def __init__(self, iterations: int | None = None, **rest: Any):
        super().__init__(**rest)
        if self.head != "diffusion":
            raise ValueError(f"head is {self.head!r}: a masked model has a diffusion head")
        self.iterations = self.grid**2 if iterations is None else iterations


class MaskedAR(PreTrainedModel):
    """Masked model (MAR, Li et al. 2024): hidden states of all cells from visible tokens; `head` gives distributions of hidden tokens."""

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
        """Return the states [R, N, D] of all cells.

        Args:
            classes: LongTensor [R]; `config.classes` for no class.
            tokens: float [R, N, d] in raster order.
            masked: bool [R, N]; masked tokens are not read.
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
        """Return the states [R, N, D] that predict `tokens` [R, N, d], for training; the loss counts `masked` [R, N] cells."""
        return self(classes, tokens, masked)


def random_masks(rows: int, cells: int, generator: torch.Generator | None = None) -> Tensor:
    """Return random masks [rows, cells] bool with 1 to `cells` hidden cells, on the generator's device.

    Every number of hidden cells is equally likely, and so is every set of that size: the distribution of masks when decoding cell by cell.
    """
    device = "cpu" if generator is None else generator.device
    hidden = torch.randint(1, cells + 1, (rows, 1), generator=generator, device=device)
    return torch.rand(rows, cells, generator=generator, device=device).argsort(1) < hidden
