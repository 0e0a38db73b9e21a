"""Distilling drafts of continuous tokens from a target, for what speculation accepts.

What a diffusion draft is distilled for: with transitions of equal deviations the log ratio of two chains of a token is close to normal, and
its path is accepted with probability about 2 Phi(-sqrt(K) / 2), K = sum_t |mean_p - mean_q|^2 / std_t^2 the squared gap of the means along
a path that the draft drew (twice the divergence of the paths).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.train.continuous.targets import context_states, hidden, mixture_drawn, mixture_log_prob


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

    @property
    def head(self) -> Any:
        """The draft's head, or the target's where it has none."""
        return self.frozen[0].head if self.draft.head is None else self.draft.head

    def chain(self, generator: torch.Generator) -> NoiseSchedule:
        """Draw one of the chains."""
        return self.noise_schedules[int(torch.randint(len(self.noise_schedules), (), generator=generator))]

    def forward(self, classes: Tensor, seen: Tensor, generator: torch.Generator, share: float = 0.0) -> Tensor:
        """Return the distillation loss, a scalar."""
        noise_schedule = self.chain(generator)
        masked = hidden(self.draft, seen, generator)
        if share and masked is None:  # some tokens are the draft's own, as they stand before a draft token that is judged
            made = self.paths(context_states(self.draft, classes, seen, None), noise_schedule, generator)[:, -1].view(seen.shape)
            seen = torch.where(torch.rand(*seen.shape[:2], 1, generator=generator) < share, made, seen)
        with torch.no_grad():
            told_p = context_states(self.frozen[0], classes, seen, masked)
        return self.loss_of(told_p, context_states(self.draft, classes, seen, masked), noise_schedule, generator)

    def loss_of(self, told_p: Tensor, told_q: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> Tensor:
        """Return the loss of tokens given the states [M, D] that both heads read."""
        gap = self.gap(told_p, told_q, noise_schedule, generator)
        return (torch.erf((gap / 8).sqrt()) + self.pull * gap.sqrt()).mean()

    @torch.no_grad()
    def paths(self, states: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> Tensor:
        """The draft's chains [M, S + 1, d] of S steps."""
        noise = torch.randn(len(states), noise_schedule.steps + 1, self.draft.config.channels, generator=generator)
        return Denoiser(self.head, noise_schedule, self.every).walk(states, noise)[0].float()

    def gap(self, told_p: Tensor, told_q: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> Tensor:
        """K [M], estimated, of every token's chain, given the states [M, D] that both heads read."""
        path = self.paths(told_q.detach(), noise_schedule, generator)
        stride = max(1, noise_schedule.steps // self.asked)
        steps = torch.randint(stride, (len(path), 1), generator=generator) + torch.arange(0, noise_schedule.steps, stride)  # [M, asked]
        with torch.no_grad():
            out_p = ask(self.frozen[0].head, path, steps, told_p, noise_schedule)
        out_q = ask(self.head, path, steps - steps % self.every, told_q, noise_schedule)
        return (noise_schedule.weight[steps] * (out_p - out_q).square().sum(-1)).sum(-1).float() * stride + 1e-6

    @torch.no_grad()
    def facts(self, classes: Tensor, seen: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> dict[str, float]:
        """K, what it foretells of acceptance, and the acceptance measured, over draft-made paths behind `seen`."""
        masked = hidden(self.draft, seen, generator)
        told_p, told_q = (context_states(model, classes, seen, masked) for model in (self.frozen[0], self.draft))
        return self.facts_of(told_p, told_q, noise_schedule, generator)

    @torch.no_grad()
    def facts_of(self, told_p: Tensor, told_q: Tensor, noise_schedule: NoiseSchedule, generator: torch.Generator) -> dict[str, float]:
        """The same, given the states [M, D] that both heads read."""
        path = self.paths(told_q, noise_schedule, generator)
        mean_p = Denoiser(self.frozen[0].head, noise_schedule).means(told_p, path)
        mean_q = Denoiser(self.head, noise_schedule, self.every).means(told_q, path)
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
        with torch.no_grad():
            told_p = self.frozen[0].states(classes, seen)
        return self.loss_of(told_p, self.draft.states(classes, seen), None, generator)

    def loss_of(self, told_p: Tensor, told_q: Tensor, noise_schedule: None, generator: torch.Generator) -> Tensor:
        """Return the loss of tokens given the states [..., D] that both heads read."""
        left_out, nats = self.terms(told_p, told_q, generator)
        return left_out.mean() + self.pull * nats.mean()

    def chain(self, generator: torch.Generator) -> None:
        """A mixture has no chain."""

    def terms(self, told_p: Tensor, told_q: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(1 - q / p)+ and log p - log q [...] of a token drawn from every distribution of the target."""
        target: Any = self.frozen[0]
        with torch.no_grad():
            distribution = target.head(told_p)
            tokens = mixture_drawn(generator, *distribution)
            log_p = mixture_log_prob(tokens, *distribution)
        short = log_p - mixture_log_prob(tokens, *(target.head if self.draft.head is None else self.draft.head)(told_q))
        return (1 - (-short).exp()).clamp_min(0), short

    @torch.no_grad()
    def facts(self, classes: Tensor, seen: Tensor, noise_schedule: None, generator: torch.Generator) -> dict[str, float]:
        """The share of draft tokens accepted behind `seen`, and the nats a token that the draft lacks."""
        return self.facts_of(self.frozen[0].states(classes, seen), self.draft.states(classes, seen), noise_schedule, generator)

    @torch.no_grad()
    def facts_of(self, told_p: Tensor, told_q: Tensor, noise_schedule: None, generator: torch.Generator) -> dict[str, float]:
        """The same, given the states [..., D] that both heads read."""
        left_out, nats = self.terms(told_p, told_q, generator)
        return {"acceptance": 1 - left_out.mean().item(), "nats a token": nats.mean().item()}
