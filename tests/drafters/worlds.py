"""Worlds in which a guess's chance depends on its rank alone: laws follow the last value only, and differ by a renaming of values."""

from itertools import permutations
from math import prod

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.family import DecoderOnly
from mmspec.core.hf import HFTarget
from mmspec.core.limits import Limits
from mmspec.core.noise import Noise
from mmspec.core.processors import pipeline
from mmspec.core.stats import Stats
from mmspec.drafters.calibration import Calibration
from mmspec.drafters.model import ModelDrafter
from tests.oracles.tables import Table, TableTarget


def world(p: list[float], q: list[float], seed: int = 0) -> tuple[TableTarget, TableTarget]:
    """Target and drafter: whatever the last value, the value the drafter ranks r-th has probability q[r] there and p[r] here."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(p), generator=generator) for _ in p])
    laws = (torch.tensor(law, dtype=torch.float64).expand(len(p), -1) for law in (p, q))
    target, drafter = (Table(torch.zeros(len(p), len(p), dtype=torch.float64).scatter_(1, order, law)) for law in laws)
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
        left, law, chance = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64), 1.0
        for rank, x in enumerate(order):
            chance *= law[x].item()
            if chance == 0:
                break
            taken = min(1.0, (left[x] / law[x]).item())
            found[rank] += chance * taken / _orders(order[: rank + 1], len(p), count)
            chance *= 1 - taken
            left, law = _normed((left - law).clamp(min=0)), law.clone()
            law[x] = 0
            law = _normed(law)
    return found


def _orders(start: tuple[int, ...], size: int, count: int) -> int:
    """How many orders of `count` out of `size` begin like this: what is counted in each of them is counted once in all."""
    return prod(size - taken for taken in range(len(start), count))


def _normed(law: Tensor) -> Tensor:
    return law / law.sum() if law.sum() > 0 else law


def play(target, drafter, shape, rule, *, rows: int = 64, most: int = 300, length: int, seed: int = 0) -> tuple[Stats, Calibration]:
    """Whole runs of the real loop: their statistics and their calibration."""
    calibration = Calibration()
    limits, noise = Limits(rows, most), Noise.from_seed(seed, rows)
    out = generate(target, ModelDrafter(drafter, shape), rule, rows, limits=limits, noise=noise, control=Fixed(length), on_step=calibration)
    return out.stats, calibration


def cooled(model, shape, heat: float = 1.0) -> ModelDrafter:
    """`model` drafting for itself at temperature `heat`: often right, and where that is not the target's, not always."""
    return ModelDrafter(HFTarget(model, DecoderOnly.of(model), pipeline(temperature=heat)), shape)
