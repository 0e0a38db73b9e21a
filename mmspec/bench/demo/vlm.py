"""The demo's vision-language section: the mini on its examples, with text-only, vision-language and trained drafters."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from time import perf_counter
from typing import Any

from mmspec.bench.compare.peers import constant_draft_tokens, run_transformers, synchronize
from mmspec.bench.compare.run import times_faster, versus
from mmspec.bench.demo.run import DemoRequest, Section
from mmspec.bench.report.page import by_position, millions, phases
from mmspec.core.stats import Stats
from mmspec.loading.text import Pair, load_pair
from mmspec.minis import HOME, Mini, load
from mmspec.minis.drawn.scenes import word_kinds
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.text import ensemble, view
from mmspec.text.inputs.vision_inputs import VisionPrompt
from mmspec.text.pieces import TextRounds

DRAFT_TOKENS, SAMPLED = 5, 0.8
_BUDGET = 40.0  # seconds after which no further picture is begun
Options = Callable[[Mini], dict[str, Any]]
"""What `generate` takes, from the mini."""


@dataclass(frozen=True)
class VlmEntry:
    """One method. `base` names the method whose tokens it must reproduce; `peer` holds options of transformers' own `generate`."""

    name: str
    words: str
    options: Options = lambda mini: {"drafter": None}
    base: str | None = "plain"
    peer: Options | None = None
    temperature: float = 0.0
    shown: bool = False  # beside plain decoding, round by round


def _text(name: str) -> Options:
    return lambda mini: {"drafter": mini.drafters["text"], "view": view(name, mini.processor)}


def _small(*names: str) -> Options:
    def options(mini: Mini) -> dict[str, Any]:
        views = [view(name, mini.processor) for name in names]
        return {"drafter": mini.drafters["vlm"], "view": views[0] if len(views) == 1 else ensemble(*views)}

    return options


def _another(prompt: Any, session: Any) -> Any:
    """Return the prompt with its pictures upside down and in negative, for a drafter; the target keeps the right ones."""
    return {**prompt, "pixel_values": -prompt["pixel_values"].flip(-2)}


def _looking_wrong(mini: Mini) -> dict[str, Any]:
    return {"drafter": mini.drafters["vlm"], "view": _another}


PEER = VlmEntry("generate", "transformers' own generate", peer=lambda mini: {})
PLAIN = VlmEntry("plain", "mmspec without a drafter", base="generate")
PLAIN_SAMPLED = VlmEntry("plain sampling", f"mmspec without a drafter, temperature {SAMPLED}", base=None, temperature=SAMPLED)
_BLIND = "transformers' assisted generation with the small one that sees: there it drafts blind"
_ASSISTED = VlmEntry("assisted", _BLIND, peer=lambda mini: {"assistant_model": mini.drafters["vlm"]})
_READING = (
    VlmEntry("text, newline", "a small language model reads a newline for each picture", _text("newline"), shown=True),
    VlmEntry("text, drop", "it reads the words alone", _text("drop")),
)
_SEEING = (
    _ASSISTED,
    VlmEntry("vlm, own", "a small model that sees looks at the picture itself", _small("own"), shown=True),
    VlmEntry("vlm, pooled", "it looks at patches averaged two by two", _small("pooled")),
    VlmEntry("vlm, own + newline", "both views in one forward, weighed by what was accepted", _small("own", "newline"), shown=True),
    VlmEntry(
        "vlm, wrong picture",
        "a control: it looks at it upside down, in negative",
        _looking_wrong,
    ),
    PLAIN_SAMPLED,
    VlmEntry("coupled sampling", f"the small one that sees, temperature {SAMPLED}", _small("own"), "plain sampling", temperature=SAMPLED),
)
_HEADS = {"vispec": "a layer on the target's states and the picture in brief", "hivis": "a layer on the target's states, and no picture"}


@dataclass
class VlmRun:
    """One method on one example."""

    tokens: list[int]
    text: str
    seconds: float
    calls: int
    stats: Stats | None
    rounds: list[Any]
    same: bool | None = None  # as the base's tokens; None where there is no base


@dataclass
class VlmResults:
    """Data of the section."""

    pair: Pair
    requests: list[VisionPrompt]
    ways: tuple[VlmEntry, ...]
    runs: dict[str, list[VlmRun]] = field(default_factory=dict)
    totals: dict[str, Stats] = field(default_factory=dict)


def there() -> bool:
    """Return True if the mini is installed."""
    return (HOME / "vlm" / "target" / "model.safetensors").exists()


def installed_methods(mini: Mini) -> tuple[VlmEntry, ...]:
    """Return the methods whose drafters the mini has."""
    lookup = VlmEntry("lookup", "copies what followed the same tokens before", lambda mini: {"drafter": "lookup"})
    heads = [name for name in mini.drafters if name not in ("text", "vlm")]
    drawn = [
        VlmEntry(name, _HEADS.get(name, "reads the target's states"), _head(name), shown=not number) for number, name in enumerate(heads)
    ]
    found = [PEER, PLAIN, lookup, *(_READING if "text" in mini.drafters else ()), *(_SEEING if "vlm" in mini.drafters else ()), *drawn]
    return tuple(found)


def _head(name: str) -> Options:
    return lambda mini: {"drafter": mini.drafters[name]}


def work(request: DemoRequest) -> int:
    """Return the number of runs that `section` makes."""
    return len(installed_methods(load("vlm"))) * (_examples(request) + 1)


