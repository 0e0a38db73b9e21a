"""Generation by masked models: random orders of cells, and sets of cells drawn at once.

After iteration k, floor(N cos(pi / 2 (k + 1) / K)) of N cells are hidden, at least one fewer each time, as in MaskGIT and MAR. The cells of
an iteration are drawn at once, each by its own chain, given all cells committed before. Cells of one set are drawn independently of each
other, which is exact only with as many iterations as cells.

The noise of a cell is keyed by the picture's seed and the cell, so a picture depends on its own seed only, and drafter and target generate
a cell with the same noise.

B pictures, N cells, M cells of one set, K iterations, T steps of a chain, d numbers a token, D the width of a state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.vision.continuous.ar import scheduler
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig

SCALES = ("constant", "linear")


def set_sizes(iterations: int, cells: int) -> list[int]:
    """Return the number of cells that each of `iterations` commits, at least one. ValueError for more iterations than cells."""
    if not 1 <= iterations <= cells:
        raise ValueError(f"iterations is {iterations}, but each of them commits at least one of {cells} cells: give 1 to {cells}")
    hidden = [cells]
    for k in range(1, iterations):
        hidden.append(min(hidden[-1] - 1, math.floor(cells * math.cos(math.pi / 2 * k / iterations))))
    return [more - less for more, less in zip(hidden, [*hidden[1:], 0], strict=True)]


def step_counts(iterations: int, first: int, last: int | None) -> list[int]:
    """Return the steps of each iteration's chains: `first`, or decreasing evenly from `first` to `last` (DiSA, arXiv 2505.20297)."""
    if last is None:
        return [first] * iterations
    if not 1 <= last <= first:
        raise ValueError(f"annealed is {last}, but chains begin with {first} steps: give the steps of the last iteration, 1 to {first}")
    return [round(first + (last - first) * k / max(1, iterations - 1)) for k in range(iterations)]


@dataclass(frozen=True)
class SetPlan:
    """Plan of a generation: iteration k commits `sizes[k]` cells by chains of `noise_schedules[k]`, with guidance scale `scales[k]`."""

    sizes: Sequence[int]
    noise_schedules: Sequence[NoiseSchedule]
    scales: Sequence[float | None]

    @staticmethod
    def of(
        config: MaskedARConfig,
        *,
        iterations: int,
        head_steps: int,
        annealed: int | None = None,
        sigma_out: float = 0.1,
        temperature: float = 1.0,
        guidance: float | None = None,
        ramp: str = "constant",
    ) -> "SetPlan":
        """Return the plan. With `ramp` "linear" the guidance scale grows from 1 to `guidance` with the committed cells."""
        if ramp not in SCALES:
            raise ValueError(f"ramp is {ramp!r}: guidance is {' or '.join(SCALES)}")
        if guidance is not None and not 0 <= guidance < math.inf:
            raise ValueError(f"guidance is {guidance!r}: a scale is a number from 0 on; 1 or None is no guidance")
        cells = config.grid**2
        sizes = set_sizes(iterations, cells)
        counts = step_counts(iterations, head_steps, annealed)
        noise_schedules = {steps: NoiseSchedule.of(scheduler(), steps, sigma_out, temperature=temperature) for steps in sorted(set(counts))}
        scales: list[float | None] = [None] * iterations
        if guidance is not None and guidance != 1:
            known = [sum(sizes[: k + 1]) / cells for k in range(iterations)]
            scales = [1 + (guidance - 1) * (share if ramp == "linear" else 1) for share in known]
        return SetPlan(sizes, [noise_schedules[steps] for steps in counts], scales)

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.sizes)


