"""Losses for models of continuous tokens: targets from pictures' tokens, and drafts from a target, for what speculation accepts.

What a diffusion draft is distilled for: with transitions of equal deviations the log ratio of two chains of a token is close to normal, and
its path is accepted with probability about 2 Phi(-sqrt(K) / 2), K = sum_t |mean_p - mean_q|^2 / std_t^2 the squared gap of the means along
a path that the draft drew (twice the divergence of the paths).
Targets read contexts with some noise (xAR: Ren et al. 2025, arXiv 2502.20388), as what they are given later is drawn, not encoded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.vision.continuous.mar import MaskedAR, random_masks

NOISE, DROPPED, DEQUANTISED = 0.15, 0.1, 0.1
"""Deviations of context noise, at most; the share of pictures without their class; the noise a mixture head's tokens are smoothed by."""


@dataclass(frozen=True)
class Table:
    """The posterior of every training picture's tokens, [N, T, d] each, unit-scaled: half precision on disk, drawn from at every step."""

    mean: Tensor
    std: Tensor
    classes: Tensor  # [N]

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


class PathExample(nn.Module):
    """A diffusion draft's distillation: 1 - 2 Phi(-sqrt(K) / 2) of tokens at all positions behind the contexts `seen` [B, T, d].

    The draft writes its chains at all positions side by side, without gradient; then either head speaks once, at `asked` of each chain's
    states (every so many, from a random one on), which estimates K. The part `pull` of sqrt(K) keeps a gradient where K is large.
    """

    def __init__(
        self, draft: Any, target: Any, noise_schedules: Sequence[NoiseSchedule], *, every: int = 1, asked: int = 4, pull: float = 0.15
    ):
        super().__init__()
        self.draft, self.noise_schedules, self.every, self.asked, self.pull = draft, list(noise_schedules), every, asked, pull
        self.frozen = (target,)  # in a tuple: neither trained nor saved with the draft

    def forward(self, classes: Tensor, seen: Tensor, generator: torch.Generator, share: float = 0.0) -> Tensor:
        """Return the distillation loss, a scalar."""
        noise_schedule = self.noise_schedules[int(torch.randint(len(self.noise_schedules), (), generator=generator))]
        masked = hidden(self.draft, seen, generator)
        if share and masked is None:  # some tokens are the draft's own, as they stand before a draft token that is judged
            made = self.paths(context_states(self.draft, classes, seen, None), noise_schedule, generator)[:, -1].view(seen.shape)
            seen = torch.where(torch.rand(*seen.shape[:2], 1, generator=generator) < share, made, seen)
        gap = self.gap(classes, seen, masked, noise_schedule, generator)
        return (torch.erf((gap / 8).sqrt()) + self.pull * gap.sqrt()).mean()

    @torch.no_grad()
    def paths(self, states: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> Tensor:
        """The draft's chains [M, S + 1, d] of S steps."""
        noise = torch.randn(len(states), noise_schedule.steps + 1, self.draft.config.channels, generator=generator)
        return Denoiser(self.draft.head, noise_schedule, self.every).walk(states, noise)[0].float()

    def gap(
        self, classes: Tensor, seen: Tensor, masked: Tensor | None, noise_schedule: NoiseSchedule, generator: torch.Generator
    ) -> Tensor:
        """K [M], estimated, of every token's chain."""
        with torch.no_grad():
            told_p = context_states(self.frozen[0], classes, seen, masked)
        told_q = context_states(self.draft, classes, seen, masked)
        path = self.paths(told_q.detach(), noise_schedule, generator)
        stride = max(1, noise_schedule.steps // self.asked)
        steps = torch.randint(stride, (len(path), 1), generator=generator) + torch.arange(0, noise_schedule.steps, stride)  # [M, asked]
        with torch.no_grad():
            out_p = ask(self.frozen[0].head, path, steps, told_p, noise_schedule)
        out_q = ask(self.draft.head, path, steps - steps % self.every, told_q, noise_schedule)
        return (noise_schedule.weight[steps] * (out_p - out_q).square().sum(-1)).sum(-1).float() * stride + 1e-6

    @torch.no_grad()
    def facts(self, classes: Tensor, seen: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> dict[str, float]:
        """K, what it foretells of acceptance, and the acceptance measured, over draft-made paths behind `seen`."""
        masked = hidden(self.draft, seen, generator)
        told_p, told_q = (context_states(model, classes, seen, masked) for model in (self.frozen[0], self.draft))
        path = self.paths(told_q, noise_schedule, generator)
        mean_p = Denoiser(self.frozen[0].head, noise_schedule).means(told_p, path)
        mean_q = Denoiser(self.draft.head, noise_schedule, self.every).means(told_q, path)
        apart, noise = ((value / noise_schedule.std[:, None]).flatten(1) for value in (mean_p - mean_q, path[:, 1:] - mean_q))
        gap = apart.square().sum(1)
        ratio = (apart * noise).sum(1) - gap / 2
        foretold = 1 - torch.erf((gap / 8).sqrt())
        return {
            "steps of the chain": noise_schedule.steps,
            "K, median": gap.median().item(),
            "K, mean": gap.mean().item(),
            "acceptance by K": foretold.mean().item(),
            "acceptance": ratio.exp().clamp_max(1).mean().item(),
        }


def ask(head: nn.Module, path: Tensor, steps: Tensor, states: Tensor, noise_schedule: NoiseSchedule) -> Tensor:
    """Return the output [M, m, d] of `head` at `steps` [M, m] of chains [M, S + 1, d], given `states` [M, D]."""
    x, told = path.take_along_dim(steps[..., None], 1), states[:, None].expand(-1, steps.shape[1], -1)
    return head(x.flatten(0, 1), noise_schedule.timesteps[steps].flatten(), told.flatten(0, 1)).view(x.shape).float()


class MixtureExample(nn.Module):
    """A mixture draft's distillation: how much of the target's distribution its own leaves out, E_p (1 - q / p)+, on tokens that the target
    draws.

    That is the share of rejected draft tokens, without bias; its gradient dies where q is far from p, so a part `pull` of -log q goes
    along.
    """

    def __init__(self, draft: Any, target: Any, pull: float = 0.5):
        super().__init__()
        self.draft, self.frozen, self.pull = draft, (target,), pull

    def forward(self, classes: Tensor, seen: Tensor, generator: torch.Generator, share: float = 0.0) -> Tensor:
        """Return the distillation loss, a scalar."""
        if share:
            with torch.no_grad():
                made = mixture_drawn(generator, *self.draft.head(self.draft.states(classes, seen)))
            seen = torch.where(torch.rand(*seen.shape[:2], 1, generator=generator) < share, made, seen)
        left_out, nats = self.terms(classes, seen, generator)
        return left_out.mean() + self.pull * nats.mean()

    def terms(self, classes: Tensor, seen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(1 - q / p)+ and log p - log q [B, T] of a token drawn from every distribution of the target."""
        with torch.no_grad():
            distribution = self.frozen[0].head(self.frozen[0].states(classes, seen))
            tokens = mixture_drawn(generator, *distribution)
            log_p = mixture_log_prob(tokens, *distribution)
        short = log_p - mixture_log_prob(tokens, *self.draft.head(self.draft.states(classes, seen)))
        return (1 - (-short).exp()).clamp_min(0), short

    @torch.no_grad()
    def facts(self, classes: Tensor, seen: Tensor, noise_schedule: None, generator: torch.Generator) -> dict[str, float]:
        """The share of draft tokens accepted behind `seen`, and the nats a token that the draft lacks."""
        left_out, nats = self.terms(classes, seen, generator)
        return {"acceptance": 1 - left_out.mean().item(), "nats a token": nats.mean().item()}
