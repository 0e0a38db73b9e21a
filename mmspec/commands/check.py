"""`mmspec check`: the losslessness self-test for any target, drafter and rule."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from mmspec.commands import common
from mmspec.config import Config

EXAMPLES = """Examples:

\b
  mmspec check
  mmspec check --drafter suffix
  mmspec check --accept block --temperature 0.8
  mmspec check --tree 4,2,1 --prompts prompts.txt
  mmspec check --model ./big --drafter ./small --dtype bfloat16 --margin 0.5
  mmspec check --model vlm --drafter text --view newline
  mmspec check --model ./sees --drafter ./small --picture cat.jpg --prompts questions.txt
"""
_NEW, _PROMPTS = 48, 4


def check(
    model: common.MODEL = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    config: common.CONFIG = None,
    changes: common.SET = None,
    drafter: common.DRAFTER = None,
    view: common.VIEW = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    temperature: Annotated[float | None, common.option(common.DRAWING, "Of sampled checks; 0.8 where none is given.", metavar="T")] = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    seed: common.SEED = None,
    max_new_tokens: Annotated[
        int | None, common.option(common.DRAWING, "The most tokens a prompt may get; 48 by default.", metavar="N")
    ] = None,
    pictures: Annotated[
        list[str] | None, common.option(common.FILES, "Ask about this picture; may be repeated.", "--picture", metavar="FILE")
    ] = None,
    prompts: common.PROMPTS = None,
    limit: Annotated[int | None, common.option(common.FILES, "Use the first N prompts; 4 by default.", metavar="N")] = None,
    margin: Annotated[float | None, common.option(common.SHOW, "Scores closer than this are a near tie; by dtype.", metavar="X")] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Test that drafting changes nothing: the tokens of plain decoding, or draws from its law."""
    given = common.with_defaults(dict(locals()), max_new_tokens=_NEW, limit=_PROMPTS)
    settings = common.settings(given)
    common.begin(verbose)
    findings, stats, pair, about = _check(settings, given)
    passed = all(finding.passed for finding in findings)
    if as_json:
        found = {"passed": passed, "findings": [asdict(f) for f in findings], "model": pair.name, "drafter": pair.drafter_name}
        common.emit({**found, "exactness": pair.exactness, "settings": asdict(settings), "stats": stats.to_dict(), "provenance": about})
    else:
        _show(findings, stats, pair, about)
    if not passed:
        raise typer.Exit(1)


def _check(config: Config, given: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """(findings, statistics, pair, provenance)."""
    from mmspec.bench.provenance import provenance
    from mmspec.bench.verify import Plan, verify, work

    if given["view"] is not None or given["pictures"]:
        from mmspec.text.captioning import load_seeing

        pair = common.waiting(config, partial(load_seeing, config, None, given["view"]))
    else:
        pair = common.load(config)
    seed = config.run.seed
    plan = Plan(common.prompts_for(pair, given), (seed, seed + 100, seed + 200), given["margin"])
    with common.progress("check", work(pair, plan)) as done:
        findings, stats = verify(pair, Plan(plan.prompts, plan.seeds, plan.margin, done))
    return findings, stats, pair, provenance(pair.target.device)


def _show(findings: Any, stats: Any, pair: Any, about: dict[str, Any]) -> None:
    from mmspec.bench.provenance import machine
    from mmspec.commands.stream import summary

    table = Table("check", "", "finding")
    for finding in findings:
        table.add_row(finding.name, "[green]ok[/]" if finding.passed else "[red]FAILED[/]", finding.detail)
    show = common.console(False)
    show.print(table)
    failed = sum(not finding.passed for finding in findings)
    verdict = f"[red]{failed} of {len(findings)} checks failed[/]" if failed else "[green]lossless: all checks passed[/]"
    show.print(f"{pair.name} with drafter {pair.drafter_name}: {verdict}")
    show.print(f"greedy: {summary(stats)}; {machine(about)}", soft_wrap=True)
