"""The demo's text section: the shipped pair on its example prompts, by every named method."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import perf_counter
from typing import Any

from mmspec.bench.compare.peers import run_transformers, synchronize
from mmspec.bench.compare.run import times_faster, versus
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import by_position, millions, phases
from mmspec.core.stats import Stats
from mmspec.loading.text import Pair, load_pair
from mmspec.minis import load, shipped_drafters
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.text.pieces import TextRounds

SAMPLED = 0.8
_BUDGET = 45.0  # seconds after which no further prompt is begun


@dataclass(frozen=True)
class TextEntry:
    """One method. `base` names the method whose tokens it must reproduce."""

    name: str
    words: str
    drafter: str | None
    base: str | None
    temperature: float = 0.0
    length: int = 0
    tree: tuple[int, ...] | None = None


PEER = TextEntry("generate", "transformers' own generate, greedy", None, None)
PLAIN = TextEntry("plain", "mmspec without a drafter, greedy", None, "generate")
PLAIN_SAMPLED = TextEntry("plain sampling", f"mmspec without a drafter, temperature {SAMPLED}", None, None, SAMPLED)
METHODS = (
    PEER,
    PLAIN,
    TextEntry("model", "a small model drafts 4 tokens", "model", "generate", length=4),
    TextEntry("tree", "a small model drafts a tree of 4, 2, 1", "model", "generate", length=3, tree=(4, 2, 1)),
    TextEntry("eagle3", "a layer on the target's states drafts 5 tokens", "eagle3", "generate", length=5),
    TextEntry("lookup", "copies what followed the same tokens before", "lookup", "generate", length=8),
    TextEntry("suffix", "follows the longest suffix seen before", "suffix", "generate", length=8),
    PLAIN_SAMPLED,
    TextEntry("coupled sampling", f"the small model, temperature {SAMPLED}, coupled draws", "model", "plain sampling", SAMPLED, length=4),
)


@dataclass
class TextRun:
    """One method on one example."""

    tokens: list[int]
    text: str
    seconds: float
    stats: Stats | None
    rounds: list[Any]
    same: bool | None = None  # as the base's tokens; None where there is no base


@dataclass
class TextResults:
    """Data of the section."""

    prompts: list[str]
    runs: dict[str, list[TextRun]] = field(default_factory=dict)
    totals: dict[str, Stats] = field(default_factory=dict)


def there() -> bool:
    """Return True: the text mini is always installed."""
    return True


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return len(METHODS) * (_examples(request) + 1)


def section(request: DemoRequest) -> Section:
    """Run every method on every example in turn, and compare."""
    most = 24 if request.quick else 64
    run = RunSection(max_new_tokens=most, seed=request.seed)
    pair = load_pair(Config(target=TargetSection(device=request.device), drafter=DrafterSection(kind="model"), run=run))
    count = _examples(request)
    prompts = [str(prompt) for prompt in pair.examples[:: max(1, len(pair.examples) // count)][:count]]
    found = TextResults(prompts, {way.name: [] for way in METHODS})
    found.totals = {way.name: Stats() for way in METHODS}
    brief = replace(pair, config=replace(pair.config, run=replace(run, max_new_tokens=8)))
    for way in METHODS:  # first runs pay for allocations
        _once(brief, way, found.prompts[0], None)
        request.done()
    start = perf_counter()
    for number, prompt in enumerate(found.prompts):
        if perf_counter() - start > _BUDGET:  # a slow machine shows fewer prompts to bound the waiting time
            found.prompts = found.prompts[:number]
            break
        for way in METHODS[number % len(METHODS) :] + METHODS[: number % len(METHODS)]:
            found.runs[way.name].append(_once(pair, way, prompt, found.totals[way.name]))
            request.done()
    _compare(found)
    rows = [_row(way, found) for way in METHODS]
    flags = [run.same for way in METHODS for run in found.runs[way.name] if run.same is not None]
    candidates = [row for row in rows if row["acceptance"] is not None and row["times_generate"] is not None]
    return Section("Text", rows, candidates, _view(found, pair), sum(flags), len(flags))


def _examples(request: DemoRequest) -> int:
    return 2 if request.quick else 5


def _trained(name: str | None, pair: Pair) -> Any:
    """Return the mini's trained drafter of that name; None for other names."""
    return _nets()[name].to(pair.target.device) if name in shipped_drafters() else None


@lru_cache(maxsize=1)
def _nets() -> dict[str, Any]:
    return load("text").drafters


def _once(pair: Pair, way: TextEntry, prompt: str, total: Stats | None) -> TextRun:
    inputs, seed = pair.inputs([prompt]), pair.config.run.seed
    if way is PEER:
        out = run_transformers(pair, inputs, seed, {})
        return TextRun(out.tokens[0], pair.decode(out.tokens[0]), out.seconds, None, [])
    rounds = TextRounds(pair.decode)
    drafter = pair.model if way.drafter == "model" else _trained(way.drafter, pair) or way.drafter
    synchronize(pair.target.device)
    steps: list[Any] = []
    out = pair.generate(
        inputs,
        drafter=drafter,
        accept="exact",
        temperature=way.temperature,
        draft_length=way.length,
        tree=way.tree,
        on_step=steps.append,
    )
    for step in steps:  # after the clock has stopped
        rounds(step)
        if total is not None:
            total.add(step)
    ids = out.sequences[0, : out.lengths[0]].tolist()
    return TextRun(ids, pair.decode(ids), out.stats.seconds["total"], out.stats, rounds.found)


def _compare(found: TextResults) -> None:
    """Set `same`: whether the tokens equal those of the base's run."""
    for way in METHODS:
        if way.base is not None:
            for run, base in zip(found.runs[way.name], found.runs[way.base], strict=True):
                run.same = run.tokens == base.tokens


def _row(way: TextEntry, found: TextResults) -> dict[str, Any]:
    runs, total = found.runs[way.name], found.totals[way.name]
    tokens, seconds = sum(len(run.tokens) for run in runs), sum(run.seconds for run in runs)
    plain = PLAIN_SAMPLED if way.temperature else PLAIN
    flags = [run.same for run in runs if run.same is not None]
    return {
        "way": way.name,
        "what": way.words,
        "exactness": "" if way is PEER else runs[0].stats.exactness,
        "tokens": tokens,
        "target_calls": total.row_calls if way is not PEER else tokens,
        "tokens_per_call": total.tokens_per_call if way is not PEER else 1.0,
        "acceptance": total.accepted / total.drafted if total.drafted else None,
        "tokens_per_second": tokens / seconds,
        **versus("plain", times_faster(runs, found.runs[plain.name])),
        **versus("generate", [] if way.temperature else times_faster(runs, found.runs[PEER.name])),
        "same_text": {"same": sum(flags), "of": len(flags)} if flags else None,
    }


def _view(found: TextResults, pair: Pair) -> dict[str, Any]:
    drafting = [way for way in METHODS if way.drafter is not None]
    return {
        "found": found,
        "methods": drafting,
        "target": millions(pair.target),
        "drafter": millions(pair.model),
        "new": pair.config.run.max_new_tokens,
        "accepted": {way.name: by_position(found.totals[way.name]) for way in drafting},
        "times": {way.name: phases(found.totals[way.name].seconds) for way in METHODS if way is not PEER},
    }
