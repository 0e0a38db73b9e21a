"""Speculation inside a diffusion head's chain beside plain sampling with the same head; see vision/compare_chain.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.chains.control import usual_draft_steps
from mmspec.minis import load
from mmspec.minis.latents import load_latents
from mmspec.utils.screen import track
from mmspec.vision import ContinuousARConfig, ContinuousPictures, Sampling, generate
from mmspec.vision.codes import tokenizer
from mmspec.vision.continuous.ar import DiffusionHead
from mmspec.vision.quality.classifier import classify
from mmspec.vision.quality.distances import frechet


class HeavyHead(nn.Module):
    """A head that also runs a random head of another size, whose output it drops."""

    def __init__(self, head: DiffusionHead, config: ContinuousARConfig, blocks: int, width: int):
        super().__init__()
        sizes: dict[str, Any] = config.to_dict() | {"head_blocks": blocks, "head_width": width}
        self.head, self.heavy, self.output = head, DiffusionHead(ContinuousARConfig(**sizes)), head.output
        self.split = (3 * head.blocks + 2) * head.output.in_features, (3 * blocks + 2) * width

    def forward(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        self.heavy(x, timesteps, z)
        return self.head(x, timesteps, z)

    def embed_times(self, timesteps: Tensor) -> Tensor:
        return torch.cat([self.head.embed_times(timesteps), self.heavy.embed_times(timesteps)], -1)

    def condition(self, times: Tensor, z: Tensor) -> Tensor:
        own, heavy = times.split([self.head.output.in_features, self.heavy.output.in_features], -1)
        return torch.cat([self.head.condition(own, z), self.heavy.condition(heavy, z)], -1)

    def denoise(self, x: Tensor, condition: Tensor) -> Tensor:
        own, heavy = condition.split(self.split, -1)
        self.heavy.denoise(x, heavy)
        return self.head.denoise(x, own)


class Unprepared(nn.Module):
    """A head that is conditioned anew in every step."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        return self.head(x, timesteps, z)


@dataclass(eq=False)
class ChainRow:
    """A way to draw, and what was measured of it.

    Args:
        name: shown in the table.
        target: the model.
        steps: of the head's chain.
        options: further arguments of `mmspec.vision.generate`.
        base: the plain sampling that it is compared with; None for itself.
        calls: of the target's head, for all counted pictures.
        draft_calls: of the drafter's head.
        forwards: of the target's backbone.
        accepted: draft tokens.
        judged: draft tokens.
        states: in the calls of the target's head.
        tokens: of the counted pictures.
        features: of the judged pictures.
        ratios: speeds relative to `base` by batch size.
    """

    name: str
    target: ContinuousPictures
    steps: int
    options: dict[str, Any]
    base: "ChainRow | None" = None
    calls: float = 0.0
    draft_calls: float = 0.0
    forwards: float = 0.0
    accepted: int = 0
    judged: int = 0
    states: float = 0.0
    tokens: int = 0
    features: list[Tensor] = field(default_factory=list)
    ratios: dict[int, list[float]] = field(default_factory=dict)

    def draw(self, classes: list[int], seed: int) -> Any:
        """Generate pictures.

        Args:
            classes: numbers of their classes.
            seed: of the first picture.

        Returns:
            The result of `mmspec.vision.generate`.
        """
        return generate(self.target, classes, seed=seed, sampling=Sampling(steps=self.steps), **self.options)

    def cells(self, features: Tensor | None) -> dict[str, Any]:
        """Return the row as JSON.

        Args:
            features: those of real pictures [N, D], or None to leave quality out.

        Returns:
            Cells by name; calls and states are a token's.
        """
        quality = {} if features is None else {"frechet": frechet(torch.cat(self.features), features)}
        speed = {f"batch {batch}": [median(each), min(each), max(each)] for batch, each in self.ratios.items()}
        counts = {"calls": self.calls / self.tokens, "states": self.states / self.tokens if self.states else None}
        counts |= {"forwards": self.forwards / self.tokens}
        if self.judged:
            counts |= {"draft calls": self.draft_calls / self.tokens, "accepted": self.accepted / self.judged}
        return {"way": self.name, "steps": self.steps} | counts | quality | speed


