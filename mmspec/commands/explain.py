"""`mmspec explain`: why a drafter is not accepted, or not faster, on prompts of your own."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from mmspec.commands import common
from mmspec.utils.files import whole
from mmspec.utils.places import Writes

if TYPE_CHECKING:
    from mmspec.run.config import Config

EXAMPLES = """Examples:

\b
  mmspec explain
  mmspec explain --drafter eagle3 --temperature 0.7
  mmspec explain --model ./big --drafter ./small --prompts prompts.txt
  mmspec explain --model ./big --drafter ./eagle3 --chat \\
      --prompts prompts.txt --batch-size 8 --draft-length 5
  mmspec explain --model ./big-4bit --drafter ./small --reference ./big \\
      --prompts prompts.txt --output why.json --html why.html
"""
_NEW, _LIMIT, _BATCH, _REPEATS = 64, 8, 1, 3


def explain(
    model: common.MODEL = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    config: common.CONFIG = None,
    changes: common.SET = None,
    allow_code: common.ALLOW_CODE = False,
    reference: Annotated[
        str | None, common.option(common.WHAT, "The target in full precision, to compare a quantised target with.", metavar="PATH")
    ] = None,
    drafter: common.DRAFTER = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
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
    chat: Annotated[bool, common.option(common.FILES, "Wrap prompts in the model's chat template.", "--chat")] = False,
    batch_size: Annotated[int | None, common.option(common.FILES, "Prompts run together; 1 by default.", metavar="N")] = None,
    repeats: Annotated[int | None, common.option(common.FILES, "Timed runs of every batch; 3 by default.", metavar="N")] = None,
    output: Annotated[str | None, common.option(common.SHOW, "Write every figure as JSON.", metavar="FILE"), Writes()] = None,
    html: Annotated[str | None, common.option(common.SHOW, "Write a self-contained HTML report.", metavar="FILE"), Writes()] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Find out why a drafter is not accepted, or not faster: acceptance beside the best possible, seconds, and the likely cause."""
    given = dict(locals())
    common.check_counts(given, "batch_size")
    common.check_counts(given, "repeats", most=1000)  # a median of more says no more
    common.check_counts(given, "limit", most=10**9)
    given = common.with_defaults(given, max_new_tokens=_NEW, limit=_LIMIT, batch_size=_BATCH, repeats=_REPEATS)
    settings = common.config_of(given)
    if settings.run.temperature == 0 and settings.accept.kind == "exact":
        common.refuse_unread("is for sampling, and temperature 0 is greedy decoding: give --temperature too", "--top-k", "--top-p")
    if settings.drafter.kind == "none":
        raise ValueError("drafter 'none' leaves nothing to explain: name a drafter")
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(whole(given[name])) for name in ("output", "html") if given[name] is not None}
        common.begin(verbose)
        found, about = _explained(settings, given)
        plain = {**found.to_dict(), "settings": asdict(settings), "provenance": about}
        if "output" in sinks:
            json.dump(plain, sinks["output"], indent=1)
        if "html" in sinks:
            from mmspec.bench.report.explain import explain_page

            sinks["html"].write(explain_page(plain))
    if as_json:
        common.emit(plain)
    else:
        _show(found, about)


def _explained(config: "Config", given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the explanation and its provenance."""
    from dataclasses import replace

    from mmspec.bench.explain.explanation import ExplainPlan, explain_pair, stage_count
    from mmspec.loading.transformers import load_model
    from mmspec.utils.provenance import provenance

    pair = common.load(config)
    pair = replace(pair, chat=pair.chat or given["chat"])
    reference = None
    if given["reference"] is not None:
        reference = common.waiting(config, lambda: load_model(given["reference"], config.target.dtype, pair.target.device)[0])
    plan = ExplainPlan(common.prompts_for(pair, given), given["batch_size"], reference=reference, repeats=given["repeats"])
    with common.progress("explain", stage_count(pair, plan)) as done:
        found = explain_pair(pair, replace(plan, done=lambda stage: done(1, stage)))
    return found, provenance(pair.target.device)


def _show(found: Any, about: dict[str, Any]) -> None:
    """Print the tables, the causes and the machine."""
    from mmspec.utils.provenance import machine

    show, facts = common.console(False), found.facts
    show.print(_acceptance(facts.acceptance))
    show.print(_seconds(facts))
    for line in _lines(found):
        show.print(line, soft_wrap=True)
    for number, cause in enumerate(found.causes, start=1):
        how = "by what was measured" if cause.measured else "estimate"
        gain = f" ({cause.gain:.2f} times faster without it; {how})"
        show.print(Text.assemble((f"{number}. {cause.text}", "red"), gain), soft_wrap=True)
        for line in (*cause.evidence, f"do: {cause.remedy}"):
            show.print(f"   {line}", soft_wrap=True)
    verdict = (found.verdict, "green" if found.healthy else "red")
    show.print(Text.assemble(f"{found.model} with drafter {found.drafter}: ", verdict), soft_wrap=True)
    show.print(machine(about), soft_wrap=True)


def _acceptance(acceptance: Any) -> Table:
    """The table of acceptance by position in the draft."""
    table = Table("draft token", *(_right("judged"), _right("accepted"), _right("best possible"), _right("same best token")))
    for number, each in enumerate(acceptance.positions, start=1):
        table.add_row(str(number), str(each.judged), *map(_percent, (each.rate, each.best, each.agreement)))
    whole = (acceptance.rate, acceptance.best, acceptance.agreement)
    table.add_section()
    table.add_row("all", str(acceptance.judged), *map(_percent, whole))
    return table


def _right(name: str) -> Any:
    from rich.table import Column

    return Column(name, justify="right")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _seconds(facts: Any) -> Table:
    """The table of milliseconds by columns scored."""
    every = [("", facts.costs)] + ([(" at batch 1", facts.alone)] if facts.alone is not None else [])
    sizes = sorted(facts.costs.columns)
    table = Table("ms by columns", *(_right(str(size)) for size in sizes), _right("draft token"), _right("prompt"))
    for name, costs in every:
        cells = [f"{1000 * costs.target(size):.1f}" for size in sizes]
        table.add_row(f"target{name}", *cells, "", f"{1000 * costs.prefill:.1f}")
        table.add_row(f"drafter{name}", *("" for _ in sizes), f"{1000 * costs.step:.1f}", f"{1000 * costs.draft_prefill:.1f}")
    return table


def _lines(found: Any) -> list[str]:
    """What stands below the tables: other runs, break-even, speeds."""
    facts, acceptance = found.facts, found.facts.acceptance
    (used, speed), (best, possible) = facts.used(), facts.best()
    needed = "none is enough" if found.break_even is None else f"from {found.break_even:.0%} on"
    measured = "" if found.speed is None else f"; measured {found.speed.median:.2f} ({found.speed.low:.2f}-{found.speed.high:.2f})"
    lines = [f"{name}: {each.rate:.0%} accepted" for name, each in facts.probes.items()]
    lines.append(
        f"target: entropy {acceptance.entropy:.1f} nats, sure of its next token at {acceptance.sure:.0%} of positions, "
        f"where {acceptance.sure_rate:.0%} are accepted"
    )
    lines.append(f"acceptance that pays, at the best draft length ({facts.drafting()[0]}): {needed}")
    chosen = f"with {used} draft tokens {speed:.2f}, " if facts.length is not None else ""
    lines.append(f"speed against plain decoding: {chosen}at best {possible:.2f} (with {best}) expected{measured}")
    return lines
