"""The demo's pictures of continuous tokens: plain decoding and the exact methods of each head, alone and in a batch.

A distribution-exact method gives another picture than plain decoding, from the same distribution, so pictures cannot be compared. The demo
checks instead that a seed gives the same picture alone and in a batch of four. The distribution is tested by
`mmspec.bench.check.projection`.
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.bench.compare.run import versus
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import millions
from mmspec.loading.text import device_of
from mmspec.loading.vision import Loaded, load_image_model
from mmspec.minis import HOME
from mmspec.vision.generation import generate


@dataclass(frozen=True)
class ContinuousEntry:
    """A row of the table: a method and a head."""

    method: str
    head: str
    what: str


METHODS = {
    "plain": ContinuousEntry("plain", "diffusion", "one token a forward, its head's chain step by step"),
    "path": ContinuousEntry("path", "diffusion", "whole denoising chains drafted, accepted step by step"),
    "block": ContinuousEntry("block", "diffusion", "the same, all steps of all draft tokens accepted together"),
    "aligned": ContinuousEntry("aligned", "diffusion", "noise shared with the drafter, accepted at the last step"),
    "plain, mixture": ContinuousEntry("plain", "mixture", "one token a forward, with a density in closed form"),
    "density": ContinuousEntry("density", "mixture", "tokens drafted, accepted by their densities"),
}
ALIKE = 1e-3
"""How far numbers of a token may lie apart, in its deviations, and be called the same: batches round differently."""
TOGETHER = 4
"""Pictures in the batch that single ones are compared with."""
_BUDGET = 40.0  # seconds after which no further prompt is begun


@dataclass
class ContinuousRun:
    """One prompt by one method, alone."""

    picture: Image.Image
    tokens: Tensor  # [h, w, d]
    stats: Any
    same: bool = False  # the picture that the seed gives in a batch of four, too

    @property
    def seconds(self) -> float:
        """Seconds of the whole generation."""
        return self.stats.seconds["total"]


@dataclass
class ContinuousResults:
    """Data of the section."""

    loaded: Loaded
    prompts: list[str]
    runs: dict[str, list[ContinuousRun]] = field(default_factory=dict)


def there() -> bool:
    """Return True if the mini and its drafter are installed."""
    folder = HOME / "continuous"
    parts = ("autoencoder/model.safetensors", "diffusion/target/model.safetensors", "diffusion/drafters/small/model.safetensors")
    return all((folder / part).exists() for part in parts)


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return len(METHODS) * (_examples(request) + 1)


def section(request: DemoRequest) -> Section:
    """Generate every prompt by every method in turn, and all four prompts in one batch."""
    loaded = load_image_model("continuous", device=device_of(request.device))
    batch = [loaded.examples[number % len(loaded.examples)] for number in range(TOGETHER)]
    ways = [name for name, way in METHODS.items() if _drawable(loaded, way)]
    found = ContinuousResults(loaded, batch[: _examples(request)], {name: [] for name in ways})
    seeds = [request.seed + number for number in range(TOGETHER)]
    together = {}
    for name in ways:  # a first run, which also pays for allocations
        together[name] = generate(_model(loaded, METHODS[name]), batch, method=METHODS[name].method, seed=seeds).tokens
        request.done()
    start = perf_counter()
    for number, prompt in enumerate(found.prompts):
        if number and perf_counter() - start > _BUDGET:  # a slow machine shows fewer prompts to bound the waiting time
            found.prompts = found.prompts[:number]
            break
        for name in ways[number % len(ways) :] + ways[: number % len(ways)]:
            run = _once(loaded, METHODS[name], prompt, seeds[number])
            run.same = torch.allclose(run.tokens, together[name][number], rtol=0, atol=ALIKE)
            found.runs[name].append(run)
            request.done()
    rows = [_row(name, found) for name in ways]
    same = [run.same for runs in found.runs.values() for run in runs]
    promise = "pictures the same alone and in a batch of four"
    drafting = [row for row in rows if METHODS[row["way"]].method != "plain"]
    slower = all(row["times_plain"] < 1 for row in drafting)
    view = {"found": found, "target": millions(loaded.model.model), "slower": slower}
    return Section("Continuous pictures", rows, drafting, view, sum(same), len(same), promise)


def _examples(request: DemoRequest) -> int:
    return 2 if request.quick else TOGETHER


def _model(loaded: Loaded, way: ContinuousEntry) -> Any:
    return next(model for model in (loaded.model, *loaded.model.others) if model.head == way.head)  # pyright: ignore[reportAttributeAccessIssue]


def _drawable(loaded: Loaded, way: ContinuousEntry) -> bool:
    """Return True if the head is installed, and a drafter if the method needs one."""
    models: Any = (loaded.model, *loaded.model.others)  # pyright: ignore[reportAttributeAccessIssue]
    return any(model.head == way.head and (way.method == "plain" or model.drafter is not None) for model in models)


def _once(loaded: Loaded, way: ContinuousEntry, prompt: str, seed: int) -> ContinuousRun:
    out = generate(_model(loaded, way), [prompt], method=way.method, seed=seed)
    return ContinuousRun(out.images[0], out.tokens[0], out.stats)


def _row(name: str, found: ContinuousResults) -> dict[str, Any]:
    way, runs = METHODS[name], found.runs[name]
    plain = next(found.runs[other] for other in found.runs if METHODS[other].head == way.head)  # of the same head: plain comes first
    drafted = sum(run.stats.drafted for run in runs)
    tokens, calls, seconds = (sum(part) for part in zip(*((r.stats.tokens, r.stats.row_calls, r.seconds) for r in runs), strict=True))
    return {
        "way": name,
        "what": way.what,
        "head": way.head,
        "exactness": runs[0].stats.exactness,
        "tokens": tokens,
        "target_calls": calls,
        "forwards": calls / len(runs),
        "tokens_per_call": tokens / calls,
        "acceptance": sum(run.stats.accepted for run in runs) / drafted if drafted else None,
        "seconds": seconds / len(runs),
        "tokens_per_second": tokens / seconds,
        **versus("plain", [base.seconds / run.seconds for run, base in zip(runs, plain, strict=True)]),
        "drift": None,
        "same_in_batch": {"same": sum(run.same for run in runs), "of": len(runs)},
    }