class Canvas:
    """Pictures of one generation, partly committed. Mutable."""

    def __init__(self, config: MaskedARConfig, noise: Noise):
        device, cells = noise.seeds.device, config.grid**2
        self.tokens = torch.zeros(len(noise.seeds), cells, config.channels, device=device)  # [B, N, d]
        self.hidden = torch.ones(len(noise.seeds), cells, dtype=torch.bool, device=device)
        self.order = noise.shared(torch.arange(cells, device=device)).uniform().argsort(1)  # [B, N]

    def copy(self) -> "Canvas":
        """Return an independent copy."""
        other = object.__new__(Canvas)
        other.tokens, other.hidden, other.order = self.tokens.clone(), self.hidden.clone(), self.order
        return other

    def cells(self, first: int, count: int) -> Tensor:
        """Return `count` cells [B, count] of each picture's order, from number `first` on."""
        return self.order[:, first : first + count]

    def put(self, cells: Tensor, tokens: Tensor) -> None:
        """Write `tokens` [B, M, d] to `cells` [B, M]."""
        self.tokens.scatter_(1, cells[..., None].expand_as(tokens), tokens.to(self.tokens.dtype))
        self.hidden.scatter_(1, cells, False)


class SetWriter:
    """A model that generates sets of cells for pictures of `classes` [B]; `calls` and `head_calls` count its transformer and head calls."""

    def __init__(self, model: MaskedAR, classes: Tensor, plan: SetPlan):
        self.model, self.classes, self.plan = model, classes, plan
        self.calls, self.head_calls = 0, 0

    def head_input(self, canvas: Canvas, cells: Tensor, iteration: int) -> Tensor:
        """Return the head's input for `cells` [B, M], given all committed cells: [B, M, D], or with guidance [B, M, 2 D + 1]."""
        scale, classes, tokens, hidden = self.plan.scales[iteration], self.classes, canvas.tokens, canvas.hidden
        self.calls += 1
        if scale is None:
            return _picked(self.model(classes, tokens, hidden), cells)
        nothing = torch.full_like(classes, self.model.config.classes)
        states = self.model(torch.cat([classes, nothing]), tokens.repeat(2, 1, 1), hidden.repeat(2, 1))
        given, bare = (_picked(half, cells) for half in states.chunk(2))
        return torch.cat([given, bare, torch.full_like(given[..., :1], scale)], -1)

    def chains(self, z: Tensor, noise: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        """Return tokens [B, M, d] by chains with `noise` [B, M, T + 1, d], and the means of their last steps."""
        noise_schedule = self.plan.noise_schedules[iteration]
        net: Any = self.model.head if self.plan.scales[iteration] is None else GuidedSets(self.model.head)
        path, means = Denoiser(net, noise_schedule).walk(z, noise)
        self.head_calls += noise_schedule.steps
        return path[..., -1, :], means[..., -1, :]

    def noise(self, noise: Noise, cells: Tensor, iteration: int) -> Tensor:
        """Return the noise [B, M, T + 1, d] of `cells` [B, M]: x_T, then that of every step."""
        keys = noise.value(cells).branch(self.plan.noise_schedules[iteration].steps + 1)
        return keys.normal(self.model.config.channels).to(self.model.dtype)

    def write(self, canvas: Canvas, first: int, iteration: int, noise: Noise) -> Tensor:
        """Draw and commit the cells of `iteration`, from number `first` of the order on, and return them [B, M]."""
        cells = canvas.cells(first, self.plan.sizes[iteration])
        tokens, _ = self.chains(self.head_input(canvas, cells, iteration), self.noise(noise, cells, iteration), iteration)
        canvas.put(cells, tokens)
        return cells


@dataclass(frozen=True)
class GuidedSets:
    """A head with classifier-free guidance."""

    head: Any

    def __call__(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        """Return the guided output; the head's input [M, 2 D + 1] is the state with the class, the state without, and the scale."""
        given, bare = z[:, :-1].chunk(2, -1)
        out, plain = self.head(x.repeat(2, 1), timesteps.repeat(2), torch.cat([given, bare])).chunk(2)
        return plain + z[:, -1:] * (out - plain)


def _picked(states: Tensor, cells: Tensor) -> Tensor:
    """Select the states [B, M, D] of `cells` [B, M] from `states` [B, N, D]."""
    return states.gather(1, cells[..., None].expand(*cells.shape, states.shape[-1]))
