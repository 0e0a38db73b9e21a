"""Toy models whose tokens are written by small random diffusion heads, and the test that finds a wrong rule over them.

The target's head is told a function of the last token's last state, so tokens hang on one another; nets are tanh maps, so distributions are
not normal. One round of a rule is run on many rows and every row is completed by the target. Whatever the drafter, the emitted states then
have the target's distribution, so their residuals (x - m_p) / std, seen along m_q - m_p, are independent standard normals.
"""

from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath, DrawnPath, recorded
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft, Scored, Verdict

PASS, FAIL = 0.01, 1e-6
START = 10_000  # where a row's completion draws its numbers, far from those of the round


def chain_kernel(steps: int, seed: int = 0, noise: float = 0.5) -> NoiseSchedule:
    """Random transitions of `steps` steps."""
    numbers = torch.rand(3, steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return NoiseSchedule(torch.arange(steps, 0, -1), 0.4 + 0.5 * numbers[0], 0.3 + 0.5 * numbers[1], noise * (0.5 + numbers[2]))


@dataclass(frozen=True)
class TanhNet:
    """out = a tanh(b x + c z + t) + shift: a head without training."""

    size: int
    seed: int
    away: float = 0.0  # how far from seed 0's net

    def __call__(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        at, inward, outward = self._weights(0)
        if self.away:
            others = self._weights(self.seed + 1)
            at, inward, outward = (one + self.away * two for one, two in zip((at, inward, outward), others, strict=True))
        return torch.tanh(x @ inward + z @ at + 0.1 * timesteps.double()[:, None]) @ outward

    def _weights(self, seed: int) -> list[Tensor]:
        numbers = torch.Generator().manual_seed(seed)
        return [torch.randn(self.size, self.size, generator=numbers, dtype=torch.float64) * self.size**-0.5 for _ in range(3)]


@dataclass(frozen=True)
class PathTarget:
    """The distribution of a token after a token whose path is [..., T + 1, d]; it is also a drafter's view of one."""

    denoiser: Denoiser
    size: int  # d

    def distribution(self, nodes: Tensor) -> DenoisingPath:
        return DenoisingPath(torch.tanh(2 * nodes[..., -1, :]), self.denoiser, self.size)

    def score(self, draft: Draft) -> Scored:
        return Scored(self.distribution(draft.nodes))

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        nodes, distributions = [pending.nodes[:, -1:]], []
        for step in range(budget.length):
            position = pending.start[:, None] + step
            value, distribution = recorded(self.distribution(nodes[-1]), noise.draft_token(position, pending.start))
            nodes.append(value)
            distributions.append(distribution)
        if not distributions:
            return pending
        q = distributions[0]
        for distribution in distributions[1:]:
            q = q.cat(distribution)
        return pending.extend_chain(torch.cat(nodes[1:], 1), budget.draft_tokens, q)


def path_pair(size: int, steps: int, away: float = 0.35, seed: int = 0, noise: float = 0.5) -> tuple[PathTarget, PathTarget]:
    noise_schedule = chain_kernel(steps, seed, noise)
    return tuple(PathTarget(Denoiser(TanhNet(size, seed, gap), noise_schedule), size) for gap in (0.0, away))  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Round:
    """One round of many rows."""

    draft: Draft
    verdict: Verdict
    paths: Tensor  # [B, G + 1, T + 1, d] committed tokens, and the target's own behind them
    before: Tensor  # [B, G + 1, T + 1, d] the token in front of each


def one_round(target: PathTarget, drafter: PathTarget, rule: Any, rows: int, length: int, *, seed: int = 0, ragged: bool = False) -> Round:
    """A round of `length` draft tokens, fewer in some rows where `ragged`, and its rows completed by the target."""
    noise, steps = Noise.from_seed(seed, rows), target.denoiser.steps
    begin = torch.randn(rows, steps + 1, target.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pending = Draft.root(begin, torch.zeros(rows, dtype=torch.long))
    left = torch.full((rows,), length + 1)
    if ragged:
        left = torch.arange(rows) % (length + 1) + 1
    draft = drafter.propose(pending, Budget(left, length), noise)
    verdict = rule(draft, target.score(draft), noise)
    paths, before = [], [begin]
    for column in range(length + 1):
        position = torch.full((rows, 1), START + column)
        fresh = target.distribution(before[-1][:, None]).sample(noise.value(position))[:, 0]
        paths.append(torch.where((column < verdict.count)[:, None, None], verdict.values[:, column], fresh))
        before.append(paths[-1])
    return Round(draft, verdict, torch.stack(paths, 1), torch.stack(before[:-1], 1))


def residuals(target: PathTarget, drafter: PathTarget, paths: Tensor, before: Tensor) -> Tensor:
    """(x - m_p) / std of every state of `paths` [B, N, T + 1, d] along m_q - m_p, those of x_T first: [B, N, T + 1]."""
    p, q = (model.distribution(before).steps(paths) for model in (target, drafter))
    away = q.mean - p.mean
    away = away / away.norm(dim=-1, keepdim=True)
    seen = ((paths[..., 1:, :] - p.mean) / p.scale * away).sum(-1)
    return torch.cat([paths[..., :1, :].mean(-1) * target.size**0.5, seen], -1)


def projection(seen: Tensor) -> float:
    """p-value that `seen` [B, N, S] are independent standard normals: the least of those of every (token, state), of all together and
    of every pair's correlation, times how many there are (Bonferroni)."""
    flat = seen.flatten(1)
    found = [stats.kstest(column.numpy(), "norm").pvalue for column in flat.unbind(1)]
    found.append(stats.kstest(flat.flatten().numpy(), "norm").pvalue)
    pairs = torch.triu_indices(flat.shape[1], flat.shape[1], 1)
    together = (flat.T @ flat)[pairs[0], pairs[1]] / len(flat) ** 0.5  # of independent numbers: each about N(0, 1)
    found.extend(2 * stats.norm.sf(together.abs().numpy()))
    return float(min(1.0, len(found) * min(found)))


def bias(target: PathTarget, drafter: PathTarget, rule: Any, rows: int, length: int, **options: Any) -> float:
    """The p-value of a rule's round."""
    run = one_round(target, drafter, rule, rows, length, **options)
    return projection(residuals(target, drafter, run.paths, run.before))


__all__ = ["DrawnPath", "PathTarget", "Round", "bias", "chain_kernel", "one_round", "path_pair", "projection", "residuals"]
