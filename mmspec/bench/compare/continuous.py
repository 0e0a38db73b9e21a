"""The ways to write pictures of continuous tokens, side by side: counts, distances and seconds, beside baselines that draft nothing.

Speculation pays only where it beats what anybody can have without it: fewer steps of the head, fewer iterations of a masked model, steps
that become fewer along the iterations. Those change the distribution, so each stands beside its Frechet distance to real pictures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.compare.run import Spread
from mmspec.core.noise import Noise
from mmspec.core.stats import Stats
from mmspec.vision import generate
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures
from mmspec.vision.quality.classifier import classify
from mmspec.vision.quality.distances import frechet


@dataclass(frozen=True)
class MethodEntry:
    """One row of the table: the head it is for, and how it writes.

    `iterations` and `annealed` are of masked models, which write a token an iteration where no number is given.
    """

    head: str
    method: str = "plain"
    draft_tokens: int | None = None
    steps: int | None = None
    iterations: int | None = None
    annealed: int | None = None

    @property
    def name(self) -> str:
        """Name of the row in tables, such as "path, 4 draft tokens"."""
        parts = [self.method]
        parts += [f"{self.draft_tokens} draft tokens"] if self.draft_tokens else []
        parts += [f"{self.steps} steps"] if self.steps else []
        parts += [f"{self.iterations} iterations"] if self.iterations else []
        parts += [f"{self.annealed} steps at the end"] if self.annealed else []
        return ", ".join(parts)


def rows(heads: Sequence[str], draft_tokens: Sequence[int], cells: int) -> Iterator[MethodEntry]:
    """Every way of every head, after the head's plain decoding and baselines."""
    for head in heads:
        yield MethodEntry(head)
        if head != "mixture":
            yield from (MethodEntry(head, steps=steps) for steps in (8, 4))
        if head == "masked":
            yield from (MethodEntry(head, iterations=-(-cells // each)) for each in draft_tokens)
            yield MethodEntry(head, annealed=4)
        for method, way in CONTINUOUS_METHODS.items():
            if head in way.heads and method != "plain":
                yield from (MethodEntry(head, method, each) for each in draft_tokens)


@dataclass
class MethodFigures:
    """What a row was seen to do: counts over all its pictures, their features, and its ratios to plain decoding of its head."""

    stats: list[Stats] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    hits: float = 0.0
    pictures: int = 0
    ratios: dict[int, list[float]] = field(default_factory=dict)  # by batch size

    @property
    def per_call(self) -> float:
        """Tokens a call of the target's backbone."""
        return sum(stats.tokens for stats in self.stats) / sum(stats.row_calls for stats in self.stats)

    @property
    def acceptance(self) -> float | None:
        """Draft tokens accepted of those judged; None where nothing was drafted."""
        judged = sum(stats.judged for stats in self.stats)
        return sum(stats.accepted for stats in self.stats) / judged if judged else None

    def frechet(self, real: Tensor) -> float:
        """Return the Frechet distance of the pictures' features from `real` [N, D]."""
        return frechet(torch.cat(self.features), real)

    def faster(self, batch: int) -> Spread | None:
        """Return the speed relative to plain decoding at batch size `batch`; None if it was not measured."""
        return Spread.of(self.ratios.get(batch, []))


def write(model: ContinuousPictures, row: MethodEntry, classes: Sequence[int], seed: int) -> tuple[Tensor, Stats]:
    """Tokens [B, h, w, d] of pictures of `classes` as `row` says."""
    if row.head == "masked":
        network: Any = model.model
        drafted = {} if row.draft_tokens is None else {"drafter": model.drafter, "gamma": row.draft_tokens}
        chosen = {"iterations": row.iterations or network.config.grid**2, "head_steps": row.steps, "annealed": row.annealed}
        noise = Noise.from_seed(seed, len(classes))
        out = generate_masked(network, list(classes), method=row.method, noise=noise, **chosen, **drafted)  # pyright: ignore
        return model.picture(out.sequences), out.stats
    window = None if row.draft_tokens is None else row.draft_tokens + 1
    drawn = generate(
        model, list(classes), method=row.method, window=window, seed=seed, sampling=Sampling(steps=row.steps) if row.steps else None
    )
    return drawn.tokens, drawn.stats


def look(found: MethodFigures, model: ContinuousPictures, judge: Any, made: Tensor, stats: Stats, classes: Sequence[int]) -> None:
    """Count `made` pictures [B, h, w, d] of `classes`, and what the judge says of them, into `found`."""
    logits, features = classify(judge, tokens.as_tensor(model.decode(made)))
    found.stats.append(stats)
    found.features.append(features)
    found.hits += (logits.argmax(-1) == torch.as_tensor(classes)).sum().item()
    found.pictures += len(classes)


def race(models: dict[str, ContinuousPictures], table: dict[MethodEntry, MethodFigures], batch: int, rounds: int) -> None:
    """Seconds of `batch` pictures, all rows taking turns, the first one changing: ratios to plain decoding of the same head and round."""
    every = list(table)
    for turn in range(rounds + 1):  # the first round warms up
        seconds = {}
        for row in every[turn % len(every) :] + every[: turn % len(every)]:
            began = perf_counter()
            write(models[row.head], row, [(turn + n) % 10 for n in range(batch)], seed=10**6 + turn)
            seconds[row] = perf_counter() - began
        for row in every if turn else ():
            table[row].ratios.setdefault(batch, []).append(seconds[MethodEntry(row.head)] / seconds[row])
