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

import torch
from torch import Tensor

from mmspec.core.chains.denoiser import SpeculativeDenoiser
from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Keys, Noise
from mmspec.vision.continuous.ar import scheduler
from mmspec.vision.continuous.heads import CountedHead, counted_head, require_chain_head
from mmspec.vision.continuous.latents import ChainDrafts
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
    """A model that generates sets of cells.

    Args:
        model: the model.
        classes: LongTensor [B], one a picture.
        plan: sets, chains and guidance of every iteration.
        chains: speculation inside the chains; None for plain sampling.
    """

    def __init__(self, model: MaskedAR, classes: Tensor, plan: SetPlan, chains: ChainDrafts | None = None):
        self.model, self.classes, self.plan, self.drafts = model, classes, plan, chains
        self.calls = 0  # of the transformer
        self._heads: dict[tuple[int, float | None], tuple[CountedHead, Denoiser]] = {}

    @property
    def head_calls(self) -> int:
        """Sequential calls of the head."""
        return sum(head.calls for head, _ in self._heads.values())

    @property
    def head_states(self) -> int:
        """States in these calls."""
        return sum(head.states for head, _ in self._heads.values())

    def denoiser(self, iteration: int) -> Denoiser:
        """Return the head and its chain in an iteration."""
        schedule, scale = self.plan.noise_schedules[iteration], self.plan.scales[iteration]
        if (schedule.steps, scale) not in self._heads:
            head, schedule = counted_head(self.model.head, scale), schedule.to(self.model.device)
            if self.drafts:
                require_chain_head(
                    self.model, head, schedule.timesteps, lambda: self.model.config.hidden_size * (1 if scale is None else 2)
                )
            found = SpeculativeDenoiser.of(head, schedule, self.drafts.draft_steps) if self.drafts else Denoiser(head, schedule)
            self._heads[schedule.steps, scale] = head, found
        return self._heads[schedule.steps, scale][1]

    def head_input(self, canvas: Canvas, cells: Tensor, iteration: int) -> Tensor:
        """Return the head's input for `cells` [B, M], given all committed cells: [B, M, D], or with guidance [B, M, 2 D]."""
        scale, classes, tokens, hidden = self.plan.scales[iteration], self.classes, canvas.tokens, canvas.hidden
        self.calls += 1
        if scale is None:
            return _picked(self.model(classes, tokens, hidden), cells)
        nothing = torch.full_like(classes, self.model.config.classes)
        states = self.model(torch.cat([classes, nothing]), tokens.repeat(2, 1, 1), hidden.repeat(2, 1))
        given, bare = (_picked(half, cells) for half in states.chunk(2))
        return torch.cat([given, bare], -1)

    def chains(self, z: Tensor, keys: Keys, iteration: int) -> tuple[Tensor, Tensor]:
        """Return tokens [B, M, d] by chains with the noise of `keys` [B, M], and the means of their last steps."""
        path, means = self.denoiser(iteration).draw(z, keys, self.model.config.channels)
        return path[..., -1, :], means[..., -1, :]

    def write(self, canvas: Canvas, first: int, iteration: int, noise: Noise) -> Tensor:
        """Draw and commit the cells of `iteration`, from number `first` of the order on, and return them [B, M]."""
        cells = canvas.cells(first, self.plan.sizes[iteration])
        tokens, _ = self.chains(self.head_input(canvas, cells, iteration), noise.value(cells), iteration)
        canvas.put(cells, tokens)
        return cells


def _picked(states: Tensor, cells: Tensor) -> Tensor:
    """Select the states [B, M, D] of `cells` [B, M] from `states` [B, N, D]."""
    return states.gather(1, cells[..., None].expand(*cells.shape, states.shape[-1]))
