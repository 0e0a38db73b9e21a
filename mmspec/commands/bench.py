"""`mmspec bench`: mmspec and transformers, plain and assisted, in one process."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from mmspec.commands import common
from mmspec.utils.files import whole

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
"""
_DRAFT_TOKENS, _LIMIT, _NEW = 5, 8, 64


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
    temperature: common.TEMPERATURE = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    seed: common.SEED = None,
    max_new_tokens: Annotated[
        int | None, common.option(common.DRAWING, "Largest number of new tokens per prompt; 64 by default.", metavar="N")
    ] = None,
    prompts: common.PROMPTS = None,
    limit: common.LIMIT = None,
    repeats: Annotated[int, common.option(common.FILES, "Runs of every prompt; 3 by default.", metavar="N")] = 3,
    batch_size: Annotated[int, common.option(common.FILES, "Prompts run together; 1 by default.", metavar="N")] = 1,
    output: Annotated[str | None, common.option(common.SHOW, "Write every figure as JSON.", metavar="FILE")] = None,
    html: Annotated[str | None, common.option(common.SHOW, "Write a self-contained HTML report.", metavar="FILE")] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Compare the speed of mmspec with plain and assisted generation of transformers, in turn for every prompt."""
    _bench(dict(locals()))


def _bench(given: dict[str, Any]) -> None:
    common.check_counts(given, "repeats", "batch_size")
    common.check_counts(given, "limit", most=10**9)
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
