"""`mmspec bench`: mmspec and transformers, plain and assisted, in one process; `--suite` runs a larger benchmark by name."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from mmspec.bench.suites.page import check_page, with_figures
from mmspec.commands import common
from mmspec.utils.files import whole
from mmspec.utils.names import unknown
from mmspec.utils.places import Writes

if TYPE_CHECKING:
    from mmspec.run.config import Config

EXAMPLES = """Examples:

\b
  mmspec bench
  mmspec bench --drafter lookup --draft-length 8 --repeats 5
  mmspec bench --temperature 0.8 --output results.json --html bench.html
  mmspec bench --batch-size 8
  mmspec bench --model ./big --drafter ./small --prompts prompts.txt \\
      --device cuda --dtype bfloat16
  mmspec bench --suite real --output real.json --page real.md
  mmspec bench --suite real --temperature 0 --batch-size 1 \\
      --kinds qa,gsm8k --limit 4
  mmspec bench --suite whisper --output whisper.json
"""
_DRAFT_TOKENS, _LIMIT, _NEW, _REPEATS, _BATCH = 5, 8, 64, 3, 1
_SUITE = "Suites"
SUITES = {"real": "mmspec.bench.suites.real", "whisper": "mmspec.bench.suites.whisper", "gpu": "mmspec.bench.suites.gpu"}
SUITES |= {"engine": "mmspec.bench.suites.engine"}
"""Name -> the module with its `measure(**options) -> dict` and `render(found) -> str`."""


def bench(
    model: common.MODEL = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    allow_code: common.ALLOW_CODE = False,
    drafter: common.DRAFTER = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: Annotated[
        str | None, common.option(common.HOW, "Draft tokens a round; 5 by default, for every contender.", metavar="N")
    ] = None,
    tree: common.TREE = None,
    stop_below: common.STOP_BELOW = None,
    references: common.REFERENCES = None,
    temperature: common.TEMPERATURE = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    seed: common.SEED = None,
    max_new_tokens: Annotated[
        int | None, common.option(common.DRAWING, "Largest number of new tokens per prompt; 64 by default.", metavar="N")
    ] = None,
    prompts: common.PROMPTS = None,
    limit: common.LIMIT = None,
    repeats: Annotated[int | None, common.option(common.FILES, "Runs of every prompt; 3 by default.", metavar="N")] = None,
    batch_size: Annotated[int | None, common.option(common.FILES, "Prompts run together; 1 by default.", metavar="N")] = None,
    suite: Annotated[
        str | None,
        common.option(
            _SUITE,
            "A larger benchmark: real (models people use, eight kinds of prompts), whisper (recordings), gpu (what needs a GPU) or "
            "engine (continuous batching).",
            metavar="NAME",
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        common.option(
            _SUITE, "real: kinds of prompts, such as qa,gsm8k; whisper: ljspeech,joined,digits; all by default.", metavar="NAMES"
        ),
    ] = None,
    contenders: Annotated[
        str | None, common.option(_SUITE, "Names of the tables, such as 'mmspec lookup'; all by default.", metavar="NAMES")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, common.option(_SUITE, "real: longer prompts are left out; 1024 by default.", metavar="N")
    ] = None,
    page: Annotated[
        str | None, common.option(_SUITE, "Write the tables into a Markdown page, between its marks.", metavar="FILE"), Writes()
    ] = None,
    output: Annotated[str | None, common.option(common.SHOW, "Write every figure as JSON.", metavar="FILE"), Writes()] = None,
    html: Annotated[str | None, common.option(common.SHOW, "Write a self-contained HTML report.", metavar="FILE"), Writes()] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Compare the speed of mmspec with plain and assisted generation of transformers, in turn for every prompt."""
    _bench(dict(locals()))


def _bench(given: dict[str, Any]) -> None:
    common.check_counts(given, "batch_size", "max_prompt_tokens")
    common.check_counts(given, "repeats", most=1000)  # a median of more says no more
    common.check_counts(given, "limit", most=10**9)
    if given["suite"] is not None:
        _run_suite(given)
        return
    common.refuse_unread("belongs to a suite: give --suite real", "--kinds", "--contenders", "--max-prompt-tokens", "--page")
    given = common.with_defaults(given, repeats=_REPEATS, batch_size=_BATCH)
    settings = common.config_of(common.with_defaults(given, max_new_tokens=_NEW, draft_length=str(_DRAFT_TOKENS), limit=_LIMIT))
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(whole(given[name])) for name in ("output", "html") if given[name] is not None}
        common.begin(given["verbose"])
        found = _measure(settings, given)
        if "output" in sinks:
            json.dump(found, sinks["output"], indent=1)
        if "html" in sinks:
            from mmspec.bench.report.bench import bench_page

            sinks["html"].write(bench_page(found))
    if given["as_json"]:
        common.emit(found)
    else:
        _show(found)