def chain_rows(
    steps: list[int],
    lengths: list[int],
    fewer: list[int],
    large: list[int] | None,
    name: str = "continuous",
    windows: Sequence[int] = (),
) -> list[ChainRow]:
    """Make the rows of every number of steps, then those of the masked model.

    Args:
        steps: numbers of steps.
        lengths: drafted steps a call, beside the usual number.
        fewer: divisors of the steps for plain sampling with fewer.
        large: blocks and width of a random head whose cost is added, or None.
        name: of the mini, or the folder of a target with its drafters, the autoencoder's beside it.
        windows: tokens in flight of method "path" with each of the model's drafters, its chains drawn plainly and speculatively.

    Returns:
        The rows.
    """
    ((mini, drafters), (again, _)), found = (_loaded(name) for _ in range(2)), []
    network: Any = mini.model
    anew: Any = again.model
    if large:
        network.head, anew.head = (HeavyHead(each.head, each.config, *large).eval() for each in (network, anew))
    anew.head = Unprepared(anew.head)
    published, held = (ContinuousPictures(each, mini.to_pictures, mini.labels) for each in (anew, network))
    for count in steps:
        base = ChainRow("plain", mini, count, {"method": "plain"})
        found += [ChainRow("plain, modulations every step", published, count, {"method": "plain"}, base), base]
        found += [ChainRow("plain, fewer steps (lossy)", mini, count // less, {"method": "plain"}, base) for less in fewer if count >= less]
        found.append(ChainRow("chain, prediction held", held, count, {"method": "chain"}, base))
        found.append(ChainRow("chain", mini, count, {"method": "chain"}, base))
        found += [ChainRow(f"chain, {length} drafted", mini, count, {"method": "chain", "draft_steps": length}, base) for length in lengths]
        for (kind, drafter), window in product(drafters.items(), windows):
            path = {"method": "path", "window": window, "drafter": drafter}
            inside = path | {"draft_steps": usual_draft_steps(count)}
            found.append(ChainRow(f"path, {kind}, {window} in flight", mini, count, path, base))
            found.append(ChainRow(f"path, {kind}, {window} in flight, chains inside", mini, count, inside, base))
    if not large and name == "continuous":
        masked, count = load("continuous-masked").target, min(steps)
        base = ChainRow("masked, plain", masked, count, {"method": "plain"})
        found += [base, ChainRow("masked, cspd-compat (lossy)", masked, count, {"method": "cspd-compat", "window": 5}, base)]
    return found


def _loaded(name: str) -> tuple[ContinuousPictures, dict[str, Any]]:
    """Target and drafters of a mini or a folder."""
    if (folder := Path(name)).is_dir():
        found = load_latents(folder.parent, folder.name)
        return found["target"], found["drafters"]
    mini = load(name)
    return mini.target, mini.drafters


def counts(table: list[ChainRow], judge: Any, counted: int, pictures: int, batch: int) -> None:
    """Count calls on some pictures, one by one, and judge more, in batches.

    Args:
        table: the rows; counts and features are stored in them.
        judge: a classifier of `mmspec.minis.images.load_judge`.
        counted: number of pictures whose calls are counted.
        pictures: number of judged pictures.
        batch: of these.
    """
    for number, row in enumerate(track(table, "counts")):
        for first in range(counted):
            stats = row.draw([first % 10], first).stats
            row.calls, row.states = row.calls + stats.head_calls, row.states + getattr(stats, "head_states", 0)
            row.draft_calls, row.forwards = row.draft_calls + getattr(stats, "draft_head_calls", 0), row.forwards + stats.target_calls
            row.accepted, row.judged, row.tokens = row.accepted + stats.accepted, row.judged + stats.judged, row.tokens + stats.tokens
        for first in range(0, pictures, batch):
            out = row.draw([n % 10 for n in range(first, min(first + batch, pictures))], 10**4 * (number + 1) + first)
            row.features.append(classify(judge, tokenizer.as_tensor(out.images))[1])


def time_rows(table: list[ChainRow], batch: int, rounds: int) -> None:
    """Time pictures by every row in turn, and store speeds in the rows.

    Args:
        table: the rows.
        batch: pictures a draw.
        rounds: draws a row; one more warms up.
    """
    for turn in range(rounds + 1):  # the first round warms up
        spent: dict[ChainRow, float] = {}
        for row in table[turn % len(table) :] + table[: turn % len(table)]:
            began = perf_counter()
            row.draw([(turn + n) % 10 for n in range(batch)], 10**6 + turn)
            spent[row] = perf_counter() - began
        for row in table if turn else ():
            row.ratios.setdefault(batch, []).append(spent[row.base or row] / spent[row])
