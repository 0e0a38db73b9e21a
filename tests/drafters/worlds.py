"""Worlds in which a draft token's chance depends on its rank alone: distributions follow the last value only, and differ by a renaming of
values."""

from itertools import permutations
from math import prod

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.trees.calibration import Calibration
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from tests.oracles.tables import Table, TableTarget


def world(p: list[float], q: list[float], seed: int = 0) -> tuple[TableTarget, TableTarget]:
    """Target and drafter: whatever the last value, the value the drafter ranks r-th has probability q[r] there and p[r] here."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(p), generator=generator) for _ in p])
    distributions = (torch.tensor(distribution, dtype=torch.float64).expand(len(p), -1) for distribution in (p, q))
    target, drafter = (
        Table(torch.zeros(len(p), len(p), dtype=torch.float64).scatter_(1, order, distribution)) for distribution in distributions
    )
    return TableTarget(target), TableTarget(drafter)


def ranked(rates: list[float], size: int) -> tuple[list[float], list[float]]:
    """p and q over `size` values such that the drafter's rank-r value is right with chance `rates[r]`."""
    rest = (1 - sum(rates)) / (size - len(rates))
    weights = [0.7**rank for rank in range(size)]
    return [*rates, *[rest] * (size - len(rates))], [w / sum(weights) for w in weights]


def rates_without_replacement(p: list[float], q: list[float], count: int) -> list[float]:
    """[r] chance that the r-th of `count` siblings drawn from q without replacement is the one recursive rejection takes."""
    found = [0.0] * count
    for order in permutations(range(len(p)), count):
        left, distribution, chance = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64), 1.0
        for rank, x in enumerate(order):
            chance *= distribution[x].item()
            if chance == 0:
                break
            taken = min(1.0, (left[x] / distribution[x]).item())
            found[rank] += chance * taken / _orders(order[: rank + 1], len(p), count)
            chance *= 1 - taken
            left, distribution = _normed((left - distribution).clamp(min=0)), distribution.clone()
            distribution[x] = 0
            distribution = _normed(distribution)
    return found


def _orders(start: tuple[int, ...], size: int, count: int) -> int:
    """How many orders of `count` out of `size` begin like this: what is counted in each of them is counted once in all."""
    return prod(size - taken for taken in range(len(start), count))


def _normed(distribution: Tensor) -> Tensor:
    return distribution / distribution.sum() if distribution.sum() > 0 else distribution


def play(target, drafter, shape, rule, *, rows: int = 64, most: int = 300, length: int, seed: int = 0) -> tuple[Stats, Calibration]:
    """Whole runs of the real loop: their statistics and their calibration."""
    calibration = Calibration()
    stopping, noise = DefaultStopping(rows, most), Noise.from_seed(seed, rows)
    out = generate(
        target, ModelDrafter(drafter, shape), rule, rows, stopping=stopping, noise=noise, control=Fixed(length), on_step=calibration
    )
    return out.stats, calibration


def cooled(model, shape, temperature: float = 1.0) -> ModelDrafter:
    """`model` drafting for itself at temperature `temperature`: often right, and where that is not the target's, not always."""
    return ModelDrafter(HFTarget(model, DecoderOnly.of(model), pipeline(temperature=temperature)), shape)
