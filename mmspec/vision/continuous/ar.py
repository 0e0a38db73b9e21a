"""Pictures as continuous tokens in raster order: a causal backbone over latents, and a head for the distribution of the next token.

The backbone is that of LlamaGen (Sun et al. 2024), with vectors in place of codes, as in GIVT (Tschannen et al. 2024, arXiv 2312.02116;
the mixture head) and in the causal models of MAR (Li et al. 2024, 2406.11838; the diffusion head, a small network with adaptive layer
norm).
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMParallelScheduler
from diffusers.models.embeddings import TimestepEmbedding
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.families.llamagen_layers import ClassEmbedding, DecoderBlock, LlamaGenConfig, rotary

HEADS = ("diffusion", "mixture")
TRAINED_STEPS = 1024
"""Number of noise levels in the training of diffusion heads. Samplers use a subset: 8, 16, 32 and 64 divide it."""


class ContinuousARConfig(LlamaGenConfig):
    """Sizes of a `ContinuousAR`: `grid` x `grid` tokens of `channels` numbers each.

    Args:
        channels: numbers per token.
        head: "diffusion" or "mixture".
        head_width: width of a diffusion head.
        head_blocks: blocks of a diffusion head.
        components: components of a mixture head.
        head_steps: steps of the diffusion chain; may be overridden per call.
        sigma_out: noise on every token, a part of the model's distribution, in units of a token's standard deviation; may be overridden
            per call.
        every: the head is run at every so many states of the chain; may be overridden per call.
        grid: side of the square of tokens.
        classes: number of classes.
        rest: further options of `LlamaGenConfig`.

    Raises:
        ValueError: for an unknown head.
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
    """Diffusion head: predicts the velocity of `x` [M, d] at `timesteps` [M], given the backbone's state `z` [M, D]."""

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
        """Return the velocity [M, d]."""
        return self.denoise(x, self.condition(self.embed_times(timesteps), z))

    def embed_times(self, timesteps: Tensor) -> Tensor:
        """Embed timesteps [...] as [..., W]."""
        angle = timesteps[..., None] * self.rates
        return self.time_embedding(torch.cat([angle.cos(), angle.sin()], -1).to(self.given.weight.dtype))

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        """Compute the shifts, scales and gates of all blocks, which do not depend on the noisy token.

        Args:
            times: embedded timesteps [..., W].
            z: the backbone's states [..., D].

        Returns:
            Modulations [..., (3 blocks + 2) W].
        """
        return self.modulation(F.silu(times + self.given(z)))

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the velocity [M, d] of `x` [M, d], given the modulations `condition` [M, (3 blocks + 2) W]."""
        parts = condition.chunk(3 * self.blocks + 2, -1)
        x = self.input(x)
        for block, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            shift, scale, gate = parts[3 * block : 3 * block + 3]
            x = torch.addcmul(x, gate, second(F.silu(first(_modulated(x, shift, scale)))))
        return self.output(_modulated(x, *parts[-2:]))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    normal = F.layer_norm(x, x.shape[-1:])
    return torch.addcmul(normal + shift, normal, scale)


class MixtureHead(nn.Module):
    """Mixture head: `components` diagonal Gaussians over the token."""

    floor = 0.02

    def __init__(self, config: ContinuousARConfig):
        super().__init__()
        self.channels, self.components = config.channels, config.components
        self.output = nn.Linear(config.hidden_size, config.components * (1 + 2 * config.channels))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the weights [..., k], and means and deviations [..., k, d], for states `z` [..., D]."""
        sizes = [self.components, self.components * self.channels, self.components * self.channels]
        logits, means, scales = self.output(z).float().split(sizes, -1)
        means, scales = (part.unflatten(-1, (self.components, self.channels)) for part in (means, scales))
        return logits, means, F.softplus(scales) + self.floor


class ContinuousAR(PreTrainedModel):
    """Causal model of continuous tokens (GIVT, MAR): hidden states from embedded latents; `head` gives the next token's distribution.

    Args:
        config: the sizes.
    """

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
        """Embed the class, the model's prompt.

        Args:
            classes: LongTensor [R], class numbers; `config.classes` for no class.

        Returns:
            Embeddings [R, 1, D].
        """
        return self.cls_embedding(classes) + self.places.weight[0]

    def embed(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Embed tokens.

        Args:
            tokens: float [R, M, d].
            cells: LongTensor [R, M], their places in raster order.

        Returns:
            Embeddings [R, M, D].
        """
        return self.tok_projection(tokens.to(self.tok_projection.weight.dtype)) + self.places(cells + 1)

    def forward(self, embeds: Tensor, cells: Tensor, mask: Tensor | None = None, cache: Any = None) -> tuple[Tensor]:
        """Run the backbone.

        Args:
            embeds: [R, M, D] embeddings.
            cells: LongTensor [R, M], places in raster order; -1 for the prefix.
            mask: bool [R, 1, M, S]; causal by default.
            cache: a layer-wise key-value cache, or None.

        Returns:
            The last hidden states [R, M, D], in a tuple.
        """
        rope, x = rotary(cells, self.config), embeds
        for layer in self.layers:
            x = layer(x, rope, mask, cache)
        return (self.norm(x),)

    def states(self, classes: Tensor, tokens: Tensor) -> Tensor:
        """Run the backbone over whole pictures, for training.

        Args:
            classes: LongTensor [R], class numbers.
            tokens: float [R, T, d] in raster order.

        Returns:
            States [R, T, D]; state t predicts token t.
        """
        cells = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device).expand(len(tokens), -1)
        embeds = torch.cat([self.prefix(classes), self.embed(tokens[:, :-1], cells[:, 1:])], 1)
        return self(embeds, cells)[0]


@cache
def scheduler() -> DDPMParallelScheduler:
    """Return the noise schedule of diffusion heads: cosine, with velocity prediction. Must not be changed."""
    return DDPMParallelScheduler(
        num_train_timesteps=TRAINED_STEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        variance_type="fixed_small",
    )
