"""`mmspec check`: the losslessness self-test for any target, drafter and rule."""

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mmspec.commands import common
from mmspec.commands.checking.kinds import check_custom, check_kind, kind_of, refuse_unread_options
from mmspec.utils.devices import device_of

if TYPE_CHECKING:
    from mmspec.run.config import Config

EXAMPLES = """Examples:

\b
  mmspec check
  mmspec check --drafter suffix
  mmspec check --accept block --temperature 0.8
  mmspec check --tree 4,2,1 --prompts prompts.txt
  mmspec check --model ./big --drafter ./small --prompts prompts.txt --dtype bfloat16 --margin 0.5
  mmspec check --model ./big --drafter ./small --prompts prompts.txt --budget 600
  mmspec check --model vlm --drafter text --view newline
  mmspec check --model ./sees --drafter ./small --picture cat.jpg --prompts questions.txt
  mmspec check --model vision --method jacobi
  mmspec check --model continuous --method path
  mmspec check --model speech --drafter vadusa
  mmspec check --model recsys
  mmspec check --model ./janus --modality image --prompts captions.txt
  mmspec check --target my_models:target --drafter my_models:drafter
"""
_NEW, _PROMPTS, _SECONDS = 48, 4, 120.0
_MODALITY = "text (default), image, speech or recommend; minis are known by their names."
_TARGET = "A function that returns the target: a transformers model, or (a Target, its prompts)."
_DRAFTER = (
    "As mmspec text takes it: none, model, lookup, a path, ...; or MODULE:FUNCTION that returns one, called with the target if it takes it."
)
_METHOD = "Of images and recommendations: the method or mode; the model's default where none is given."


def check(
    model: common.MODEL = None,
    modality: Annotated[str | None, common.option(common.WHAT, _MODALITY, metavar="NAME")] = None,
    target: Annotated[str | None, common.option(common.WHAT, _TARGET, metavar="MODULE:FUNCTION")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    config: common.CONFIG = None,
    changes: common.SET = None,
    allow_code: common.ALLOW_CODE = False,
    drafter: Annotated[str | None, common.option(common.HOW, _DRAFTER, metavar="NAME")] = None,
    method: Annotated[str | None, common.option(common.HOW, _METHOD, metavar="NAME")] = None,
    view: common.VIEW = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    stop_below: common.STOP_BELOW = None,
    references: common.REFERENCES = None,
    temperature: Annotated[
        float | None, common.option(common.DRAWING, "Temperature of sampled checks; 0.8 by default.", metavar="T")
    ] = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    seed: common.SEED = None,
    max_new_tokens: Annotated[
        int | None, common.option(common.DRAWING, "Largest number of new tokens per prompt; 48 by default.", metavar="N")
    ] = None,
    pictures: Annotated[
        list[str] | None, common.option(common.FILES, "Ask about this picture or clip; may be repeated.", "--picture", metavar="FILE")
    ] = None,
    prompts: common.PROMPTS = None,
    limit: Annotated[int | None, common.option(common.FILES, "Use the first N prompts; 4 by default.", metavar="N")] = None,
    budget: Annotated[
        float | None,
        common.option(common.SHOW, "Begin no further check after this many seconds, 120 by default; 0 for no limit.", metavar="SECONDS"),
    ] = None,
    margin: Annotated[float | None, common.option(common.SHOW, "Scores closer than this are a near tie; by dtype.", metavar="X")] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Test that drafting does not change the output, and its conditions: the target's logits, trees, windows, the drafter's draws.

    A failed check exits with 1 and states the likely cause.
    """
    given = common.with_defaults(dict(locals()), max_new_tokens=_NEW, limit=_PROMPTS, budget=_SECONDS)
    common.check_counts(given, "limit", most=10**9)
    kind = kind_of(given)
    refuse_unread_options(kind, given["target"] is not None)
    if margin is not None and not 0 <= margin < float("inf"):
        raise ValueError(f"--margin is {margin}: give a number from 0 on")
    if not 0 <= given["budget"] < float("inf"):
        raise ValueError(f"--budget is {budget}: give seconds, or 0 for no limit")
    own = given["target"] is None and kind == "text"
    settings = common.config_of(given if own else given | {"model": None, "drafter": None})
    common.begin(verbose)
    if own:
        findings, stats, pair, about = _check(settings, given)
        name, drafter_name, exactness = pair.name, pair.drafter_name, pair.exactness
    else:
        from mmspec.utils.provenance import provenance

        run = check_custom if given["target"] is not None else partial(check_kind, kind)
        findings, stats, name, drafter_name, exactness = run(settings, given)
        about = provenance(device_of(settings.target.device))
    from mmspec.bench.check.findings import LEFT_OUT, likely_cause

    passed, cause = all(finding.passed for finding in findings), likely_cause(findings)
    cause = next((f.cause for f in findings if f.cause and not f.passed), cause) if kind != "text" else cause
    if as_json:
        found = {"passed": passed, "findings": [asdict(f) for f in findings], "model": name, "drafter": drafter_name, "cause": cause}
        found["complete"] = all(finding.name != LEFT_OUT for finding in findings)
        common.emit({**found, "exactness": exactness, "settings": asdict(settings), "stats": stats.to_dict(), "provenance": about})
    else:
        _show(findings, stats, f"{name} with drafter {drafter_name}", cause, about)
    if not passed:
        raise typer.Exit(1)


def _check(config: "Config", given: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return (findings, statistics, pair, provenance)."""
    from mmspec.bench.check.verify import Plan, step_count, verify
    from mmspec.utils.provenance import provenance

    if given["view"] is not None or given["pictures"]:
        from mmspec.jobs.captions import load_seeing

        pair = common.waiting(config, partial(load_seeing, config, None, given["view"]))
    else:
        pair = common.load(config)
    seed = config.run.seed
    plan = Plan(common.prompts_for(pair, given), (seed, seed + 100, seed + 200), given["margin"], budget=given["budget"] or None)
    with common.progress("check", step_count(pair, plan)) as done:
        findings, stats = verify(pair, replace(plan, done=done))
    return findings, stats, pair, provenance(pair.target.device)


def _show(findings: Any, stats: Any, what: str, cause: str, about: dict[str, Any]) -> None:
    from mmspec.bench.check.findings import LEFT_OUT
    from mmspec.bench.report.stream import summary
    from mmspec.utils.provenance import machine

    table = Table("check", "", "finding")
    for finding in findings:
        table.add_row(finding.name, Text("ok", "green") if finding.passed else Text("FAILED", "red"), finding.detail)
    show = common.console(False)
    show.print(table)
    failed = sum(not finding.passed for finding in findings)
    left = any(finding.name == LEFT_OUT for finding in findings)
    passed = (
        ("no check failed, and some were left out: --budget 0 runs all", "yellow") if left else ("lossless: all checks passed", "green")
    )
    verdict = (f"{failed} of {len(findings) - left} checks failed", "red") if failed else passed
    show.print(Text.assemble(f"{what}: ", verdict))
    if cause:
        show.print(f"likely cause: {cause}", soft_wrap=True)
    counted = f"greedy: {summary(stats)}; " if stats.tokens else ""
    show.print(f"{counted}{machine(about)}", soft_wrap=True)
