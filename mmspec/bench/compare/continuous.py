"""Comparison of methods for continuous tokens: counts, Frechet distances and seconds, with baselines that do not draft.

The baselines use fewer steps of the head, fewer iterations of a masked model, or steps that decrease along the iterations. They change the
distribution, so each is listed with its Frechet distance to real pictures.
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
    """One row of the table.

    Args:
        head: kind of head.
        method: name of the method.
        draft_tokens: draft tokens a round; None for methods without drafts.
        steps: steps of the head's chain; None for the model's own.
        iterations: iterations of a masked model; one a token by default.
        annealed: steps of a masked model's last iteration; None for the same number in all.
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
    """Yield plain decoding and the baselines of every head, then all methods for it."""
    for head in heads:
        yield MethodEntry(head)
        if head != "mixture":
            yield from (MethodEntry(head, steps=steps) for steps in (8, 4))
        if head == "masked":
            yield from (MethodEntry(head, iterations=-(-cells // each)) for each in draft_tokens)
            yield MethodEntry(head, annealed=4)
        for method, way in CONTINUOUS_METHODS.items():
            if head in way.heads and method != "plain":
                yield from (MethodEntry(head, method, each) for each in ([None] if method == "chain" else draft_tokens))


@dataclass
class MethodFigures:
    """Measurements of one row: counts over all pictures, their features, and speed relative to plain decoding with the same head."""

    stats: list[Stats] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    hits: float = 0.0
    pictures: int = 0
    ratios: dict[int, list[float]] = field(default_factory=dict)  # by batch size

    @property
    def per_call(self) -> float:
        """Tokens per call of the target's backbone."""
        return sum(stats.tokens for stats in self.stats) / sum(stats.row_calls for stats in self.stats)

    @property
    def acceptance(self) -> float | None:
        """Share of judged draft tokens that were accepted; None if nothing was drafted."""
        judged = sum(stats.judged for stats in self.stats)
        return sum(stats.accepted for stats in self.stats) / judged if judged else None

    def frechet(self, real: Tensor) -> float:
        """Return the Frechet distance of the pictures' features from `real` [N, D]."""
        return frechet(torch.cat(self.features), real)

    def faster(self, batch: int) -> Spread | None:
        """Return the speed relative to plain decoding at batch size `batch`; None if it was not measured."""
        return Spread.of(self.ratios.get(batch, []))


def write(model: ContinuousPictures, row: MethodEntry, classes: Sequence[int], seed: int) -> tuple[Tensor, Stats]:
    """Generate pictures of `classes` with the settings of `row` and return their tokens [B, h, w, d] and the statistics."""
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
    """Add pictures of `classes`, tokens `made` [B, h, w, d], and the classifier's results for them to `found`."""
    logits, features = classify(judge, tokens.as_tensor(model.decode(made)))
    found.stats.append(stats)
    found.features.append(features)
    found.hits += (logits.argmax(-1) == torch.as_tensor(classes)).sum().item()
    found.pictures += len(classes)


def race(models: dict[str, ContinuousPictures], table: dict[MethodEntry, MethodFigures], batch: int, rounds: int) -> None:
    """Time `batch` pictures by every row in turn, and store speeds relative to plain decoding with the same head in the same round."""
    every = list(table)
    for turn in range(rounds + 1):  # the first round warms up
        seconds = {}
        for row in every[turn % len(every) :] + every[: turn % len(every)]:
            began = perf_counter()
            write(models[row.head], row, [(turn + n) % 10 for n in range(batch)], seed=10**6 + turn)
            seconds[row] = perf_counter() - began
        for row in every if turn else ():
            table[row].ratios.setdefault(batch, []).append(seconds[MethodEntry(row.head)] / seconds[row])
