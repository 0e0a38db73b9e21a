"""A token's whole reverse chain as one value: path-level acceptance for diffusion heads.

The density of a token that a diffusion head writes is intractable, but the density of its path x_T, .., x_0 is a product of Gaussians. The
target judges all T steps of all drafted tokens in one call of its head: serial in the drafter, parallel in the target. The token rule over
paths is exact: accept with min(1, P(path) / Q(path)), else draw from norm((P - Q)+), by thinning, with chains drawn anew. The token is the
path's last state; since the path has the target's distribution, so has the token. The mean acceptance is about 2 Phi(-sqrt(K) / 2) with K
twice the divergence of the paths. It does not change as T grows, whereas the acceptance of judging step by step falls.

Every such distribution draws x_T from N(0, I); log-probabilities leave that factor out.

T steps, d numbers a token, D the width of the conditioning.
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
from mmspec.core.prepared_head import outputs_at_once, outputs_in_turn

Net = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noised tokens [M, d], timesteps [M], conditioning [M, D]) -> output [M, d], of the prediction type the scheduler takes."""


@dataclass(frozen=True)
class Denoiser:
    """A head and the chain it is sampled by.

    With `every` above 1 the net is run at every `every`-th state and its output is used for the states up to the next. This makes a draft
    cheaper; its distribution is that of the chain as run.

    Args:
        net: maps (noised tokens [M, d], timesteps [M], conditioning [M, D]) to outputs [M, d].
        noise_schedule: the chain's transitions.
        every: run the net at every state (1), every second (2), ...

    Raises:
        ValueError: when `every` is below 1.
    """

    net: Net
    noise_schedule: NoiseSchedule
    every: int = 1

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"every is {self.every}: the net is run at every state (1), or at every second (2), third (3), ...")

    @property
    def steps(self) -> int:
        """Number of denoising steps T."""
        return self.noise_schedule.steps

    @cached_property
    def _rows(self) -> list[tuple[float, ...]]:
        """(keep, gain, std) of every step as Python numbers, so that a step needs no transfer."""
        schedule = self.noise_schedule
        return list(zip(*(table.tolist() for table in (schedule.keep, schedule.gain, schedule.std)), strict=True))

    def means(self, z: Tensor, path: Tensor) -> Tensor:
        """Compute the mean of every state given the one before it, in one run of the net.

        Args:
            z: conditioning [..., D].
            path: states [..., T + 1, d].

        Returns:
            Means [..., T, d] of all states but the first.
        """
        noise_schedule, states = self.noise_schedule, path[..., :-1, :]
        inputs = states[..., :: self.every, :]
        rows = inputs.reshape(-1, *inputs.shape[-2:])
        out = outputs_at_once(self.net, noise_schedule.timesteps[:: self.every], z.reshape(-1, z.shape[-1]), rows).view(inputs.shape)
        out = out.repeat_interleave(self.every, -2)[..., : self.steps, :] if self.every > 1 else out
        return noise_schedule.keep.to(out.dtype)[:, None] * states + noise_schedule.gain.to(out.dtype)[:, None] * out

    def draw(self, z: Tensor, keys: Keys, width: int, path: Tensor | None = None, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Sample paths by streams of random numbers.

        Args:
            z: conditioning [..., D].
            keys: streams [...].
            width: numbers of a state, d.
            path: states [..., T + 1, d] to continue from.
            first: index [...] of the first state that is sampled.

        Returns:
            The path and its means, as `walk`.
        """
        return self.walk(z, keys.branch(self.steps + 1).normal(width).to(z.dtype), path, first)

    def walk(self, z: Tensor, noise: Tensor, path: Tensor | None = None, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Sample paths, by T runs of the net in a row.

        Args:
            z: conditioning [..., D].
            noise: standard normal [..., T + 1, d].
            path: states [..., T + 1, d] to continue from.
            first: index [...] of the first state that is sampled; those of `path` before it stay.

        Returns:
            The path [..., T + 1, d], and its means from the least `first` on, [..., T, d] without `first`.
        """
        begin = 0 if path is None or first is None else max(0, int(first.min()) - 1)
        states, means = [noise[..., 0, :]] if path is None else list(path[..., : begin + 1, :].unbind(-2)), []
        if path is not None and first is not None and begin == 0:
            states = [torch.where((first < 1)[..., None], noise[..., 0, :], path[..., 0, :])]
        out, output = noise[..., 0, :], outputs_in_turn(self.net, self.noise_schedule.timesteps, z.reshape(-1, z.shape[-1]))
        for step in range(begin, self.steps):
            keep, gain, std = self._rows[step]
            if step == begin or step % self.every == 0:
                anchor = step - step % self.every
                x = states[anchor]
                out = output(x.reshape(-1, x.shape[-1]), anchor).view(x.shape)
            means.append(torch.add(keep * states[step], out, alpha=gain))
            x = torch.add(means[-1], noise[..., step + 1, :], alpha=std)
            if path is not None and first is not None:
                x = torch.where((first > step + 1)[..., None], path[..., step + 1, :], x)
            states.append(x)
        return torch.stack(states, -2), torch.stack(means, -2) if means else noise[..., :0, :]


@dataclass(frozen=True)
class DenoisingPath(Density):
    """Distributions of the paths of a `denoiser` given conditioning `z`. Values are [T + 1, d]: x_T, x_{T-1}, .., x_0."""

    z: Tensor  # [..., D] conditioning
    denoiser: Denoiser  # the head and its chain
    width: int  # d, numbers in a token
    _cache: ValueCache = field(init=False, repr=False, compare=False, default_factory=ValueCache)

    @property
    def streams(self) -> int:
        return self.denoiser.steps + 1

    def steps(self, path: Tensor) -> Gaussian:
        """Compute the distribution of every next state given the one before it, in one run of the net.

        Args:
            path: states [..., T + 1, d].

        Returns:
            Gaussians [..., T].
        """
        means = self._cache.get(path)
        if means is None:
            means = self._cache.keep(path, self.denoiser.means(self.z, path))
        return transitions(means, self.denoiser.noise_schedule)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.steps(x).log_prob(x[..., 1:, :]).sum(-1)

    def log_ratio(self, q: Any, x: Tensor) -> Tensor:
        if q is None:
            return super().log_ratio(q, x)
        return self.steps(x).log_ratio(q.steps(x), x[..., 1:, :]).sum(-1)

    def drawn(self, keys: Keys) -> tuple[Tensor, "DrawnPath"]:
        """Draw a path from each distribution.

        Args:
            keys: streams [...].

        Returns:
            Paths [..., T + 1, d], and the distribution with the computed means.
        """
        path, means = self.denoiser.draw(self.z, keys, self.width)
        return path, DrawnPath(self, path, means)

    def sample(self, keys: Keys) -> Tensor:
        return self.denoiser.draw(self.z, keys, self.width)[0]

    def redrawn(self, x: Tensor, first: Tensor, keys: Keys) -> Tensor:
        """Draw the later states of paths anew, each by the stream that `sample` uses for it.

        Args:
            x: paths [..., T + 1, d].
            first: index [...] of the first state drawn anew; 0 for all, T + 1 for none.
            keys: streams [...].

        Returns:
            Paths [..., T + 1, d].
        """
        return self.denoiser.draw(self.z, keys, self.width, x, first)[0]

    def mode(self) -> Tensor:
        """The path without noise, from x_T = 0."""
        return self.denoiser.walk(self.z, self.z.new_zeros(*self.z.shape[:-1], self.denoiser.steps + 1, self.width))[0]

    def picked(self, rows: Tensor, columns: Tensor) -> "DenoisingPath":
        return DenoisingPath(self.z[rows, columns], self.denoiser, self.width)

    def last(self, count: int) -> "DenoisingPath":
        return replace(self, z=self.z[:, self.z.shape[1] - count :])

    def where(self, mask: Tensor, other: "DenoisingPath") -> "DenoisingPath":
        return replace(self, z=torch.where(mask[..., None], self.z, other.z))

    def cat(self, other: "DenoisingPath") -> "DenoisingPath":
        return replace(self, z=torch.cat([self.z, other.z], 1))


def transitions(means: Tensor, noise_schedule: NoiseSchedule) -> Gaussian:
    """Make the schedule's Gaussians.

    Args:
        means: [..., T, d].
        noise_schedule: the chain's transitions.

    Returns:
        Gaussians [..., T].
    """
    return Gaussian(means, noise_schedule.std[:, None].to(means.dtype).expand(*means.shape[:-1], 1))


@dataclass(frozen=True)
class DrawnPath:
    """A drafter's distributions with the paths they drew and those paths' means; recorded as a draft's q.

    `steps` and `log_prob` answer for these paths without running the net; distributions selected from it are plain ones.
    """

    distribution: DenoisingPath  # [B, G]
    path: Tensor  # [B, G, T + 1, d]
    means: Tensor  # [B, G, T, d]

    def steps(self, path: Tensor) -> Gaussian:
        """Return the distributions of the recorded steps.

        Args:
            path: the recorded paths [B, G, T + 1, d].

        Returns:
            Gaussians [B, G, T].
        """
        return transitions(self.means, self.distribution.denoiser.noise_schedule)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.steps(x).log_prob(self.path[..., 1:, :]).sum(-1)

    def picked(self, rows: Tensor, columns: Tensor) -> DenoisingPath:
        """Select distributions at `rows` and `columns` of the batch.

        Args:
            rows: LongTensor [...], row indices.
            columns: LongTensor [...], column indices.

        Returns:
            Distributions of that shape.
        """
        return self.distribution.picked(rows, columns)

    def at(self, index: Tensor) -> DenoisingPath:
        return self.distribution.at(index)

    def cat(self, other: "DrawnPath") -> "DrawnPath":
        joined = (torch.cat([one, two], 1) for one, two in ((self.path, other.path), (self.means, other.means)))
        return DrawnPath(self.distribution.cat(other.distribution), *joined)


def recorded(distribution: DenoisingPath, keys: Keys) -> tuple[Tensor, DrawnPath]:
    """Draw draft tokens and keep the means, so that judging them does not run the drafter's net again.

    Args:
        distribution: the drafter's distributions of paths.
        keys: streams [...].

    Returns:
        Paths [..., T + 1, d], and the distributions to record as q.
    """
    return distribution.drawn(keys)
