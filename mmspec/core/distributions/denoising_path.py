"""A token's whole reverse chain as one value: path-level acceptance for diffusion heads.

The density of a token that a diffusion head has written is out of reach, but that of the path x_T, .., x_0 it came by is a product of
Gaussians. A drafted path has been written down whole, so the target judges all its T steps, of all drafted tokens, in one call of its
head: serial in the drafter, parallel in the target. Distributions of paths are distributions like any other, and the token rule over them
is exact: accept with min(1, P(path) / Q(path)), else draw from norm((P - Q)+), by thinning, with chains drawn anew. The token is the path's
last state, and as the path has the target's distribution, so has the token. Acceptance is about 2 Phi(-sqrt(K) / 2) with K twice the
divergence of the paths, which stays put as T grows, where judging step by step falls.

x_T is drawn from N(0, I) by every such distribution; log-probabilities leave that factor out.

T steps, d numbers a token, D the width of what the head is told.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.distributions.thinning import Density
from mmspec.core.distributions.value_cache import ValueCache
from mmspec.core.noise import Keys

Net = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noised tokens [M, d], timesteps [M], what the head is told [M, D]) -> output [M, d], of the kind the kernel's scheduler takes."""


@dataclass(frozen=True)
class Denoiser:
    """A head and the chain it is sampled by.

    The net is run at every `every`-th state of a path, and what it says stands for the states up to the next: one output, applied anew
    to each. That makes a draft cheaper, and its distribution is still the one it is said to be.
    """

    net: Net
    noise_schedule: NoiseSchedule
    every: int = 1

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"every is {self.every}: the net is run at every state (1), or at every second (2), third (3), ...")

    @property
    def steps(self) -> int:
        return self.noise_schedule.steps

    @cached_property
    def _rows(self) -> list[tuple[float, ...]]:
        """(timestep, keep, gain, std) of every step, on the host: a step of a chain then is no more than its sums."""
        noise_schedule = self.noise_schedule
        return list(
            zip(
                *(table.tolist() for table in (noise_schedule.timesteps, noise_schedule.keep, noise_schedule.gain, noise_schedule.std)),
                strict=True,
            )
        )

    def told(self, x: Tensor, step: int, z: Tensor) -> Tensor:
        """What the net says of states `x` [..., d] before step `step`."""
        rows = x.reshape(-1, x.shape[-1])
        times = torch.full((len(rows),), self._rows[step][0], device=x.device)
        return self.net(rows, times, z.reshape(-1, z.shape[-1])).view(x.shape)

    def means(self, z: Tensor, path: Tensor) -> Tensor:
        """The mean of every state of `path` [..., T + 1, d] but the first, given the one before: [..., T, d]. One run of the net."""
        noise_schedule, states = self.noise_schedule, path[..., :-1, :]
        asked = states[..., :: self.every, :]
        about = z[..., None, :].expand(*asked.shape[:-1], z.shape[-1])
        times = noise_schedule.timesteps[:: self.every].expand(asked.shape[:-1])
        out = self.net(asked.reshape(-1, asked.shape[-1]), times.reshape(-1), about.reshape(-1, about.shape[-1])).view(asked.shape)
        out = out.repeat_interleave(self.every, -2)[..., : self.steps, :] if self.every > 1 else out
        return noise_schedule.keep.to(out.dtype)[:, None] * states + noise_schedule.gain.to(out.dtype)[:, None] * out

    def walk(self, z: Tensor, noise: Tensor, path: Tensor | None = None, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The path [..., T + 1, d] that `noise` [..., T + 1, d] leads along, and its means [..., T, d]: T runs of the net in a row.

        States of `path`, if one is given, that stand before index `first` [...] stay; means then are those from the least `first` on.
        """
        begin = 0 if path is None or first is None else max(0, int(first.min()) - 1)
        states, means = [noise[..., 0, :]] if path is None else list(path[..., : begin + 1, :].unbind(-2)), []
        if path is not None and first is not None and begin == 0:
            states = [torch.where((first < 1)[..., None], noise[..., 0, :], path[..., 0, :])]
        out = noise[..., 0, :]
        for step in range(begin, self.steps):
            _, keep, gain, std = self._rows[step]
            if step == begin or step % self.every == 0:
                anchor = step - step % self.every
                out = self.told(states[anchor], anchor, z)
            means.append(torch.add(keep * states[step], out, alpha=gain))
            x = torch.add(means[-1], noise[..., step + 1, :], alpha=std)
            if path is not None and first is not None:
                x = torch.where((first > step + 1)[..., None], path[..., step + 1, :], x)
            states.append(x)
        return torch.stack(states, -2), torch.stack(means, -2) if means else noise[..., :0, :]


@dataclass(frozen=True)
class DenoisingPath(Density):
    """Distributions of the paths that `denoiser` writes, told `z`. Values are [T + 1, d]: x_T, x_{T-1}, .., x_0."""

    z: Tensor  # [..., D]
    denoiser: Denoiser
    width: int  # d
    _memo: ValueCache = field(init=False, repr=False, compare=False, default_factory=ValueCache)

    @property
    def streams(self) -> int:
        return self.denoiser.steps + 1

    def steps(self, path: Tensor) -> Gaussian:
        """The distribution of every next state given the one before it in `path` [..., T + 1, d]: [..., T]. One run of the net a path."""
        means = self._memo.get(path)
        if means is None:
            means = self._memo.keep(path, self.denoiser.means(self.z, path))
        return transitions(means, self.denoiser.noise_schedule)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.steps(x).log_prob(x[..., 1:, :]).sum(-1)

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        if q is None:
            return super().log_ratio(q, x)
        return self.steps(x).log_ratio(q.steps(x), x[..., 1:, :]).sum(-1)

    def drawn(self, keys: Keys) -> tuple[Tensor, "DrawnPath"]:
        """A path from each distribution, and the distribution with what it took to draw it."""
        path, means = self.denoiser.walk(self.z, self._noise(keys))
        return path, DrawnPath(self, path, means)

    def sample(self, keys: Keys) -> Tensor:
        return self.denoiser.walk(self.z, self._noise(keys))[0]

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        """Paths `x` [..., T + 1, d] with the states from index `first` [...] on (0: all; T + 1: none) drawn anew by the chain,
        each by the stream that `sample` draws it by."""
        return self.denoiser.walk(self.z, self._noise(keys), x, first)[0]

    def mode(self) -> Tensor:
        """The path without noise, from x_T = 0."""
        return self.denoiser.walk(self.z, self.z.new_zeros(*self.z.shape[:-1], self.denoiser.steps + 1, self.width))[0]

    def _noise(self, keys: Keys) -> Tensor:
        return keys.branch(self.streams).normal(self.width).to(self.z.dtype)

    def picked(self, rows: Tensor, columns: Tensor) -> "DenoisingPath":
        return DenoisingPath(self.z[rows, columns], self.denoiser, self.width)

    def last(self, count: int) -> "DenoisingPath":
        return replace(self, z=self.z[:, self.z.shape[1] - count :])

    def where(self, mask: Tensor, other: "DenoisingPath") -> "DenoisingPath":
        return replace(self, z=torch.where(mask[..., None], self.z, other.z))

    def cat(self, other: "DenoisingPath") -> "DenoisingPath":
        return replace(self, z=torch.cat([self.z, other.z], 1))


def transitions(means: Tensor, noise_schedule: NoiseSchedule) -> Gaussian:
    """The kernel's Gaussians around `means` [..., T, d]."""
    return Gaussian(means, noise_schedule.std[:, None].to(means.dtype).expand(*means.shape[:-1], 1))


@dataclass(frozen=True)
class DrawnPath:
    """A drafter's distributions with the paths [B, G, T + 1, d] they drew and those paths' means: what a draft records as its q.

    `steps` and `log_prob` are asked for those very paths, and cost nothing; distributions picked out of it are plain ones.
    """

    distribution: DenoisingPath
    path: Tensor
    means: Tensor  # [B, G, T, d]

    def steps(self, path: Tensor) -> Gaussian:
        return transitions(self.means, self.distribution.denoiser.noise_schedule)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.steps(x).log_prob(self.path[..., 1:, :]).sum(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> DenoisingPath:
        return self.distribution.picked(rows, columns)

    def at(self, index: Tensor) -> DenoisingPath:
        return self.distribution.at(index)

    def cat(self, other: "DrawnPath") -> "DrawnPath":
        joined = (torch.cat([one, two], 1) for one, two in ((self.path, other.path), (self.means, other.means)))
        return DrawnPath(self.distribution.cat(other.distribution), *joined)


def recorded(distribution: DenoisingPath, keys: Keys) -> tuple[Tensor, DrawnPath]:
    """How a chain draws its draft tokens from distributions of paths: what it took is kept, so that judging them runs the drafter's net no
    more."""
    return distribution.drawn(keys)
