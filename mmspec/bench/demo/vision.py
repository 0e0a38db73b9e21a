"""The demo's pictures: the shipped mini's example captions, by every method with the same seeds."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.bench.compare.run import versus
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import millions
from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.loading.text import device_of
from mmspec.loading.vision import Loaded, load_image_model
from mmspec.minis import HOME
from mmspec.vision.generation import generate
from mmspec.vision.quality.contact_sheets import RAMP, temperature

METHODS = {
    "plain": "one code a forward",
    "jacobi": "a window drawn with the target's own noise",
    "sjd": "a window drawn afresh every round",
    "scd": "a window that keeps what it can",
    "scd-gumbel": "the same, with shared Gumbel noise",
    "sjd-pac": "a kept window that begins as a tree",
    "gsd": "a fresh window, accepted by groups of similar codes",
    "zipar": "rows side by side, contexts incomplete",
}
_BUDGET = 25.0  # seconds after which no further prompt is begun


@dataclass
class VisionRun:
    """One prompt by one method."""

    picture: Image.Image
    codes: Tensor  # [height, width]
    runs: Tensor | None  # [height, width] how many codes were committed together there; None for rows side by side
    stats: Any
    same: bool = False  # code for code plain decoding's picture

    @property
    def seconds(self) -> float:
        """Seconds of the whole generation."""
        return self.stats.seconds["total"]


@dataclass
class VisionResults:
    """Data of the section."""

    loaded: Loaded
    prompts: list[str]
    runs: dict[str, list[VisionRun]] = field(default_factory=dict)


def there() -> bool:
    """Return True if the mini is installed."""
    return (HOME / "vision" / "scenes" / "target" / "model.safetensors").exists()


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return len(METHODS) * _examples(request) + 1


def section(request: DemoRequest) -> Section:
    """Generate every prompt by every method in turn, and compare with plain decoding."""
    loaded = load_image_model("mini", device=device_of(request.device))
    found = VisionResults(loaded, list(loaded.examples[: _examples(request)]), {way: [] for way in METHODS})
    _once(loaded, "scd", found.prompts[0], request.seed)  # the first run pays for allocations
    request.done()
    start = perf_counter()
    for number, prompt in enumerate(found.prompts):
        if number and perf_counter() - start > _BUDGET:  # a slow machine shows fewer prompts to bound the waiting time
            found.prompts = found.prompts[:number]
            break
        turns = list(METHODS)
        for way in turns[number % len(turns) :] + turns[: number % len(turns)]:
            found.runs[way].append(_once(loaded, way, prompt, request.seed + number))
            request.done()
    for way in METHODS:
        for run, plain in zip(found.runs[way], found.runs["plain"], strict=True):
            run.same = torch.equal(run.codes, plain.codes)
    rows = [_row(way, found) for way in METHODS]
    promised = [run.same for way in METHODS if way != "plain" for run in found.runs[way] if run.stats.exactness == TOKEN_EXACT]
    exact = [row for row in rows if row["way"] != "plain" and row["drift"] is None and "lossy" not in row["exactness"]]
    return Section("Pictures", rows, exact, _view(found), sum(promised), len(promised))


def _examples(request: DemoRequest) -> int:
    return 2 if request.quick else 4


def _once(loaded: Loaded, way: str, prompt: str, seed: int) -> VisionRun:
    out = generate(loaded.model, [prompt], method=way, guidance=loaded.guidance, seed=seed)
    return VisionRun(out.images[0], out.tokens[0], None if out.runs is None else out.runs[0], out.stats)


def _row(way: str, found: VisionResults) -> dict[str, Any]:
    runs, plain = found.runs[way], found.runs["plain"]
    drafted = sum(run.stats.drafted for run in runs)
    tokens, calls, seconds = (sum(part) for part in zip(*((r.stats.tokens, r.stats.row_calls, r.seconds) for r in runs), strict=True))
    drifts = [run.stats.drift for run in runs if run.stats.drift is not None]
    return {
        "way": way,
        "what": METHODS[way],
        "exactness": runs[0].stats.exactness,
        "tokens": tokens,
        "target_calls": calls,
        "forwards": calls / len(runs),
        "tokens_per_call": tokens / calls,
        "acceptance": sum(run.stats.accepted for run in runs) / drafted if drafted else None,
        "seconds": seconds / len(runs),
        "tokens_per_second": tokens / seconds,
        **versus("plain", [base.seconds / run.seconds for run, base in zip(runs, plain, strict=True)]),
        "drift": sum(drifts) / len(drifts) if drifts else None,
        "same_pictures": {"same": sum(run.same for run in runs), "of": len(runs)} if way != "plain" else None,
    }


def _view(found: VisionResults) -> dict[str, Any]:
    """Return the data of the template, with maps of how many codes were committed together; methods for parallel rows have no map."""
    runs = {way: [run.runs for run in runs] for way, runs in found.runs.items()}
    seen = {way: [counts for counts in maps if counts is not None] for way, maps in runs.items() if maps[0] is not None}
    most = max(int(counts.max()) for maps in seen.values() for counts in maps)
    return {
        "found": found,
        "target": millions(found.loaded.model.model),
        "maps": {way: [temperature(counts, most) for counts in maps] for way, maps in seen.items()},
        "most": most,
        "ramp": ", ".join(f"rgb{colour}" for colour in RAMP),
    }
