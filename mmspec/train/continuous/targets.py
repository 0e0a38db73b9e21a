"""Training targets of continuous tokens from pictures' tokens: the table they are drawn from, and the loss.

Targets read contexts with some noise (xAR: Ren et al. 2025, arXiv 2502.20388), as what they are given later is drawn, not encoded.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.train.states.identity import keyed
from mmspec.vision.continuous.mar import MaskedAR, random_masks

NOISE, DROPPED, DEQUANTISED = 0.15, 0.1, 0.1
"""Deviations of context noise, at most; the share of pictures without their class; the noise a mixture head's tokens are smoothed by."""


@dataclass(frozen=True)
class Table:
    """The posterior of every training picture's tokens, [N, T, d] each, unit-scaled: half precision on disk, drawn from at every step."""

    mean: Tensor
    std: Tensor
    classes: Tensor  # [N]

    def part(self, rows: Sequence[int]) -> "Table":
        """Return the pictures of the given numbers."""
        return Table(self.mean[list(rows)], self.std[list(rows)], self.classes[list(rows)])

    def some(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens [rows, T, d] of pictures drawn at random, and their classes."""
        pick = torch.randint(len(self.mean), (rows,), generator=generator)
        mean, std = self.mean[pick].float(), self.std[pick].float()
        return mean + std * torch.randn(mean.shape, generator=generator), self.classes[pick]


def dropped(classes: Tensor, none: int, generator: torch.Generator, share: float = DROPPED) -> Tensor:
    """`classes` with a share of them replaced by `none`, for guidance."""
    return torch.where(torch.rand(classes.shape, generator=generator) < share, none, classes)


def noisy(tokens: Tensor, generator: torch.Generator, most: float = NOISE) -> Tensor:
    """`tokens` [B, T, d] with up to `most` deviations of noise on each: how much is drawn for each token."""
    level = torch.rand(*tokens.shape[:2], 1, generator=generator) * most
    return tokens + level * torch.randn(tokens.shape, generator=generator)


def drawn_table(model: Any, kept: Path | None, count: int, noise_schedule: NoiseSchedule | None) -> Table:
    """Return a table of pictures that a model draws, of all classes in turn.

    Args:
        model: the model.
        kept: a file beside which the table is kept: it is drawn once for a model. None to draw it anew.
        count: number of pictures.
        noise_schedule: chain of a diffusion head, None for mixtures.
    """
    kept = None if kept is None else keyed(kept, model, count)
    if kept is not None and kept.exists():
        return Table(**torch.load(kept))
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(count) % model.config.classes
    tokens = torch.cat([written(model, some, noise_schedule, generator) for some in classes.split(256)])
    found = Table(tokens, torch.zeros_like(tokens), classes)
    if kept is not None:
        torch.save(asdict(found), kept)
    return found


class ContinuousLoss(nn.Module):
    """What training calls: the loss of `tokens` [B, T, d] of pictures of `classes` [B], read behind the contexts `seen` [B, T, d]."""

    def __init__(self, model: Any, schedule: Any, levels: int = 4):
        super().__init__()
        self.model, self.schedule, self.levels = model, schedule, levels

    def forward(self, classes: Tensor, seen: Tensor, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of `tokens` [B, T, d]."""
        masked = hidden(self.model, tokens, generator)
        states = context_states(self.model, classes, seen, masked)
        tokens = tokens.flatten(0, 1) if masked is None else tokens[masked]
        if self.model.config.head == "mixture":
            smoothed = tokens + DEQUANTISED * torch.randn(tokens.shape, generator=generator)
            return -mixture_log_prob(smoothed, *self.model.head(states)).mean() / tokens.shape[-1]
        return velocity_loss(self.model.head, self.schedule, states, tokens, self.levels, generator)


def hidden(model: Any, tokens: Tensor, generator: torch.Generator) -> Tensor | None:
    """Return which of `tokens` [B, T, d] a masked model does not see, [B, T] bool; None for causal models."""
    return random_masks(len(tokens), tokens.shape[1], generator) if isinstance(model, MaskedAR) else None


def context_states(model: Any, classes: Tensor, seen: Tensor, masked: Tensor | None) -> Tensor:
    """Return states [M, D] of the tokens that `model` predicts: all of `seen` [B, T, d], or those that are `masked`."""
    return model.states(classes, seen).flatten(0, 1) if masked is None else model.states(classes, seen, masked)[masked]


def velocity_loss(head: nn.Module, schedule: Any, states: Tensor, tokens: Tensor, levels: int, generator: torch.Generator) -> Tensor:
    """The squared error of the velocity of `tokens` [M, d] at `levels` noise levels each, the levels evenly spread over all there are."""
    count, start = schedule.config.num_train_timesteps, torch.rand(len(tokens), 1, generator=generator)
    times = ((torch.arange(levels) + start) * (count / levels)).long().clamp(max=count - 1).T.flatten()  # [levels * M]
    tokens, states = tokens.repeat(levels, 1), states.repeat(levels, 1)
    noise = torch.randn(tokens.shape, generator=generator)
    found = head(schedule.add_noise(tokens, noise, times), times, states)
    return (found.float() - schedule.get_velocity(tokens, noise, times)).square().mean()


def mixture_log_prob(tokens: Tensor, logits: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """log of the mixture's density [...] at `tokens` [..., d]."""
    whitened = (tokens[..., None, :] - means) / scales
    parts = -0.5 * whitened.square().sum(-1) - scales.log().sum(-1) - tokens.shape[-1] * 0.5 * math.log(2 * math.pi)
    return (logits.log_softmax(-1) + parts).logsumexp(-1)


def mixture_drawn(generator: torch.Generator, logits: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """A token [..., d] from each mixture."""
    pick = torch.multinomial(logits.softmax(-1).flatten(0, -2), 1, generator=generator).view(*logits.shape[:-1], 1, 1)
    mean, scale = (part.take_along_dim(pick, -2)[..., 0, :] for part in (means, scales))
    return mean + scale * torch.randn(mean.shape, generator=generator)


@torch.no_grad()
def written(
    model: Any, classes: Tensor, noise_schedule: NoiseSchedule | None, generator: torch.Generator, mixed: tuple[Any, float] | None = None
) -> Tensor:
    """Generate tokens [B, T, d] for `classes` [B], position by position without a cache.

    Args:
        model: the model.
        classes: [B] class numbers.
        noise_schedule: chain of a diffusion head, None for mixtures.
        generator: random generator.
        mixed: (another model, a share): that share of the tokens is drawn by the other model, as in drafting.
    """
    tokens = torch.zeros(len(classes), model.config.grid**2, model.config.channels)
    for cell in range(tokens.shape[1]):
        tokens[:, cell] = draw_tokens(model, model.states(classes, tokens[:, : cell + 1])[:, -1], noise_schedule, generator)
        if mixed is not None:
            other = draw_tokens(mixed[0], mixed[0].states(classes, tokens[:, : cell + 1])[:, -1], noise_schedule, generator)
            tokens[:, cell] = torch.where(torch.rand(len(classes), 1, generator=generator) < mixed[1], other, tokens[:, cell])
    return tokens


def draw_tokens(model: Any, states: Tensor, noise_schedule: NoiseSchedule | None, generator: torch.Generator) -> Tensor:
    """Draw a token [M, d] for each of `states` [M, D]."""
    if noise_schedule is None:
        return mixture_drawn(generator, *model.head(states))
    noise = torch.randn(len(states), noise_schedule.steps + 1, model.config.channels, generator=generator)
    return Denoiser(model.head, noise_schedule).walk(states, noise)[0][:, -1]