def _run_suite(given: dict[str, Any]) -> None:
    """Run a suite with the options that its `measure` takes; the others are refused by name."""
    name = given["suite"]
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    suite = import_module(SUITES[name])
    taken = signature(suite.measure).parameters
    unread = [key for key in given if key not in taken and key not in ("suite", "output", "page", "as_json", "verbose")]
    common.refuse_unread(f"is not read by --suite {name}", *(f"--{key.replace('_', '-')}" for key in unread))
    options = {key: value for key, value in given.items() if key in taken and value is not None}
    with ExitStack() as stack:
        if given["page"] is not None:
            check_page(given["page"])
        sinks = {key: stack.enter_context(whole(given[key])) for key in ("output", "page") if given[key] is not None}
        common.begin(given["verbose"])
        found = suite.measure(**options, **({"note": common.note} if "note" in taken else {}))
        figures = suite.render(found)
        if "output" in sinks:
            json.dump(found, sinks["output"], indent=1)
        if "page" in sinks:
            sinks["page"].write(with_figures(str(given["page"]), figures))
    if given["as_json"]:
        common.emit(found)
    else:
        print(figures, end="")


def _measure(config: "Config", given: dict[str, Any]) -> dict[str, Any]:
    """Run the benchmark and return all figures, with their provenance."""
    from mmspec.bench.compare.run import run_trials, summarise, trial_count
    from mmspec.utils.provenance import provenance

    pair = common.load(config)
    prompts = common.prompts_for(pair, given)
    draft_tokens = config.drafter.length if isinstance(config.drafter.length, int) and config.drafter.length > 0 else _DRAFT_TOKENS
    size, repeats = given["batch_size"], given["repeats"]
    with common.progress("bench", trial_count(pair, prompts, draft_tokens, size, repeats)) as done:
        trials = run_trials(pair, prompts, draft_tokens=draft_tokens, batch_size=size, repeats=repeats, done=done)
    figures = [
        {"contender": t.contender, "batch": t.batch, "repeat": t.repeat, "tokens": t.outcome.count, "target_calls": t.outcome.calls}
        | {"seconds": t.outcome.seconds, "refused": t.outcome.refused}
        for t in trials
    ]
    return {
        "provenance": provenance(pair.target.device),
        "settings": asdict(config),
        "exactness": pair.exactness,
        "prompts": len(prompts),
        "batch_size": size,
        "repeats": repeats,
        "assisted_draft_tokens": draft_tokens,
        "contenders": summarise(trials, greedy=config.run.temperature == 0),
        "trials": figures,
    }


def _show(found: dict[str, Any]) -> None:
    """Print the table, and the machine it was measured on."""
    from mmspec.utils.provenance import machine

    show = common.console(False)
    table = Table()
    for name in ("contender", "tokens per call", "tok/s", "x plain", "x assisted", "same text"):
        table.add_column(name, justify="left" if name == "contender" else "right")
    for row in found["contenders"]:
        if row["refused"]:
            table.add_row(row["contender"], "refused")
            continue
        same = "" if row["same_text"] is None else f"{row['same_text']['same']} of {row['same_text']['of']}"
        ratios = [_spread(row[key], 2) for key in ("ratio_to_plain", "ratio_to_assisted")]
        table.add_row(row["contender"], f"{row['tokens_per_call']:.2f}", f"{row['tokens_per_second']['median']:.0f}", *ratios, same)
    show.print(table)
    for row in found["contenders"]:
        if row["refused"]:
            show.print(f"{row['contender']} refused: {row['refused']}", soft_wrap=True)
    for row in found["contenders"]:
        if not row["refused"] and row["seconds"]:
            total = max(row["seconds"]["total"], 1e-9)
            shares = ", ".join(f"{name} {spent / total:.0%}" for name, spent in row["seconds"].items() if name != "total")
            show.print(f"{row['contender']}: {shares}", soft_wrap=True)
    about = f"prompts: {found['prompts']}, repeats: {found['repeats']}, batch: {found['batch_size']}; medians with quartiles"
    show.print(f"{about}; {found['exactness']}; {machine(found['provenance'])}", soft_wrap=True)


def _spread(spread: dict[str, float] | None, digits: int) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.{digits}f} ({spread['low']:.{digits}f}-{spread['high']:.{digits}f})"
