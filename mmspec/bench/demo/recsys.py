"""The demo's recommendations: the shipped mini on users that were not in training, by transformers' beam search and by every drafter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from time import perf_counter
from typing import Any

import torch

from mmspec.bench.compare.recommendations import Prefixes, beam_search_baseline, overlap
from mmspec.bench.compare.run import versus
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import millions
from mmspec.loading.text import device_of
from mmspec.minis import HOME, Mini, load
from mmspec.recsys import recommend

K = 10


@dataclass(frozen=True)
class RecsysMethod:
    """Settings of a search. `drafter` is a name in the mini; None for no drafter."""

    name: str
    what: str
    mode: str = "strict"
    drafter: str | None = None


METHODS = (
    RecsysMethod("plain", "K paths share the prompt's cache, nothing drafted", "plain"),
    RecsysMethod("model", "a small model's wide beams, checked level by level", drafter="model"),
    RecsysMethod("head", "a recurrent head on the target's own state", drafter="head"),
    RecsysMethod("retriever", "items bought together, no model", drafter="retriever"),
)


@dataclass
class RecsysRun:
    """One user by one method."""

    items: list[Any]
    scores: list[float]
    stats: Any
    committed: list[int]  # levels by round
    same: bool = False  # the items of plain search

    @property
    def seconds(self) -> float:
        """Seconds of the whole search."""
        return self.stats.seconds["total"]


@dataclass
class RecsysResults:
    """Data of the section."""

    mini: Mini
    users: Sequence[Sequence[Any]]
    ways: tuple[RecsysMethod, ...]
    runs: dict[str, list[RecsysRun]] = field(default_factory=dict)
    usual: list[float] = field(default_factory=list)  # seconds of transformers' beam search, user by user


def there() -> bool:
    """Return True if the mini is installed."""
    return (HOME / "recsys" / "target" / "model.safetensors").exists()


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return (len(METHODS) + 1) * (_examples(request) + 1)


def section(request: DemoRequest) -> Section:
    """Recommend to every user by every method in turn, and compare with plain search."""
    mini, device = load("recsys"), torch.device(device_of(request.device))
    mini = replace(mini, target=mini.target.to(device), drafters={name: drafter.to(device) for name, drafter in mini.drafters.items()})
    ways = tuple(way for way in METHODS if way.drafter is None or way.drafter in mini.drafters)
    found = RecsysResults(mini, list(mini.examples[: _examples(request)]), ways, {way.name: [] for way in ways})
    prefixes = Prefixes(mini.catalogue)
    turns: list[Callable[[int], None]] = [lambda number: found.usual.append(_usual(found, prefixes, number))]
    turns += [lambda number, way=way: found.runs[way.name].append(_once(found, way, number, request.seed)) for way in ways]
    for turn in turns:  # the first run of each pays for allocations
        turn(0)
        request.done()
    found.usual.clear()
    for runs in found.runs.values():
        runs.clear()
    for number in range(len(found.users)):
        for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
            turn(number)
            request.done()
    for runs in found.runs.values():
        for run, plain in zip(runs, found.runs["plain"], strict=True):
            run.same = run.items == plain.items
    rows = [_row(way, found) for way in ways]
    promised = [run.same for way in ways if way.mode == "strict" for run in found.runs[way.name]]
    exact = [row for row in rows if row["way"] != "plain" and "lossy" not in row["exactness"]]
    view = {"found": found, "target": millions(mini.target), "scores": [_scores(found, run) for run in found.runs["plain"]]}
    return Section("Recommendations", rows, exact, view, sum(promised), len(promised))


def _examples(request: DemoRequest) -> int:
    return 4 if request.quick else 12


def _usual(found: RecsysResults, prefixes: Prefixes, number: int) -> float:
    inputs = found.mini.catalogue.inputs([found.users[number]], found.mini.target.device)
    start = perf_counter()
    beam_search_baseline(found.mini.target, inputs, prefixes, K)
    return perf_counter() - start


def _once(found: RecsysResults, way: RecsysMethod, number: int, seed: int) -> RecsysRun:
    committed: list[int] = []
    drafter = None if way.drafter is None else found.mini.drafters[way.drafter]
    out = recommend(
        found.mini.target,
        [found.users[number]],
        k=K,
        catalogue=found.mini.catalogue,
        drafter=drafter,
        method=way.mode,
        seed=seed + number,
        on_step=lambda step: committed.append(len(step.committed.values[0])),
    )
    return RecsysRun(out.items[0], out.scores[0], out.stats, committed)


def _row(way: RecsysMethod, found: RecsysResults) -> dict[str, Any]:
    runs, plain = found.runs[way.name], found.runs["plain"]
    levels, calls, drafted, accepted = (
        sum(part) for part in zip(*((r.stats.tokens, r.stats.row_calls, r.stats.drafted, r.stats.accepted) for r in runs), strict=True)
    )
    return {
        "way": way.name,
        "what": way.what,
        "exactness": runs[0].stats.exactness,
        "tokens": levels,
        "target_calls": calls,
        "forwards": calls / len(runs),
        "tokens_per_call": levels / calls,
        "acceptance": accepted / drafted if drafted else None,
        "seconds": sum(run.seconds for run in runs) / len(runs),
        **versus("plain", [base.seconds / run.seconds for run, base in zip(runs, plain, strict=True)]),
        **versus("generate", [base / run.seconds for run, base in zip(runs, found.usual, strict=True)]),
        "same_items": {"same": sum(run.same for run in runs), "of": len(runs)} if way.name != "plain" else None,
        "overlap": overlap([run.items for run in runs], [run.items for run in plain]),
    }


def _scores(found: RecsysResults, run: RecsysRun) -> list[tuple[str, float, float]]:
    """Return each item's name, its probability as a percentage of the best item's, and the log-probability of its codes."""
    levels, best = found.mini.catalogue.levels, max(run.scores)
    pairs = zip(run.items, run.scores, strict=True)
    return [(found.mini.catalogue.name(item), 100 * exp(levels * (score - best)), levels * score) for item, score in pairs]
