"""Pictures as continuous tokens, one after the other: a causal backbone over latents, and a head that says the next token's density.

The backbone is a LlamaGen's (Sun et al. 2024); what it writes are vectors, not codes, as in GIVT (Tschannen et al. 2024, arXiv 2312.02116;
the mixture head) and in the causal rows of MAR (Li et al. 2024, 2406.11838; the diffusion head, a small net with adaptive layer norm).
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMParallelScheduler
from diffusers.models.embeddings import TimestepEmbedding
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.families.llamagen_network import ClassEmbedding, DecoderBlock, LlamaGenConfig, rotary

HEADS = ("diffusion", "mixture")
TRAINED_STEPS = 1024
"""Noise levels a diffusion head is trained on. Samplers take a part of them: 8, 16, 32 and 64 divide it."""


class ContinuousARConfig(LlamaGenConfig):
    """`grid` x `grid` tokens of `channels` numbers each. `head_width` and `head_blocks` are of diffusion heads, `components` of mixtures.

    `sigma_out` is the noise on every token that is a part of the model's distribution, in units of a token's deviation; `head_steps` the
    steps its diffusion chain takes, and `every` at how many of its states apart the head is run. All three may be chosen anew for every
    generation.
    """

    model_type = "continuous-ar"

    def __init__(
        self,
        channels: int = 8,
        head: str = "diffusion",
        head_width: int = 128,
        head_blocks: int = 3,
        components: int = 8,
        head_steps: int = 16,
        sigma_out: float = 0.1,
        every: int = 1,
        grid: int = 7,
        classes: int = 10,
        **rest: Any,
    ):
        if head not in HEADS:
            raise ValueError(f"head is {head!r}: a continuous model has a {' or a '.join(HEADS)} head")
        self.channels, self.head, self.head_width, self.head_blocks = channels, head, head_width, head_blocks
        self.components, self.head_steps, self.sigma_out, self.every = components, head_steps, sigma_out, every
        options: dict[str, Any] = {"vocab_size": 1, "grid": grid, "classes": classes} | rest
        super().__init__(**options)


class DiffusionHead(nn.Module):
    """What a noised token was made of: the velocity of `x` [M, d] at `timesteps` [M], given the backbone's state `z` [M, D]."""

    rates: Tensor

    def __init__(self, config: ContinuousARConfig):
        super().__init__()
        width, self.blocks = config.head_width, config.head_blocks
        self.register_buffer("rates", 10000.0 ** (-torch.arange(32) / 32), persistent=False)
        self.time_embedding = TimestepEmbedding(64, width)
        self.given, self.input = nn.Linear(config.hidden_size, width), nn.Linear(config.channels, width)
        self.modulation = nn.Linear(width, (3 * self.blocks + 2) * width)  # of all blocks at once: fewer and larger products
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(self.blocks))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(self.blocks))
        self.output = nn.Linear(width, config.channels)

    def forward(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        angle = timesteps[:, None] * self.rates
        about = F.silu(self.time_embedding(torch.cat([angle.cos(), angle.sin()], -1).to(z.dtype)) + self.given(z))
        parts = self.modulation(about).chunk(3 * self.blocks + 2, -1)
        x = self.input(x)
        for block, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            shift, scale, gate = parts[3 * block : 3 * block + 3]
            x = torch.addcmul(x, gate, second(F.silu(first(_modulated(x, shift, scale)))))
        return self.output(_modulated(x, *parts[-2:]))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    normal = F.layer_norm(x, x.shape[-1:])
    return torch.addcmul(normal + shift, normal, scale)


class MixtureHead(nn.Module):
    """`components` diagonal Gaussians over the whole token: logits of their weights [..., k], their means and deviations [..., k, d]."""

    floor = 0.02

    def __init__(self, config: ContinuousARConfig):
        super().__init__()
        self.channels, self.components = config.channels, config.components
        self.output = nn.Linear(config.hidden_size, config.components * (1 + 2 * config.channels))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [self.components, self.components * self.channels, self.components * self.channels]
        logits, means, scales = self.output(z).float().split(sizes, -1)
        means, scales = (part.unflatten(-1, (self.components, self.channels)) for part in (means, scales))
        return logits, means, F.softplus(scales) + self.floor


class ContinuousAR(PreTrainedModel):
    """Hidden states from embedded latents; `head` says what the next token is drawn from."""

    config_class = ContinuousARConfig  # pyright: ignore[reportAssignmentType]
    config: ContinuousARConfig
    _supports_sdpa = True

    def __init__(self, config: ContinuousARConfig):
        super().__init__(config)
        self.cls_embedding = ClassEmbedding(config)
        self.tok_projection = nn.Linear(config.channels, config.hidden_size)
        self.places = nn.Embedding(config.grid**2 + 1, config.hidden_size)  # of the cell that is written next
        self.layers = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = (DiffusionHead if config.head == "diffusion" else MixtureHead)(config)
        self.post_init()

    def prefix(self, classes: Tensor) -> Tensor:
        """Embeddings [R, 1, D] of `classes` [R]; number `config.classes` stands for no class."""
        return self.cls_embedding(classes) + self.places.weight[0]

    def embed(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Embeddings [R, M, D] of `tokens` [R, M, d] that stand in `cells` [R, M], counted in raster order."""
        return self.tok_projection(tokens.to(self.tok_projection.weight.dtype)) + self.places(cells + 1)

    def forward(self, embeds: Tensor, cells: Tensor, mask: Tensor | None = None, cache: Any = None) -> tuple[Tensor]:
        """The last hidden states [R, M, D] of `embeds` [R, M, D] in `cells` [R, M] (-1: the prefix), in a tuple.

        `mask` [R, 1, M, S] bool, causal where none is given.
        """
        rope, x = rotary(cells, self.config), embeds
        for layer in self.layers:
            x = layer(x, rope, mask, cache)
        return (self.norm(x),)

    def states(self, classes: Tensor, tokens: Tensor) -> Tensor:
        """The states [R, T, D] that foretell each of `tokens` [R, T, d] of pictures of `classes` [R]: what training reads."""
        cells = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device).expand(len(tokens), -1)
        embeds = torch.cat([self.prefix(classes), self.embed(tokens[:, :-1], cells[:, 1:])], 1)
        return self(embeds, cells)[0]


@cache
def scheduler() -> DDPMParallelScheduler:
    """The noise schedule that diffusion heads are trained and sampled by: a cosine one, its velocity predicted. Not to be changed."""
    return DDPMParallelScheduler(
        num_train_timesteps=TRAINED_STEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        variance_type="fixed_small",
    )
