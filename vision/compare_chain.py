"""Speculation inside a diffusion head's chain beside plain sampling and fewer steps: calls of the head, states in them, quality, seconds.

    python vision/compare_chain.py --steps 16 64 128 --pictures 200 --rounds 7 --batches 1 8
    python vision/compare_chain.py --steps 64 --pictures 8 --rounds 5 --head 6 1024       (the cost of MAR-B's head; 8 1280: MAR-L's)

Calls and states are a token's. Seconds are ratios to plain sampling with the same head and steps, taken in turns in one process: median
and range. `--head BLOCKS WIDTH` also runs a random head of that size and drops its output: the tokens are the mini's, the cost is the large
head's. Quality is the Frechet distance to held-out Fashion-MNIST (MMSPEC_DATA), not measured for --head.
"""

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import mmspec
from mmspec.minis import HOME, pictures
from mmspec.minis.images import load_judge
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.vision import ContinuousARConfig, Sampling
from mmspec.vision.codes import tokenizer
from mmspec.vision.continuous.ar import DiffusionHead
from mmspec.vision.quality.classifier import classify
from mmspec.vision.quality.distances import frechet


class HeavyHead(nn.Module):
    """A head that also runs a random head of another size, whose output it drops."""

    def __init__(self, head: DiffusionHead, config: ContinuousARConfig, blocks: int, width: int):
        super().__init__()
        sizes = config.to_dict() | {"head_blocks": blocks, "head_width": width}
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


@dataclass(eq=False)
class Row:
    """A way to draw, and what was measured of it."""

    name: str
    steps: int
    options: dict[str, Any]
    base: int  # steps of the plain sampling it is compared with
    calls: float = 0.0
    states: float = 0.0
    tokens: int = 0
    features: list[Tensor] = field(default_factory=list)
    ratios: dict[int, list[float]] = field(default_factory=dict)

    def draw(self, target: Any, classes: list[int], seed: int) -> Any:
        """Pictures of `classes`."""
        return mmspec.vision.generate(target, classes, seed=seed, sampling=Sampling(steps=self.steps), **self.options)

    def cells(self, features: Tensor | None) -> dict[str, Any]:
        """The row as JSON."""
        quality = {} if features is None else {"frechet": frechet(torch.cat(self.features), features)}
        speed = {f"batch {batch}": [median(each), min(each), max(each)] for batch, each in self.ratios.items()}
        counts = {"calls": self.calls / self.tokens, "states": self.states / self.tokens}
        return {"way": self.name, "against": self.base} | counts | quality | speed


def rows(steps: list[int], lengths: list[int], fewer: list[int]) -> list[Row]:
    """Plain sampling first, for every number of steps."""
    found = []
    for count in steps:
        found.append(Row(f"plain, {count} steps", count, {"method": "plain"}, count))
        found += [Row(f"chain, {length} drafted", count, {"method": "chain", "draft_steps": length}, count) for length in lengths]
        found.append(Row("chain, usual", count, {"method": "chain"}, count))
        found.append(Row("chain, auto", count, {"method": "chain", "draft_steps": "auto"}, count))
        found.append(Row("path and chain, 2 tokens", count, {"method": "path", "window": 3, "draft_steps": 8}, count))
        found += [Row(f"plain, {less} steps (lossy)", less, {"method": "plain"}, count) for less in fewer if less < count]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--lengths", nargs="+", type=int, default=[4, 8, 16], help="drafted steps a call")
    parser.add_argument("--fewer", nargs="+", type=int, default=[4, 8, 16], help="steps of plain sampling beside it")
    parser.add_argument("--pictures", type=int, default=20, help="that are counted and judged")
    parser.add_argument("--batch", type=int, default=1, help="of these; in a batch the slowest row decides on the calls")
    parser.add_argument("--rounds", type=int, default=0, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="that are timed")
    parser.add_argument("--head", nargs=2, type=int, metavar=("BLOCKS", "WIDTH"), help="run a random head of this size, too")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="two pictures of four steps, no seconds")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.lengths, args.fewer, args.pictures, args.rounds = [4], [2], [2], 2, 0
    target, judge = mmspec.load("continuous").target, load_judge(HOME / "vision" / "fashion")
    if args.head:
        target.model.head = HeavyHead(target.model.head, target.model.config, *args.head).eval()
    table = rows(args.steps, args.lengths, args.fewer)
    for row in track(table, "counts"):
        for first in range(0, args.pictures, args.batch):
            out = row.draw(target, [n % 10 for n in range(first, min(first + args.batch, args.pictures))], first)
            row.calls, row.states = row.calls + out.stats.head_calls * len(out.tokens), row.states + out.stats.head_states
            row.tokens += out.stats.tokens
            row.features.append(classify(judge, tokenizer.as_tensor(out.images))[1])
    for batch in args.batches if args.rounds else ():
        for turn in range(args.rounds + 1):  # the first round warms up
            spent = {}
            for row in table[turn % len(table) :] + table[: turn % len(table)]:
                began = perf_counter()
                row.draw(target, [(turn + n) % 10 for n in range(batch)], 10**6 + turn)
                spent[row] = perf_counter() - began
            plain = {row.base: spent[row] for row in table if row.name == f"plain, {row.base} steps"}
            for row in table if turn else ():
                row.ratios.setdefault(batch, []).append(plain[row.base] / spent[row])
    features = None
    if not (args.head or args.smoke):
        shown = torch.as_tensor(pictures.fashion(Path(os.environ.get("MMSPEC_DATA", "../shared/data")), "test")[0])
        features = torch.cat([classify(judge, tokenizer.as_tensor(some))[1] for some in shown.split(500)])
    about, lines = provenance(torch.device("cpu")), [row.cells(features) for row in table]
    if args.out:
        write_json(args.out, {"rows": lines, "settings": {k: str(v) for k, v in vars(args).items()}, "provenance": about})
    for line in lines:
        print(" | ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in line.items()))
    print(machine(about), about["date"])


if __name__ == "__main__":
    main()