def section(request: DemoRequest) -> Section:
    """Run every method on every example in turn, and compare."""
    run = RunSection(max_new_tokens=_most(request), seed=request.seed)
    mini = load("vlm")
    pair = load_pair(Config(target=TargetSection(path="vlm", device=request.device), drafter=DrafterSection(kind="none"), run=run))
    for drafter in mini.drafters.values():
        drafter.to(pair.target.device)
    half = (len(pair.examples) + 1) // 2  # descriptions come first: they and questions take turns
    mixed = [each for both in zip_longest(pair.examples[:half], pair.examples[half:]) for each in both if each is not None]
    examples: list[Any] = mixed[: _examples(request)]
    found = VlmResults(pair, examples, installed_methods(mini))
    found.runs, found.totals = {way.name: [] for way in found.ways}, {way.name: Stats() for way in found.ways}
    brief = replace(pair, config=replace(pair.config, run=replace(run, max_new_tokens=8)))
    for way in found.ways:  # first runs pay for allocations
        _once(brief, mini, way, examples[0], None)
        request.done()
    start = perf_counter()
    for number, example in enumerate(examples):
        if number and perf_counter() - start > _BUDGET:  # a slow machine shows fewer pictures to bound the waiting time
            found.requests = examples[:number]
            break
        turn = number % len(found.ways)
        for way in found.ways[turn:] + found.ways[:turn]:
            found.runs[way.name].append(_once(pair, mini, way, example, found.totals[way.name]))
            request.done()
    _compare(found)
    rows = [_row(way, found) for way in found.ways]
    flags = [run.same for way in found.ways if way.peer is None for run in found.runs[way.name] if run.same is not None]
    drafting = [row for row in rows if row["acceptance"] is not None and row["times_generate"] is not None and "wrong" not in row["way"]]
    return Section("Questions about pictures", rows, drafting, _view(found), sum(flags), len(flags))


def _examples(request: DemoRequest) -> int:
    return 2 if request.quick else 6


def _most(request: DemoRequest) -> int:
    return 48 if request.quick else 96


def _once(pair: Pair, mini: Mini, way: VlmEntry, example: VisionPrompt, total: Stats | None) -> VlmRun:
    inputs, seed = pair.inputs([example]), pair.config.run.seed
    if way.peer is not None:
        given = way.peer(mini)
        with constant_draft_tokens(given.get("assistant_model"), DRAFT_TOKENS):
            out = run_transformers(pair, inputs, seed, given)
        return VlmRun(out.tokens[0], pair.decode(out.tokens[0]), out.seconds, out.calls, None, [])
    rounds, steps = TextRounds(pair.decode), []
    synchronize(pair.target.device)
    options = {"draft_length": DRAFT_TOKENS, "temperature": way.temperature, **way.options(mini)}
    out = pair.generate(inputs, on_step=steps.append, **options)
    for step in steps:  # after the clock has stopped
        rounds(step)
        if total is not None:
            total.add(step)
    ids = out.sequences[0, : out.lengths[0]].tolist()
    return VlmRun(ids, pair.decode(ids), out.stats.seconds["total"], out.stats.row_calls, out.stats, rounds.found)


def _compare(found: VlmResults) -> None:
    """Set `same`: whether the tokens equal those of the base's run."""
    for way in found.ways:
        if way.base is not None and way is not PEER:
            for run, base in zip(found.runs[way.name], found.runs[way.base], strict=True):
                run.same = run.tokens == base.tokens


def _row(way: VlmEntry, found: VlmResults) -> dict[str, Any]:
    runs, total = found.runs[way.name], found.totals[way.name]
    tokens, calls, seconds = (sum(part) for part in zip(*((len(run.tokens), run.calls, run.seconds) for run in runs), strict=True))
    flags = [run.same for run in runs if run.same is not None]
    plain = PLAIN_SAMPLED if way.temperature else PLAIN
    return {
        "way": way.name,
        "what": way.words,
        "exactness": runs[0].stats.exactness if runs[0].stats else "",
        "tokens": tokens,
        "target_calls": calls,
        "tokens_per_call": tokens / calls,
        "acceptance": total.accepted / total.drafted if total.drafted else None,
        "tokens_per_second": tokens / seconds,
        **versus("plain", times_faster(runs, found.runs[plain.name])),
        **versus("generate", [] if way.temperature else times_faster(runs, found.runs[PEER.name])),
        "same_text": {"same": sum(flags), "of": len(flags)} if flags else None,
    }


def by_kind(runs: list[VlmRun]) -> dict[str, tuple[int, int]]:
    """Return (accepted, judged) draft tokens, by the kind of the target's word; "function" words do not depend on the picture."""
    found: dict[str, tuple[int, int]] = {}
    for run in runs:
        committed = [(each, turn, piece.strip()) for each in run.rounds for turn, piece in enumerate(each.pieces)]
        for kind, (each, turn, word) in zip(word_kinds([word for *_, word in committed]), committed, strict=True):
            hits, of = found.get(kind, (0, 0))
            if word and turn < each.drafted:  # the token behind the last draft token is the target's own
                found[kind] = (hits + (turn < each.accepted), of + 1)
    return found


def _view(found: VlmResults) -> dict[str, Any]:
    drafting = [way for way in found.ways if found.totals[way.name].drafted and not way.temperature]
    compared = [way for way in drafting if way.shown or way.options is _looking_wrong]
    words = {way.name: by_kind(found.runs[way.name]) for way in compared}
    own = [way for way in found.ways if way.peer is None and not way.temperature]
    return {
        "found": found,
        "methods": [way for way in drafting if way.shown],
        "target": millions(found.pair.target),
        "new": found.pair.config.run.max_new_tokens,
        "accepted": {way.name: by_position(found.totals[way.name]) for way in compared},
        "times": {way.name: phases(found.totals[way.name].seconds) for way in own},
        "words": words,
        "kinds": sorted({kind for counts in words.values() for kind in counts}, key=lambda kind: (kind == "function", kind)),
    }
